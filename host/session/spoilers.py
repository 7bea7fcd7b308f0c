"""Record of the spoiled sums of a session: NaN and infinities, by the ranks that contributed them.

A machine reports them (fanin/protocol/events.py, Spoiled) before it reports that the reduction is done, so they are
known to whoever has waited for a sum.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from fanin.protocol.events import Spoiled

MAX_SUMS = 256
"""Spoiled sums that are remembered, the latest ones."""


class Spoiler(NamedTuple):
    """A rank with an element that is NaN or infinite: one of [first, first + count) of what was summed."""

    rank: int
    first: int
    count: int  # type: ignore[assignment]  # in the place of tuple.count, which nobody needs


class SpoiledSums:
    """The latest spoiled sums, by ticket. Its owner's lock guards it."""

    def __init__(self) -> None:
        self.taken = 0
        """Number of events that were taken in."""
        self._of: OrderedDict[int, dict[int, Spoiler]] = OrderedDict()

    def take(self, event: Spoiled, rank: int) -> None:
        """Take in the event that a rank has spoiled a sum."""
        self.taken += 1
        self.note(event.ticket, [Spoiler(rank, event.first, event.count)])

    def note(self, ticket: int, spoilers: Iterable[Spoiler]) -> None:
        """Remember who has spoiled a sum; of each rank the first element counts."""
        known = self._of.setdefault(ticket, {})
        for each in spoilers:
            if each.rank not in known or each.first < known[each.rank].first:
                known[each.rank] = each
        if len(self._of) > MAX_SUMS:
            self._of.popitem(last=False)

    def of(self, ticket: int) -> list[Spoiler]:
        """Ranks that have spoiled the sum, in their order."""
        return sorted(self._of.get(ticket, {}).values())
