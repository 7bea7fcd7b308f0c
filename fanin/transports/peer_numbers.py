"""Numbers for peers: an address that a machine knows as 7 is a socket address or ZeroMQ identity to its transport."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")

MAX_PEERS = 65_536
"""Peers that a switch's port remembers. Anybody may send to it, so the least recently heard one is forgotten for a new
one; a worker, which sends a heartbeat twice a second, is forgotten only under a flood of forged sources."""


class AddressBook(Generic[Key]):
    """Numbers each key, 0 upwards, in order of appearance. A number is never given to a second key."""

    def __init__(self, limit: int = MAX_PEERS) -> None:
        self._limit = limit
        self._numbers: OrderedDict[Key, int] = OrderedDict()
        self._keys: dict[int, Key] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._keys)

    def number(self, key: Key) -> int:
        """The key's number; a new one if it was never seen, or was forgotten."""
        number = self._numbers.get(key)
        if number is not None:
            self._numbers.move_to_end(key)
            return number
        if len(self._numbers) >= self._limit:
            _, forgotten = self._numbers.popitem(last=False)
            del self._keys[forgotten]
        number = self._next
        self._next += 1
        self._numbers[key] = number
        self._keys[number] = key
        return number

    def key(self, number: int) -> Key | None:
        """The owner of a number; None for one that was forgotten or never given out."""
        return self._keys.get(number)
