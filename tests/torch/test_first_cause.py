"""The first cause of a failure, told through a store that answers at once, late or never."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError, StoreSilentError, WorkerLostError
from fanin.host.torch.collectives import first_cause
from fanin.host.torch.collectives.first_cause import FirstCause

DIED = WorkerLostError((1,), "rank 1 died")
LEFT = WorkerLostError((0,), "rank 0 left")
BUSY = StoreSilentError("no answer for 2 s")
ENDED = StoreSilentError("Connection reset by peer", ended=True)


class Side:
    """A second connection to a store whose first answers are these errors."""

    def __init__(self, store: c10d.Store, *first: StoreSilentError) -> None:
        self._store, self._first = store, deque(first)

    def ask(self, _rank: int, question: Callable[[c10d.Store], Any]) -> Any:
        if self._first:
            raise self._first.popleft()
        return question(self._store)


@pytest.fixture
def cause_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FirstCause]:
    """A rank's FirstCause over a store, by what its session knows and by the errors that the store begins with."""
    monkeypatch.setattr(first_cause, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(first_cause, "NAMING_TIMEOUT_S", 0.1)

    def made(store: c10d.Store, failure: FaninError | None, *first: StoreSilentError) -> FirstCause:
        monkeypatch.setattr(first_cause, "asked_at", lambda _: Side(store, *first))
        failures: Any = SimpleNamespace(failure=failure, rank=0)
        return FirstCause(store, "job", failures)

    return made


@pytest.mark.parametrize("silences", [0, 1, 7])
def test_a_rank_that_meets_a_consequence_learns_the_cause_though_the_store_is_slow(
    cause_at: Callable[..., FirstCause], silences: int
) -> None:
    store = c10d.HashStore()
    assert cause_at(store, DIED).found(None) is DIED
    found = cause_at(store, None, *[BUSY] * silences).found(LEFT)
    assert isinstance(found, WorkerLostError)
    assert (found.ranks, str(found)) == (DIED.ranks, str(DIED))


def test_a_rank_tells_its_own_error_where_nobody_has_told_a_cause(cause_at: Callable[..., FirstCause]) -> None:
    store = c10d.HashStore()
    assert cause_at(store, None).found(None) is None
    assert cause_at(store, None).found(LEFT) is LEFT
    told = cause_at(store, DIED).found(None)
    assert isinstance(told, WorkerLostError)
    assert told.ranks == LEFT.ranks, "the first one that is told stays"


def test_a_store_that_has_ended_is_not_asked_again(cause_at: Callable[..., FirstCause]) -> None:
    store = c10d.HashStore()
    cause_at(store, DIED).found(None)
    assert cause_at(store, None, ENDED).found(LEFT) is LEFT
