"""Index of a table's entries that match by masks or ranges, grouped by mask (tuple space search).

Rules
-----
* Entries with the same mask form a group, a dictionary by their masked value. A search looks into each group once; a
  table of prefixes has at most one group for each length.
* Entries win in order of rank, and of age if ranks are equal. Groups are in order of their first entry, so that a
  search ends at the first group that has no entry earlier than the one found.
* Entries with the same mask and value differ in their ranges or ranks; they are in order, and are tried one by one.
* Adding and removing take a binary search in a sorted list, and move the pointers behind the place.

The method is from Srinivasan, Suri and Varghese, Packet Classification using Tuple Space Search (SIGCOMM 1999);
native/p4/p4_index.hpp does the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

Order = tuple[int, int]
"""Precedence of an entry: its rank, then the number of its insertion. All differ, and the lowest wins."""
Alike = tuple[int, int, tuple[tuple[int, int, int, int], ...]]
"""Value, mask and ranges of an entry: entries that are alike in them match the same keys."""


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
    """Lower bound of the orders of its entries: the first one's, or that of an earlier, removed one."""
    values: dict[int, list[tuple[Order, Entry]]] = field(default_factory=dict)


class EntryIndex(Generic[Entry]):
    """Entries in the order in which they win."""

    def __init__(self) -> None:
        self._added = 0
        self._ordered: list[tuple[Order, Entry]] = []
        self._groups: dict[int, _Group[Entry]] = {}
        self._searched: list[tuple[Order, _Group[Entry]]] = []
        """The groups in the order in which a search visits them."""
        self._alike: dict[Alike, dict[int, Entry]] = {}
        """Entries by the keys that they match, then by rank."""

    def __iter__(self) -> Iterator[Entry]:
        return iter([entry for _, entry in self._ordered])

    def __len__(self) -> int:
        return len(self._ordered)

    def alike(self, entry: Entry) -> dict[int, Entry]:
        """Entries that match the same keys as `entry`, by rank."""
        return self._alike.get((entry.value, entry.mask, entry.ranges), {})

    def find(self, key: int) -> Entry | None:
        """The entry that wins for a key; None if none matches."""
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
        """Add an entry behind those of the same rank. There must be none with the same match and rank."""
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
        """Remove an entry, which must be in the index."""
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
