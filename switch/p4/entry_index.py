"""Entries of a table that is no dictionary, found by key: those of one mask side by side (tuple space search).

Rules
-----
* Entries with the same mask are one group, in a dictionary by their masked value. A key looks into each group once, as
  a table of prefixes has no more than a group for each length.
* Entries win in order of rank, and of age where ranks are equal. Groups are in order of their first entry, so a search
  ends at the first group that has nothing earlier than what was found.
* Entries with the same mask and value differ in their ranges or ranks; they are in order, and are tried one by one.
* Adding and removing are binary searches in sorted lists, whose pointers move.

Srinivasan, Suri and Varghese, Packet Classification using Tuple Space Search (SIGCOMM 1999), has the idea;
native/p4/p4_index.hpp does the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

Order = tuple[int, int]
"""Rank, and a number that grows with each entry that is added: no two are equal, and the lowest wins."""
Alike = tuple[int, int, tuple[tuple[int, int, int, int], ...]]
"""Value, mask and ranges: what an entry matches."""


class Ranked(Protocol):
    """Fields of an entry (tables.py) that an index reads."""

    order: Order
    rank: int
    value: int
    mask: int
    ranges: tuple[tuple[int, int, int, int], ...]

    def in_ranges(self, key: int) -> bool: ...


Entry = TypeVar("Entry", bound=Ranked)


@dataclass(slots=True)
class _Group(Generic[Entry]):
    """Entries of one mask."""

    mask: int
    first: Order
    """Order of its first entry, or of an earlier one that is gone."""
    values: dict[int, list[tuple[Order, Entry]]] = field(default_factory=dict)


class EntryIndex(Generic[Entry]):
    """Entries in the order in which they win."""

    def __init__(self) -> None:
        self._added = 0
        self._ordered: list[tuple[Order, Entry]] = []
        self._groups: dict[int, _Group[Entry]] = {}
        self._searched: list[tuple[Order, _Group[Entry]]] = []
        """The groups in the order in which they are looked into."""
        self._alike: dict[Alike, dict[int, Entry]] = {}
        """By what they match, entries by rank."""

    def __iter__(self) -> Iterator[Entry]:
        return iter([entry for _, entry in self._ordered])

    def __len__(self) -> int:
        return len(self._ordered)

    def alike(self, entry: Entry) -> dict[int, Entry]:
        """Entries that match the same, by rank."""
        return self._alike.get((entry.value, entry.mask, entry.ranges), {})

    def find(self, key: int) -> Entry | None:
        """The entry that wins for a key."""
        best: tuple[Order, Entry] | None = None
        for first, group in self._searched:
            if best is not None and first > best[0]:
                break
            for found in group.values.get(key & group.mask, ()):
                if best is not None and found[0] > best[0]:
                    break
                if not found[1].ranges or found[1].in_ranges(key):
                    best = found
                    break
        return None if best is None else best[1]

    def add(self, entry: Entry) -> None:
        """One more entry, behind those of the same rank; none with this match and rank is there."""
        self._added += 1
        order = entry.order = entry.rank, self._added
        insort(self._ordered, (order, entry))
        self._alike.setdefault((entry.value, entry.mask, entry.ranges), {})[entry.rank] = entry
        group = self._groups.get(entry.mask)
        if group is None:
            group = self._groups[entry.mask] = _Group(entry.mask, order)
            insort(self._searched, (order, group))
        elif order < group.first:
            del self._searched[bisect_left(self._searched, (group.first,))]
            group.first = order
            insort(self._searched, (order, group))
        insort(group.values.setdefault(entry.value, []), (order, entry))

    def remove(self, entry: Entry) -> None:
        """An entry that is there goes."""
        order = entry.order
        del self._ordered[bisect_left(self._ordered, (order,))]
        alike = self._alike[entry.value, entry.mask, entry.ranges]
        del alike[entry.rank]
        if not alike:
            del self._alike[entry.value, entry.mask, entry.ranges]
        group = self._groups[entry.mask]
        entries = group.values[entry.value]
        del entries[bisect_left(entries, (order,))]
        if entries:
            return
        del group.values[entry.value]
        if not group.values:
            del self._groups[entry.mask]
            del self._searched[bisect_left(self._searched, (group.first,))]
