"""Where the ranks of a group decide that its lease ends (host/session/leased.py): through the group's store.

Per lease and count of reductions there are two keys: a counter of the ranks that were idle there, and a word that is
set once. Whoever makes the counter full offers the word "ended", whoever wants to submit more offers "busy"; the first
offer stays, and all of them read the same word. A store's `add` and `compare_set` are atomic, and that is all it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError

ENDED, BUSY = b"ended", b"busy"

Answer = TypeVar("Answer")


def apart(store: c10d.Store) -> c10d.Store:
    """The same store over a connection of its own: one that is waited through is locked for all other threads."""
    clone: Callable[[], c10d.Store] = store.clone  # type: ignore[attr-defined]
    return clone()


def can_be_apart(store: c10d.Store) -> bool:
    """Whether torch has that; older releases do not."""
    return hasattr(store, "clone")


class StoreBallot:
    """A `Ballot` of the `size` ranks of one job."""

    def __init__(self, store: c10d.Store, job_name: str, size: int) -> None:
        self._store, self._job_name, self._size = store, job_name, size

    def idle(self, lease: int, count: int) -> bool:
        """As Ballot.idle."""
        number, word = self._keys(lease, count)

        def ask(store: c10d.Store) -> bool:
            if store.add(number, 1) < self._size:
                return False
            return _settled(store, word, ENDED) == ENDED

        return self._asked(ask)

    def has_ended(self, lease: int, count: int) -> bool | None:
        """As Ballot.has_ended."""
        _, word = self._keys(lease, count)

        def ask(store: c10d.Store) -> bool | None:
            return bytes(store.get(word)) == ENDED if store.check([word]) else None

        return self._asked(ask)

    def goes_on(self, lease: int, count: int) -> bool:
        """As Ballot.goes_on."""
        _, word = self._keys(lease, count)
        return self._asked(lambda store: _settled(store, word, BUSY) == BUSY)

    def _keys(self, lease: int, count: int) -> tuple[str, str]:
        place = f"fanin/lease/{self._job_name}/{lease}/{count}"
        return f"{place}/idle", f"{place}/word"

    def _asked(self, ask: Callable[[c10d.Store], Answer]) -> Answer:
        """Over a connection for this question alone: there is one per lease and idle time, seldom."""
        try:
            return ask(apart(self._store))
        except RuntimeError as error:  # torch's errors of stores
            raise FaninError(
                f"job {self._job_name!r} had been idle, and the store through which its ranks agree to go on does not "
                f"answer: {error}. Remedy: see the output of the process that serves it (rank 0, or torchrun's agent), "
                "or FANIN_IDLE_RETURN_S=0"
            ) from error


def _settled(store: c10d.Store, word: str, offer: bytes) -> bytes:
    """What the word is, which is the offer if there was none."""
    return bytes(store.compare_set(word, "", offer.decode()))
