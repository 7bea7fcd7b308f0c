"""How much of the exchanges of local steps is hidden behind the steps, by a rank's time line (docs/meetings.md).

    launched   submitted              awaited        landed
       |-----------|----- local steps ---|--------------|
       |=== exchange ================ arrived           |
       |  exposed  |                     |   exposed    |

Training stands still while it hands its delta in (it is encoded) and from the moment it waits for the mean until it has
decoded that: these seconds are exposed. An exchange lasts from its launch to its last result, without the time for
which that result lay there unread; the rest of its seconds are hidden.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One meeting of one rank. Times in seconds, on the rank's clock."""

    number: int
    fragment: int
    launched_s: float
    submitted_s: float
    awaited_s: float
    landed_s: float
    arrived_s: float
    """End of its last sum."""

    @property
    def exchange_s(self) -> float:
        """Duration of the exchange, encoding and decoding included."""
        unread_s = max(self.awaited_s - max(self.arrived_s, self.submitted_s), 0.0)
        return self.landed_s - self.launched_s - unread_s

    @property
    def exposed_s(self) -> float:
        """Seconds of the exchange for which training stood still."""
        return self.submitted_s - self.launched_s + self.landed_s - self.awaited_s

    @property
    def fits(self) -> bool:
        """Whether the exchange is shorter than the local steps that it had to hide behind."""
        return self.exchange_s <= self.awaited_s - self.launched_s


@dataclass(frozen=True, slots=True)
class Hidden:
    """The hidden share of exchanges."""

    exchanges: int
    seconds: float
    share: float
    """Hidden seconds over all seconds of these exchanges."""


def exchanges_of(lines: Sequence[dict[str, Any]]) -> list[Exchanged]:
    """Return the meetings of one life of a rank that have landed, from the legal lines of its file, by their launch."""
    sums = sorted((float(line["submitted"]), float(line["done"])) for line in lines if line["kind"] == "reduction")
    begun = [begun_s for begun_s, _ in sums]
    found = []
    for line in lines:
        if line["kind"] != "meeting":
            continue
        launched_s, submitted_s, landed_s = (float(line[each]) for each in ("launched", "submitted", "landed"))
        own = sums[bisect_left(begun, launched_s) : bisect_right(begun, submitted_s)]
        found.append(
            Exchanged(
                number=int(line["number"]),
                fragment=int(line["fragment"]),
                launched_s=launched_s,
                submitted_s=submitted_s,
                awaited_s=float(line["awaited"]),
                landed_s=landed_s,
                arrived_s=min(max((done_s for _, done_s in own), default=landed_s), landed_s),
            )
        )
    return sorted(found, key=lambda each: each.launched_s)


def hidden(exchanges: Sequence[Exchanged]) -> Hidden | None:
    """Return the hidden share of these exchanges together; None where there are none."""
    seconds = sum(each.exchange_s for each in exchanges)
    if not seconds:
        return None
    return Hidden(len(exchanges), seconds, 1 - sum(each.exposed_s for each in exchanges) / seconds)


def hidden_in_words(exchanges: Sequence[Exchanged]) -> list[str]:
    """Lines for people on what meetings cost training; none for a job without meetings."""
    if (every := hidden(exchanges)) is None:
        return []
    words = f"meetings: {every.exchanges:,}, of whose {every.seconds:.1f} s {every.share:.0%} was hidden behind steps"
    fitting = hidden([each for each in exchanges if each.fits])
    if fitting is None:
        return [f"{words}; none was shorter than the steps that it overlapped"]
    if fitting.exchanges < every.exchanges:
        words += f"; {fitting.share:.0%} of the {fitting.exchanges:,} that were shorter than the steps they overlapped"
    return [words]
