"""Local steps in the conclusions of `fanin advise`: the period at which communication is hidden."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fanin.advice.forecasts import Choice, Forecast, Network, Profile, sum_s

EXPOSED_SHARE = 0.05
"""Share of a step's computing that meetings may add where nothing overlaps."""


@dataclass(frozen=True, slots=True)
class HiddenPeriod:
    """The steps between two meetings of the whole model that hide one."""

    choice: Choice
    meeting_s: float
    """Seconds of the exchange."""
    overlapped_steps: int
    """Least period whose computing is as long as the exchange: with an overlap of a whole period nobody waits."""
    plain_steps: int
    """Least period that adds at most EXPOSED_SHARE where training waits for each meeting."""


def hidden_periods(
    network: Network, place: str, lanes: Sequence[int], profile: Profile, share: float = EXPOSED_SHARE
) -> list[HiddenPeriod]:
    """Return a period per lane width, for sums at `place`; empty where the computing time of a step is not known."""
    if profile.compute_s <= 0:
        return []
    found = []
    for width in lanes:
        choice = Choice(place, width)
        meeting_s = sum_s(network, choice, profile.bytes)
        computed = meeting_s / profile.compute_s
        found.append(HiddenPeriod(choice, meeting_s, max(math.ceil(computed), 1), max(math.ceil(computed / share), 1)))
    return found


def meeting_notes(network: Network, lanes: Sequence[int], profile: Profile, best: Forecast | None) -> list[str]:
    """Lines for people; none where a sum in every step adds less than EXPOSED_SHARE anyway, or nothing is known."""
    if network.hosts < 2:
        return []
    place = best.choice.place if best is not None and best.choice.place else "hosts"
    found = hidden_periods(network, place, lanes, profile)
    if not found or found[0].plain_steps == 1:
        return []
    notes = [
        f"local steps (docs/meetings.md), with {profile.compute_s * 1e3:,.0f} ms of computing in a step and "
        f"{profile.bytes:,} bytes of weights in a meeting:"
    ]
    notes += [
        f"  {each.choice.lanes}-bit lanes: a meeting takes {each.meeting_s:,.2f} s; hidden with period >= "
        f"{each.overlapped_steps} and as large an overlap; below {EXPOSED_SHARE:.0%} of the time without overlap with "
        f"period >= {each.plain_steps}"
        for each in found
    ]
    return notes
