"""The vote of a group's ranks on the end of its lease (host/session/leased.py), through the group's store.

Per lease and count of reductions there are two keys: a counter of the ranks that were idle there, and a word that is
set once. The rank that makes the counter full offers the word "ended", and a rank that wants to submit more offers
"busy"; the first offer stays, and all of them read the same word. A store's `add` and `compare_set` are atomic, and
that is all it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError, StoreSilentError
from fanin.host.session.leased import BallotOverError
from fanin.host.torch.meeting.side_store import SideStore

ENDED, BUSY = b"ended", b"busy"

Answer = TypeVar("Answer")


class StoreBallot:
    """A `Ballot` of the `size` ranks of one job."""

    def __init__(self, store: SideStore, job_name: str, rank: int, size: int) -> None:
        self._store, self._job_name, self._rank, self._size = store, job_name, rank, size

    def idle(self, lease: int, count: int) -> bool:
        """Vote for the end, as `Ballot.idle` does."""
        number, word = self._keys(lease, count)

        def ask(store: c10d.Store) -> bool:
            if store.add(number, 1) < self._size:
                return False
            return _settled(store, word, ENDED) == ENDED

        return self._asked(ask)

    def has_ended(self, lease: int, count: int) -> bool | None:
        """Read the result, as `Ballot.has_ended` does."""
        _, word = self._keys(lease, count)

        def ask(store: c10d.Store) -> bool | None:
            return bytes(store.get(word)) == ENDED if store.check([word]) else None

        return self._asked(ask)

    def goes_on(self, lease: int, count: int) -> bool:
        """Vote against the end, as `Ballot.goes_on` does."""
        _, word = self._keys(lease, count)
        return self._asked(lambda store: _settled(store, word, BUSY) == BUSY)

    def _keys(self, lease: int, count: int) -> tuple[str, str]:
        place = f"fanin/lease/{self._job_name}/{lease}/{count}"
        return f"{place}/idle", f"{place}/word"

    def _asked(self, ask: Callable[[c10d.Store], Answer]) -> Answer:
        try:
            return self._store.ask(self._rank, ask)
        except StoreSilentError as error:
            kind = BallotOverError if error.ended else FaninError
            raise kind(
                f"job {self._job_name!r} had been idle, and its ranks cannot agree to go on: {error}, or "
                "FANIN_IDLE_RETURN_S=0, with which groups keep their jobs"
            ) from error


def _settled(store: c10d.Store, word: str, offer: bytes) -> bytes:
    """Set the word to `offer` unless it is set already; returns the word."""
    return bytes(store.compare_set(word, "", offer.decode()))
