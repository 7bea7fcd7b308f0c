"""Ranks that are threads of one process, in groups that nothing of torch.distributed holds: as torchft has them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, ConfigurationError, FaninError, JoinTimeoutError, WorkerLostError
from fanin.host.session.session import Session
from fanin.host.torch import FaninProcessGroup
from fanin.host.torch.collectives.process_group import _abandon
from fanin.options import Options
from tests.support.frames import in_module
from tests.support.processes import DEADLINE_S, in_thread, until
from tests.support.services import a_service, address_of
from tests.torch.groups import LONG, SIZE, Groups, groups_of, make_groups, on_every_rank

BRIEF = timedelta(milliseconds=10)
DROPPING = """
import atexit

sessions = []
atexit.register(lambda: print([session._over.is_set() for session in sessions]))  # after fanin's own

from tests.torch.groups import make_groups

groups = make_groups(None)
sessions += [group.session for group in groups]
groups.clear()
"""


@pytest.fixture(scope="module")
def options() -> Iterator[Options]:
    """For a switch in this process."""
    with a_service(schemes=("udp",), memory_bytes=256 << 20) as service:
        yield Options(switch=str(address_of(service)))


def summed(groups: Groups, dtype: torch.dtype = torch.float32) -> list[float]:
    def run(rank: int) -> float:
        tensor = torch.full((5,), rank + 1, dtype=dtype)
        groups[rank].allreduce([tensor], dist.ReduceOp.SUM).wait()
        return float(tensor[0])

    return on_every_rank(run)  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["by the switch", "by gloo"])
def test_an_operator_may_be_the_bare_member_of_torchs_enum(options: Options, dtype: torch.dtype) -> None:
    with groups_of(options) as groups:
        assert summed(groups, dtype) == [6.0] * SIZE

        def scattered(rank: int) -> list[float]:
            part = torch.empty(2, dtype=dtype)
            whole = [torch.full((2,), each, dtype=dtype) for each in range(SIZE)]
            groups[rank].reduce_scatter([part], [whole], dist.ReduceOp.SUM).wait()
            return [float(value) for value in part]

        assert on_every_rank(scattered) == [[3.0 * rank] * 2 for rank in range(SIZE)]


def test_joining_waits_for_others_no_longer_than_the_groups_timeout(options: Options) -> None:
    with pytest.raises(JoinTimeoutError, match="timeout after 10ms") as caught:
        FaninProcessGroup(c10d.HashStore(), 0, 2, BRIEF, group_name="alone", options=options)
    assert caught.value.missing == (1,)


def test_joining_waits_for_rank_0_no_longer_than_the_groups_timeout(options: Options) -> None:
    with pytest.raises(dist.DistStoreError):
        FaninProcessGroup(c10d.HashStore(), 1, 2, BRIEF, group_name="alone", options=options)


def wait_for_all(group: FaninProcessGroup, dtype: torch.dtype) -> None:
    group.allreduce([torch.ones(5, dtype=dtype)], dist.ReduceOp.SUM).wait()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["by the switch", "by gloo"])
@pytest.mark.parametrize("how", ["dropped", "shut down", "aborted"])
def test_a_rank_whose_group_is_gone_is_not_waited_for(options: Options, dtype: torch.dtype, how: str) -> None:
    with groups_of(options) as groups:
        assert summed(groups, dtype) == [6.0] * SIZE
        if how == "dropped":
            groups.pop()
        elif how == "shut down":
            groups[-1].shutdown()
        else:
            groups[-1].abort()
        waits = [in_thread(partial(wait_for_all, groups[rank], dtype)) for rank in range(SIZE - 1)]
        for wait in waits:
            with pytest.raises(WorkerLostError, match="Connection closed by peer"):
                wait.result(DEADLINE_S)


def test_a_group_that_was_shut_down_says_so(options: Options) -> None:
    with groups_of(options) as groups:
        groups[1].shutdown()
        for dtype in (torch.float32, torch.int64):
            with pytest.raises(FaninError, match=r"closed|has left"):
                wait_for_all(groups[1], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["by the switch", "by gloo"])
def test_a_timeout_that_is_set_holds_for_waits_that_begin_later(options: Options, dtype: torch.dtype) -> None:
    with groups_of(options) as groups:
        work = groups[0].allreduce([torch.ones(5, dtype=dtype)], dist.ReduceOp.SUM)
        groups[0].set_timeout(BRIEF)
        with pytest.raises(CollectiveTimeoutError, match=r"Timed out waiting .* timed out after 10ms"):
            work.wait()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["by the switch", "by gloo"])
def test_a_collectives_own_timeout_stays_whatever_is_set(options: Options, dtype: torch.dtype) -> None:
    with groups_of(options) as groups:
        given = c10d.AllreduceOptions()
        given.timeout = timedelta(milliseconds=20)
        work = groups[0].allreduce([torch.ones(5, dtype=dtype)], given)
        groups[0].set_timeout(LONG)
        with pytest.raises(CollectiveTimeoutError, match="timed out after 20ms"):
            work.wait()


@pytest.mark.processes
def test_groups_that_start_their_own_switch_follow_each_other_in_one_process() -> None:
    for _ in range(2):
        with groups_of(None) as groups:
            addresses = {str(group.switch) for group in groups}
            assert len(addresses) == 1
            assert summed(groups) == [6.0] * SIZE


def test_a_group_that_nobody_holds_leaves_its_job(options: Options) -> None:
    groups = make_groups(options)
    sessions = [group.session for group in groups]
    groups.clear()
    until(lambda: all(isinstance(session, Session) and session._over.is_set() for session in sessions))


def test_a_group_that_nobody_holds_is_no_error_where_no_thread_can_be_started(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_module("threading")
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with groups_of(options) as groups, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        _abandon(groups[0]._resources)


@pytest.mark.processes
def test_a_program_that_ends_waits_until_the_groups_that_it_dropped_have_left() -> None:
    done = subprocess.run([sys.executable, "-c", DROPPING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[True, True, True]\n"), done.stderr


def test_a_rank_that_refuses_its_codec_has_told_no_other_rank_of_itself() -> None:
    """Nobody has then begun to connect to it, to be cut off when it leaves."""
    store = c10d.HashStore()
    before = store.num_keys()
    for codec in ("low_rank", "by_layer:8", "none", "rotated:8/4"):
        with pytest.raises(ConfigurationError):
            FaninProcessGroup(store, 0, SIZE, LONG, group_name="refused", options=Options(codec=codec))
        assert store.num_keys() == before, codec
