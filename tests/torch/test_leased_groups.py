"""Groups within a world join their job at their first sum and give it back when they are idle: ranks in threads."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import count

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import (
    AdmissionError,
    CollectiveTimeoutError,
    JoinTimeoutError,
    StoreSilentError,
    WorkerLostError,
)
from fanin.host.session.control import ask
from fanin.host.session.leased import LeasedSession
from fanin.host.torch import FaninProcessGroup
from fanin.host.torch.meeting import side_store
from fanin.host.torch.meeting.side_store import SideStore, side_of
from fanin.options import Options
from fanin.protocol import control
from tests.support.processes import DEADLINE_S, in_thread, until
from tests.support.services import OPERATOR, a_service, address_of
from tests.torch.groups import LONG, SIZE, Groups, groups_of, on_every_rank

SECRET = "the secret of these tests"
IDLE_S = 0.01
SERVING = """
import sys
from torch._C import _distributed_c10d as c10d
store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
_names = count()


@pytest.fixture(scope="module")
def options() -> Iterator[Options]:
    """For a switch in this process."""
    with a_service(schemes=("udp",), memory_bytes=256 << 20) as service:
        yield Options(switch=str(address_of(service)), secret=SECRET, idle_return_s=0)


@contextlib.contextmanager
def leased_groups(
    options: Options, timeout: timedelta = LONG, *, of_rank: tuple[Options, ...] = (), worlds: Groups | None = None
) -> Iterator[Groups]:
    """Groups as new_group makes them."""
    store, name = c10d.HashStore(), f"leased{next(_names)}"

    def make(rank: int) -> FaninProcessGroup:
        own, world = of_rank[rank] if of_rank else options, None if worlds is None else worlds[rank]
        place = c10d.PrefixStore(name, store)
        return FaninProcessGroup(
            place, rank, SIZE, timeout, group_name=name, global_ranks=range(SIZE), options=own, world=world
        )

    groups: Groups = on_every_rank(make)  # type: ignore[assignment]
    try:
        yield groups
    finally:
        on_every_rank(lambda rank: groups[rank].shutdown())


def sum_on_every_rank(groups: Groups) -> list[float]:
    def run(rank: int) -> float:
        tensor = torch.full((5000,), rank + 1.0)
        groups[rank].allreduce([tensor]).wait()
        return float(tensor[0])

    return on_every_rank(run)  # type: ignore[return-value]


def jobs_at_the_switch(groups: Groups) -> list[str]:
    answer = ask(groups[0].switch, control.Ask(), timeout_s=DEADLINE_S, credentials=OPERATOR)
    assert isinstance(answer, control.Stats)
    return [job.name for job in answer.jobs if job.name.startswith(groups[0].job_name) and job.state == "running"]


def session_of(group: FaninProcessGroup) -> LeasedSession:
    assert isinstance(group.session, LeasedSession)
    return group.session


def test_a_group_costs_nothing_at_the_switch_until_it_sums(options: Options) -> None:
    with leased_groups(options) as groups:

        def pass_on(rank: int) -> None:
            if rank == 0:
                groups[0].send([torch.ones(3)], 1, 0).wait()
            elif rank == 1:
                groups[1].recv([torch.zeros(3)], 0, 0).wait()

        on_every_rank(pass_on)
        assert jobs_at_the_switch(groups) == []
        assert "not yet joined" in groups[0].describe()
        assert sum_on_every_rank(groups) == [6.0] * SIZE
        assert len(jobs_at_the_switch(groups)) == 1
        assert "words per packet" in groups[0].describe()
        assert groups[0].counters()["engine.leases"] == 1


def test_an_idle_group_gives_its_job_back_and_sums_again_later(options: Options) -> None:
    with leased_groups(dataclasses.replace(options, idle_return_s=IDLE_S)) as groups:
        for lease in (1, 2, 3):
            assert sum_on_every_rank(groups) == [6.0] * SIZE
            until(lambda: jobs_at_the_switch(groups) == [])
            until(lambda: all("given back" in group.describe() for group in groups))
            assert all(session_of(group).counters()["leases"] == lease for group in groups)
            assert all(session_of(group).failure is None for group in groups)


def test_a_rank_that_sums_while_the_others_are_idle_waits_for_them_in_the_same_job(options: Options) -> None:
    with leased_groups(dataclasses.replace(options, idle_return_s=IDLE_S), of_rank=(
        dataclasses.replace(options, idle_return_s=0.0),
        *[dataclasses.replace(options, idle_return_s=IDLE_S)] * (SIZE - 1),
    )) as groups:  # fmt: skip
        assert sum_on_every_rank(groups) == [6.0] * SIZE
        until(lambda: session_of(groups[1])._state.name == "IDLE")
        assert sum_on_every_rank(groups) == [6.0] * SIZE
        assert [session_of(group).counters()["leases"] for group in groups] == [1] * SIZE


def test_sums_may_be_started_in_an_order_of_groups_that_differs_between_ranks(options: Options) -> None:
    with leased_groups(options) as first, leased_groups(options) as second:

        def run(rank: int) -> list[float]:
            mine = [first[rank], second[rank]]
            tensors = [torch.full((4000,), rank + 1.0), torch.full((4000,), 10.0)]
            order = (0, 1) if rank else (1, 0)
            works = {index: mine[index].allreduce([tensors[index]]) for index in order}
            for index in reversed(order):
                works[index].wait()
            return [float(tensor[-1]) for tensor in tensors]

        assert on_every_rank(run) == [[6.0, 30.0]] * SIZE


def test_a_sum_that_not_every_rank_begins_times_out_and_says_that_it_joins(options: Options) -> None:
    with leased_groups(options) as groups:
        tensor = torch.ones(5000)
        work = groups[0].allreduce([tensor])
        with pytest.raises(CollectiveTimeoutError, match="is joined at its first sum"):
            work.wait(timedelta(milliseconds=5))


def test_ranks_that_never_join_are_named_by_the_first_sum(options: Options) -> None:
    with leased_groups(dataclasses.replace(options, join_timeout_s=1.0)) as groups:
        work = groups[0].allreduce([torch.ones(5000)])
        with pytest.raises(JoinTimeoutError, match=r"all_reduce on rank 0 .*timeout after 1000ms") as caught:
            work.wait(LONG)
        assert caught.value.missing == (1, 2)
        with pytest.raises(JoinTimeoutError):
            groups[0].allreduce([torch.ones(5000)])


def test_a_switch_that_refuses_is_told_by_the_first_sum(options: Options) -> None:
    with leased_groups(dataclasses.replace(options, words_per_packet=16352, slots=65536)) as groups:

        def run(rank: int) -> str:
            with pytest.raises(AdmissionError, match="all_reduce on rank") as caught:
                groups[rank].allreduce([torch.ones(5000)]).wait()
            return type(caught.value).__name__

        assert on_every_rank(run) == ["AdmissionError"] * SIZE


def test_a_group_that_is_left_while_it_joins_leaves_no_thread(options: Options) -> None:
    with leased_groups(options) as groups:
        work = groups[0].allreduce([torch.ones(5000)])
        groups[0].shutdown()
        with pytest.raises(RuntimeError, match="closed"):
            work.wait()
    until(lambda: not any(thread.name == "fanin-join" for thread in threading.enumerate()))


def test_a_leased_group_takes_every_collective(options: Options) -> None:
    with leased_groups(options) as groups:

        def run(rank: int) -> list[float]:
            group = groups[rank]
            group.barrier().wait()
            part = torch.empty(1000)
            group.reduce_scatter_single(part, torch.full((3000,), rank + 1.0)).wait()
            mean = torch.full((2000,), rank + 1.0)
            group.allreduce([mean], dist.ReduceOp.AVG).wait()
            largest = torch.tensor([rank])
            group.allreduce([largest], dist.ReduceOp.MAX).wait()
            return [float(part[0]), float(mean[0]), float(largest[0])]

        assert on_every_rank(run) == [[6.0, 2.0, 2.0]] * SIZE


def test_a_rank_that_is_lost_ends_waits_on_gloo_of_a_group_that_has_not_joined(options: Options) -> None:
    with groups_of(options) as worlds, leased_groups(options, worlds=worlds) as groups:
        wait = in_thread(lambda: groups[0].recv([torch.ones(3)], 2, 0).wait())
        worlds[0].allreduce([torch.ones(5000)])  # a rank that leaves is missed by who waits for it
        worlds[2].shutdown()
        with pytest.raises(WorkerLostError, match="noticed by the world's group") as caught:
            wait.result(DEADLINE_S)
        assert caught.value.ranks == (2,)
        assert jobs_at_the_switch(groups) == []


@contextlib.contextmanager
def served_elsewhere(options: Options) -> Iterator[tuple[Groups, subprocess.Popen[str]]]:
    """Groups as new_group makes them, whose store is served by a process that is none of their ranks."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            stores = [c10d.TCPStore("127.0.0.1", port, is_master=False, timeout=LONG) for _ in range(SIZE)]
            name = f"leased{next(_names)}"

            def make(rank: int) -> FaninProcessGroup:
                place = c10d.PrefixStore(name, stores[rank])
                return FaninProcessGroup(
                    place, rank, SIZE, LONG, group_name=name, global_ranks=range(SIZE), options=options
                )

            groups: Groups = on_every_rank(make)  # type: ignore[assignment]
            try:
                yield groups, server
            finally:
                on_every_rank(lambda rank: groups[rank].shutdown())
        finally:
            server.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_first_sum_needs_no_process_that_serves_the_store(options: Options, number: signal.Signals) -> None:
    """The process may be a rank that is no member, and has left; gloo, connected when a group is made, sums too."""
    with served_elsewhere(options) as (groups, server):
        server.send_signal(number)
        if number is signal.SIGKILL:
            server.wait(DEADLINE_S)
        assert sum_on_every_rank(groups) == [6.0] * SIZE
        assert sum_on_every_rank(groups) == [6.0] * SIZE


def test_an_idle_group_keeps_its_job_where_nobody_serves_the_store_any_more(options: Options) -> None:
    with served_elsewhere(dataclasses.replace(options, idle_return_s=IDLE_S)) as (groups, server):
        server.kill()
        server.wait(DEADLINE_S)
        assert sum_on_every_rank(groups) == [6.0] * SIZE
        until(lambda: all(session_of(group)._idle_s == math.inf for group in groups))
        assert sum_on_every_rank(groups) == [6.0] * SIZE
        assert all(group.counters()["engine.leases"] == 1 for group in groups)


def test_all_groups_of_a_process_ask_over_one_connection(options: Options) -> None:
    store = c10d.HashStore()
    assert side_of(c10d.PrefixStore("a", store)) is side_of(c10d.PrefixStore("b", c10d.PrefixStore("c", store)))
    kept = side_of(store)
    assert kept is not None
    assert side_of(c10d.PrefixStore("d", store)) is kept


SILENT = r"^rank 1: the store at 127\.0\.0\.1:\d+ through .* does not answer .*Remedy: see its output$"


def test_a_store_whose_answer_does_not_come_is_said_to_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_store, "ANSWER_TIMEOUT_S", 0.01)
    side, go_on = SideStore(c10d.TCPStore("127.0.0.1", 0, is_master=True)), threading.Event()
    for _ in range(2):  # the second time, because of the first question
        with pytest.raises(StoreSilentError, match=SILENT) as caught:
            side.ask(1, lambda _store: go_on.wait(DEADLINE_S))
        assert not caught.value.ended
    go_on.set()
    until(lambda: not side._asking.locked())
    assert side.ask(1, lambda store: store.add("n", 1)) == 1
