"""An exception that a signal handler raises while a rank waits reaches the program: same type, same instance.

Ranks are threads of this process; rank 0 is the main thread, where Python runs signal handlers.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, SwitchUnreachableError, WorkerLostError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.host.torch import FaninProcessGroup
from fanin.options import Options, SwitchAddress
from tests.support.processes import in_thread, join_all, on_every, reduction, until
from tests.support.services import a_service, address_of
from tests.torch.groups import LONG, SIZE, Groups, groups_of

NUMBER = signal.SIGUSR1
SOON_S = 0.05
"""Until a signal comes: by then the main thread waits, and nothing is wrong where it does not."""
_names = count()


class TimeIsUpError(Exception):
    """An exception of the program's own."""


RAISED: list[Callable[[], Exception]] = [
    lambda: TimeIsUpError("connection closed: Timed out"),
    lambda: RuntimeError("Timed out waiting; connection reset, closed by peer"),
    lambda: TimeoutError("mine"),
    lambda: ConnectionError("closed"),
    lambda: WorkerLostError((1,), "of another library that uses these types"),
    lambda: CollectiveTimeoutError(""),
]


def interrupted(
    error: Exception,
    body: Callable[[], object],
    *,
    when: Callable[[], bool] = lambda: True,
    then: Callable[[], object] | None = None,
) -> None:
    """`body` waits, and a handler raises `error` meanwhile, which must come out of it as it is.

    The signal comes soon after `when` holds. `then` lets the wait end, for waits in C++ that no signal ends.
    """

    def handler(*_: object) -> None:
        raise error

    def send() -> None:
        until(when)
        threading.Event().wait(SOON_S)
        os.kill(os.getpid(), NUMBER)
        if then is not None:
            then()

    def wait() -> None:
        sender.start()
        body()

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(NUMBER, handler)
    sender = threading.Thread(target=send, daemon=True)
    try:
        with pytest.raises(type(error)) as caught:
            wait()
        assert caught.value is error
        assert error.__cause__ is None
    finally:
        sender.join()
        signal.signal(NUMBER, before)


def begun(group: FaninProcessGroup, name: str, count: int) -> Callable[[], bool]:
    """Whether the group has begun so many collectives of that name."""
    return lambda: group.counters().get(name, 0) >= count


@pytest.fixture(scope="module", params=["udp-native", "udp-twin", "zmq"])
def options(request: pytest.FixtureRequest) -> Iterator[Options]:
    """For a switch in this process."""
    scheme, _, engine = request.param.partition("-")
    with a_service(schemes=(scheme,), memory_bytes=256 << 20) as service:
        yield Options(switch=str(address_of(service, scheme)), native=False if engine == "twin" else None)


@pytest.fixture(scope="module")
def native() -> Iterator[Options]:
    """For a switch in this process, by native loops alone."""
    with a_service(schemes=("udp",), memory_bytes=256 << 20) as service:
        yield Options(switch=str(address_of(service)))


def sum_of(group: FaninProcessGroup, dtype: torch.dtype = torch.float32, *, waits: bool = False) -> dist.Work:
    given = c10d.AllreduceOptions()
    if waits:
        given.asyncOp = False
    return group.allreduce([torch.ones(5, dtype=dtype)], given)


def the_others_come(groups: Groups, act: Callable[[FaninProcessGroup], object]) -> Callable[[], None]:
    def come() -> None:
        for waited in [in_thread(partial(act, group)) for group in groups[1:]]:
            waited.result(30)

    return come


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_a_sum_that_is_waited_for_and_the_group_goes_on(options: Options, make: Callable[[], Exception]) -> None:
    with groups_of(options) as groups:
        group = groups[0]
        interrupted(make(), lambda: sum_of(group, waits=True).wait(), when=begun(group, "switch.all_reduce", 1))
        work = sum_of(group)
        interrupted(make(), work.wait)
        assert work.exception() is None
        interrupted(make(), lambda: group.barrier().wait(), when=begun(group, "switch.barrier", 1))
        the_others_come(groups, lambda other: [sum_of(other), sum_of(other), other.barrier().wait()])()
        work.wait()
        assert work.is_success()


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_waits_for_gloo(native: Options, make: Callable[[], Exception]) -> None:
    with groups_of(native) as groups:
        group, come = groups[0], the_others_come(groups, lambda other: sum_of(other, torch.int64).wait())
        work = sum_of(group, torch.int64)
        interrupted(make(), work.wait, then=come)
        received = group.recv([torch.ones(3)], 1, 0)
        interrupted(make(), received.wait, then=lambda: groups[1].send([torch.ones(3)], 0, 0).wait())
        of_anyone = group.recv_anysource([torch.ones(3)], 0)
        interrupted(make(), of_anyone.wait)
        groups[1].send([torch.ones(3)], 0, 0).wait()
        of_anyone.wait()
        group._start_coalescing(torch.device("cpu"))
        sum_of(group, torch.int64)
        together = group._end_coalescing(torch.device("cpu"))
        interrupted(make(), together.wait, then=come)


def test_futures_that_wait_where_they_are_asked_for(native: Options) -> None:
    with groups_of(dataclasses.replace(native, ordered_futures=True)) as groups:
        work = sum_of(groups[0])
        interrupted(TimeIsUpError(), work.get_future)
        the_others_come(groups, lambda other: sum_of(other).wait())()
        assert work.get_future().wait()


def test_a_first_sum_that_waits_for_others_to_join(native: Options) -> None:
    store, name = c10d.HashStore(), f"leased{next(_names)}"

    def make(rank: int) -> FaninProcessGroup:
        place = c10d.PrefixStore(name, store)
        return FaninProcessGroup(place, rank, SIZE, LONG, group_name=name, global_ranks=range(SIZE), options=native)

    groups: Groups = on_every(make, range(SIZE))
    try:
        group = groups[0]
        interrupted(
            TimeIsUpError(), lambda: sum_of(group, waits=True).wait(), when=begun(group, "switch.all_reduce", 1)
        )
        the_others_come(groups, lambda other: sum_of(other))()
        for work in [sum_of(each) for each in groups]:
            work.wait()
    finally:
        for each in groups:
            each.shutdown()


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_joining(options: Options, make: Callable[[], Exception]) -> None:
    name = f"alone{next(_names)}"
    interrupted(make(), lambda: FaninProcessGroup(c10d.HashStore(), 0, 2, LONG, group_name=name, options=options))


def test_a_group_that_may_fall_back_to_gloo(native: Options) -> None:
    with groups_of(dataclasses.replace(native, fallback="gloo")) as groups:
        work = sum_of(groups[0])
        for make in RAISED:
            interrupted(make(), work.wait)
        the_others_come(groups, lambda other: sum_of(other).wait())()
        work.wait()


def looked_for(connect_timeout_s: float) -> Session:
    """A switch where there is none."""
    return Session.join(JoinTerms(
        options=Options(connect_timeout_s=connect_timeout_s), switch=SwitchAddress.parse("udp://127.0.0.1:9"),
        job_name="nobody", rank=0, size=2,
    ))  # fmt: skip


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_a_switch_that_is_looked_for(make: Callable[[], Exception]) -> None:
    interrupted(make(), lambda: looked_for(60))


def test_an_error_of_ours_is_no_interruption() -> None:
    with pytest.raises(SwitchUnreachableError, match="no switch answers"):
        looked_for(0.1)


def test_a_session_without_torch() -> None:
    with a_service(schemes=("udp",)) as service:
        sessions = join_all(address_of(service), f"s{next(_names)}", 2, Options())
        own, summed = reduction(np.ones(5, np.float32))
        ticket = sessions[0].submit(own)
        interrupted(TimeIsUpError(), lambda: sessions[0].wait(ticket, 60))
        sessions[1].submit(reduction(np.ones(5, np.float32))[0])
        sessions[0].wait(ticket, 60)
        assert list(summed) == [2.0] * 5
        for session in sessions:
            session.close()


def test_a_session_that_leaves_lets_it_through_and_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_service(schemes=("udp",)) as service:
        sessions = join_all(address_of(service), f"s{next(_names)}", 2, Options(native=False))
        error, leave = TimeIsUpError(), sessions[0]._engine.leave

        def interrupted_leave(timeout_s: float) -> bool:
            leave(timeout_s)
            raise error

        monkeypatch.setattr(sessions[0]._engine, "leave", interrupted_leave)
        with pytest.raises(TimeIsUpError) as caught:
            sessions[0].close()
        assert caught.value is error
        assert sessions[0]._engine.failed
        sessions[1].close()


def test_what_gloo_raises_is_still_explained(native: Options) -> None:
    with groups_of(native) as groups:
        groups[1].shutdown()
        with pytest.raises(WorkerLostError, match="Connection closed by peer"):
            sum_of(groups[0], torch.int64).wait()
