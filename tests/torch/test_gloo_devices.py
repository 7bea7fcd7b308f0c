"""All groups of a process share gloo's devices, each of which has a thread and a port."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C import _distributed_c10d as c10d

from fanin.host.torch.gloo.gloo_devices import Devices, SharedDevices
from fanin.host.torch.meeting.reachable import GLOO_INTERFACES


def test_groups_share_devices_for_as_long_as_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GLOO_INTERFACES, raising=False)
    shared = SharedDevices()
    first = shared.open()
    assert shared.open() is first
    monkeypatch.setenv(GLOO_INTERFACES, "lo")
    of_loopback = shared.open()
    assert of_loopback is not first
    assert shared.open() is of_loopback
    group = first.group(c10d.HashStore(), 0, 1, timedelta(seconds=7))
    assert group.options._timeout == timedelta(seconds=7)
    assert list(first.groups) == [group]
    shared.forget()
    assert shared.open() is not of_loopback


class _SlowStore(c10d.Store):
    """A store whose every answer is followed by a call of `answered`."""

    def __init__(self, store: c10d.Store, answered: Callable[[], object]) -> None:
        super().__init__()
        self._store, self._answered = store, answered

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        answer = self._store.get(key)
        self._answered()
        return answer

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=30)) -> None:
        self._store.wait(keys, timeout)


@pytest.mark.parametrize("slow", range(3))  # by the last one, which asks all others, nobody is asked
def test_a_rank_that_leaves_a_group_at_once_fails_no_rank_that_still_connects(slow: int) -> None:
    size, store = 4, c10d.HashStore()
    devices = [Devices("lo") for _ in range(size)]
    left = threading.Event()

    def make_and_leave(rank: int) -> None:
        own: c10d.Store = store
        if rank == slow:  # it connects once others have left, or, where they do not before it has, a little later
            own = _SlowStore(store, lambda: left.wait(0.1))
        devices[rank].group(own, rank, size, timedelta(seconds=30))
        left.set()

    with ThreadPoolExecutor(size) as ranks:
        list(ranks.map(make_and_leave, range(size)))
