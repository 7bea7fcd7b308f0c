"""Multicast groups and mirror sessions, which say where copies of a packet go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


MAX_GROUP = 0xFFFF
"""Largest number of a multicast group, which is a field of 16 bits."""
MAX_SESSION = 0x7FFF
"""Largest number of a mirror session: v1model keeps 15 bits of it, so that no program can ask for a higher one."""
MAX_CUT_BYTES = 0x7FFF_FFFF


class Replica(NamedTuple):
    """One copy of a packet: the port that it leaves through, and what the program reads as egress_rid."""

    port: int
    instance: int


@dataclass(frozen=True, slots=True)
class MirrorSession:
    """Replicas to which a session's clones go, and the length of the clones."""

    replicas: tuple[Replica, ...]
    cut: int = 0
    """Most bytes that a clone keeps; 0: all."""

    def __post_init__(self) -> None:
        """Raise ValueError for a length that is out of range."""
        if not 0 <= self.cut <= MAX_CUT_BYTES:
            raise ValueError(f"a clone of {self.cut} bytes: expected 0, for all of them, to {MAX_CUT_BYTES}")


class Watched(MutableMapping[int, Item], Generic[Item]):
    """Items by number, with a callback for every change (switch/p4/native.py keeps a copy)."""

    def __init__(self, most: int) -> None:
        """`most` is the highest number that an item may have."""
        self._most = most
        self._items: dict[int, Item] = {}
        self.changed: Callable[[int, Item | None], None] | None = None
        """Called with an item's number and its new value; None: it was removed."""

    def __getitem__(self, number: int) -> Item:
        return self._items[number]

    def __setitem__(self, number: int, item: Item) -> None:
        if not 0 <= number <= self._most:
            raise ValueError(f"number {number} is not in 0..{self._most}")
        if self.changed is not None:  # first: what it refuses is not kept here either
            self.changed(number, item)
        self._items[number] = item

    def __delitem__(self, number: int) -> None:
        del self._items[number]
        if self.changed is not None:
            self.changed(number, None)

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
