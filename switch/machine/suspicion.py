"""When a worker counts as lost: by its silence alone, or sooner where something else speaks for its death.

The other evidence is a closed control connection (switch/transports/hang_ups.py): the system closes it when the process
ends. A broken connection of a live worker closes, too, so it is a suspicion and no more: a sign of life over the data
path withdraws it, and every worker gives one per heartbeat.
"""

from __future__ import annotations

from fanin.protocol.job import SUSPICION_SETTLES_S, SUSPICION_TIMEOUT_S


def stands(heard_s: float, suspected_s: float | None) -> bool:
    """Whether nothing has withdrawn the suspicion. A packet that comes at once may have been sent before, and does not
    withdraw it.
    """
    return suspected_s is not None and heard_s <= suspected_s + SUSPICION_SETTLES_S


def silent_at(heard_s: float, suspected_s: float | None, liveness_timeout_s: float) -> float:
    """When a worker counts as lost that was last heard of at `heard_s`, and suspected at `suspected_s` if at all."""
    at_s = heard_s + liveness_timeout_s  # R-MEMBER-6
    if suspected_s is None or not stands(heard_s, suspected_s):
        return at_s
    return min(at_s, suspected_s + SUSPICION_TIMEOUT_S)  # R-MEMBER-7
