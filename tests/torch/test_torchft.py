"""torchft's process group over fanin: a group for each quorum, whose futures are complete when they are asked for.

Against torchft itself where it is installed, and against a stand-in for its base class, which is all that we use of it.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import fanin.host.torch
from fanin.errors import ConfigurationError
from fanin.options import Options
from tests.support.processes import on_every
from tests.support.services import a_service, address_of

SIZE = 2
TIMEOUT = timedelta(seconds=60)
MODULE = "fanin.host.torch.training.torchft_group"
_quorums = count(1)


class StandIn:
    """torchft's ProcessGroupWrapper (0.2), as far as this needs it: the store is given, not connected to."""

    def __init__(self, timeout: timedelta, pg: Any = None) -> None:
        self._pg, self._timeout = pg, timeout
        self._quorum_id: int | None = None
        self._group_rank: int | None = None

    def configure(self, store: c10d.Store, replica_id: str, rank: int, world_size: int, quorum_id: int) -> None:
        self._quorum_id, self._group_rank = quorum_id, 0
        self.abort()
        self._pg = self._create_pg(store, rank, world_size)

    def _create_pg(self, store: c10d.Store, rank: int, world_size: int) -> Any:
        raise NotImplementedError

    def abort(self) -> None:
        if self._pg is not None:
            self._pg.abort()
            self._pg = None

    def shutdown(self) -> None:
        self._pg = None

    def allreduce(self, tensors: list[torch.Tensor], opts: object) -> Any:
        return self._pg.allreduce(tensors, opts)


@pytest.fixture(params=["stand-in", "torchft"])
def group_type(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "torchft":
        pytest.importorskip("torchft", reason="torchft is not installed: pip install 'fanin[torchft]'")
    else:
        package, module = types.ModuleType("torchft"), types.ModuleType("torchft.process_group")
        module.ProcessGroupWrapper = StandIn  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torchft", package)
        monkeypatch.setitem(sys.modules, "torchft.process_group", module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield fanin.host.torch.ProcessGroupFanin
    sys.modules.pop(MODULE, None)


@pytest.fixture(scope="module")
def options() -> Iterator[Options]:
    """For a switch in this process."""
    with a_service(schemes=("udp",), memory_bytes=256 << 20) as service:
        yield Options(switch=str(address_of(service)))


def configured(groups: list[Any], server: c10d.TCPStore) -> None:
    """A new quorum of all of them."""
    quorum = next(_quorums)

    def configure(rank: int) -> None:
        if isinstance(groups[rank], StandIn):
            client = c10d.TCPStore("127.0.0.1", server.port, is_master=False)
            groups[rank].configure(c10d.PrefixStore(f"quorum{quorum}", client), f"r{rank}", rank, SIZE, quorum)
        else:
            where = f"127.0.0.1:{server.port}/quorum{quorum}"
            groups[rank].configure(where, f"r{rank}", rank, SIZE, quorum_id=quorum, group_rank=0, group_world_size=1)

    on_every(configure, range(SIZE))


def test_a_group_of_each_quorum_sums_and_its_futures_are_complete_and_in_order(
    group_type: Any, options: Options
) -> None:
    server = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = [group_type(TIMEOUT, options) for _ in range(SIZE)]
    assert {group.getBackendName() for group in groups} == {"torchft-fanin"}

    def train(rank: int) -> None:
        seen: list[tuple[int, float, threading.Thread]] = []
        for step in range(20):
            tensor = torch.full((4,), rank + 1.0)
            future = groups[rank].allreduce([tensor], c10d.AllreduceOptions()).get_future()
            assert future.done()
            future.then(
                lambda _, step=step, tensor=tensor: seen.append((step, float(tensor[0]), threading.current_thread()))
            )
        assert seen == [(step, 3.0, threading.current_thread()) for step in range(20)]

    for _ in range(2):
        configured(groups, server)
        on_every(train, range(SIZE))
    for group in groups:
        group.shutdown()


def test_it_takes_options_but_for_the_order_of_futures(group_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_LANES", "8")
    monkeypatch.delenv("FANIN_ORDERED_FUTURES", raising=False)
    assert group_type()._options == Options.from_environment({"FANIN_LANES": "8", "FANIN_ORDERED_FUTURES": "1"})
    given = Options(ordered_futures=False, lanes=16)
    assert group_type(TIMEOUT, given)._options == Options(ordered_futures=True, lanes=16)


def test_without_torchft_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    monkeypatch.delitem(sys.modules, "torchft.process_group", raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install 'fanin\[torchft\]'"):
        _ = fanin.host.torch.ProcessGroupFanin
    bases = importlib.import_module("fanin.host.torch").FaninProcessGroup.__mro__
    assert dist.ProcessGroup in bases
    assert not any(each.__module__.startswith("torchft") for each in bases)
