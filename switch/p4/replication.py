"""Multicast groups and mirror sessions: where copies of a packet go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Replica(NamedTuple):
    """One copy: the port that it leaves through, and what the program reads as egress_rid."""

    port: int
    instance: int


@dataclass(frozen=True, slots=True)
class MirrorSession:
    """Where a clone goes."""

    replicas: tuple[Replica, ...]
    cut: int = 0
    """Bytes that are kept of it; 0: all."""


class Watched(MutableMapping[int, Item], Generic[Item]):
    """Items by number, and somebody who is told of each change (switch/p4/native.py keeps a copy)."""

    def __init__(self) -> None:
        self._items: dict[int, Item] = {}
        self.changed: Callable[[int, Item | None], None] | None = None
        """Called with an item's number, and what it is now; None: it is gone."""

    def __getitem__(self, number: int) -> Item:
        return self._items[number]

    def __setitem__(self, number: int, item: Item) -> None:
        self._items[number] = item
        if self.changed is not None:
            self.changed(number, item)

    def __delitem__(self, number: int) -> None:
        del self._items[number]
        if self.changed is not None:
            self.changed(number, None)

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
