"""Decide when a worker counts as lost: after the liveness timeout, or sooner after a suspicion.

A worker is suspected when its control connection closes (switch/transports/hang_ups.py): the operating system closes
it when the process ends. A broken connection of a live worker closes, too, so that this is evidence and no proof: a
sign of life over the data path withdraws the suspicion, and every worker gives one per heartbeat.
"""

from __future__ import annotations

from fanin.protocol.job import SUSPICION_SETTLES_S, SUSPICION_TIMEOUT_S


def stands(heard_s: float, suspected_s: float | None) -> bool:
    """Whether there is a suspicion that no packet has withdrawn.

    A packet within SUSPICION_SETTLES_S may have been sent before the suspicion arose, and does not withdraw it.
    """
    return suspected_s is not None and heard_s <= suspected_s + SUSPICION_SETTLES_S


def silent_at(heard_s: float, suspected_s: float | None, liveness_timeout_s: float) -> float:
    """Time at which a worker counts as lost that was last heard at `heard_s`, and perhaps suspected since."""
    at_s = heard_s + liveness_timeout_s  # R-MEMBER-6
    if suspected_s is None or not stands(heard_s, suspected_s):
        return at_s
    return min(at_s, suspected_s + SUSPICION_TIMEOUT_S)  # R-MEMBER-7
