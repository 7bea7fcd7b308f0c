"""One log of a rank's reductions, in order, kept until every rank is known to have finished them.

Two ways to continue use it: over gloo when the switch is lost (host/torch/collectives/fallback.py), and at the shards
that are left (kept_reductions.py). Both need inputs and results of reductions that some ranks have finished and others
have not.

| step | call |
|---|---|
| a reduction enters the log | `append` |
| its parts go to sessions | `dealt` |
| its parts have been summed here, as have those of all before it | `take_come` |
| every rank has finished it (finished.py), and its owner lets it go | `forget` |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from fanin.host.session.finished import Counted, Ends, FinishedEverywhere
from fanin.numerics.reduction import Element, Operator


class Logged(Protocol):
    """A reduction, as its log sees it."""

    ends: Ends
    """Ends of the parts that were dealt out."""

    @property
    def has_come(self) -> bool:
        """Whether it was dealt out and every part of it has been summed."""

    @property
    def may_go(self) -> bool:
        """Whether this rank no longer needs the entry."""


Entry = TypeVar("Entry", bound=Logged)


class ReductionLog(Generic[Entry]):
    """The log of one rank. Not thread safe."""

    def __init__(self, sessions: Sequence[Counted] = ()) -> None:
        self._entries: deque[Entry] = deque()
        self.restart(sessions)

    def restart(self, sessions: Sequence[Counted]) -> None:
        """Count parts at these sessions, by number, from now on; parts at earlier sessions count no more."""
        self._finished = FinishedEverywhere(sessions)
        self._coming: deque[Entry] = deque()
        """Reductions that were dealt out, and have not been seen to have come."""

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> None:
        """Append a new reduction."""
        self._entries.append(entry)

    def dealt(
        self, entry: Entry, parts: Iterable[tuple[int, int]], element: Element, lanes: int, operator: Operator
    ) -> None:
        """Note that a reduction was dealt out; each part: number of the session, and elements."""
        entry.ends = self._finished.dealt(parts, element, lanes, operator)
        self._coming.append(entry)

    def take_come(self) -> Iterator[Entry]:
        """The reductions that have come since the last call, in order and each once."""
        while self._coming and self._coming[0].has_come:
            entry = self._coming.popleft()
            self._finished.come(entry.ends)
            yield entry

    def forget(self) -> list[Entry]:
        """Drop, and return, the oldest ones that every rank has finished and that this rank lets go."""
        dropped = []
        while self._entries and self._entries[0].may_go and self._finished.knows(self._entries[0].ends):
            dropped.append(self._entries.popleft())
        return dropped

    def keep_only(self, entries: Iterable[Entry]) -> None:
        """Drop all reductions but these."""
        self._entries = deque(entries)
