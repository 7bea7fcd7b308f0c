"""What a signal handler raises while a rank waits reaches the program as it is: same type, same instance.

Ranks are threads of this process; rank 0 is the main thread, where Python runs signal handlers.
"""

from __future__ import annotations

import contextlib
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
from fanin.host.session.session import Session
from fanin.host.torch import FaninProcessGroup
from fanin.options import Options
from tests.support.processes import in_thread, join_all, on_every, reduction
from tests.support.services import a_service, address_of
from tests.torch.groups import LONG, SIZE, Groups, groups_of

NUMBER = signal.SIGUSR1
SOON_S = 0.05
"""Until a signal comes: by then the main thread waits, and nothing is wrong where it does not."""
_names = count()


class TimeIsUpError(Exception):
    """A program's own."""


RAISED: list[Callable[[], Exception]] = [
    lambda: TimeIsUpError("connection closed: Timed out"),
    lambda: RuntimeError("Timed out waiting; connection reset, closed by peer"),
    lambda: TimeoutError("mine"),
    lambda: ConnectionError("closed"),
    lambda: WorkerLostError((1,), "of another library that uses these types"),
    lambda: CollectiveTimeoutError(""),
]


@contextlib.contextmanager
def interrupted(error: Exception, then: Callable[[], object] | None = None) -> Iterator[None]:
    """The body waits, and a handler raises `error` meanwhile, which must come out of it. `then` lets the wait end."""

    def handler(*_: object) -> None:
        raise error

    def send() -> None:
        os.kill(os.getpid(), NUMBER)
        if then is not None:
            then()

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(NUMBER, handler)
    timer = threading.Timer(SOON_S, send)
    timer.start()
    try:
        with pytest.raises(type(error)) as caught:
            yield
        assert caught.value is error
        assert error.__cause__ is None
    finally:
        timer.join()
        signal.signal(NUMBER, before)


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
        with interrupted(make()):
            sum_of(groups[0], waits=True).wait()
        work = sum_of(groups[0])
        with interrupted(make()):
            work.wait()
        assert work.exception() is None
        with interrupted(make()):
            groups[0].barrier().wait()
        come = the_others_come(groups, lambda group: [sum_of(group), sum_of(group), group.barrier().wait()])
        come()
        work.wait()
        assert work.is_success()


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_waits_for_gloo(native: Options, make: Callable[[], Exception]) -> None:
    with groups_of(native) as groups:
        with interrupted(make(), the_others_come(groups, lambda group: sum_of(group, torch.int64).wait())):
            sum_of(groups[0], torch.int64).wait()
        with interrupted(make(), lambda: groups[1].send([torch.ones(3)], 0, 0).wait()):
            groups[0].recv([torch.ones(3)], 1, 0).wait()
        with interrupted(make()):
            groups[0].recv_anysource([torch.ones(3)], 0).wait()
        with interrupted(make(), the_others_come(groups, lambda group: sum_of(group, torch.int64).wait())):
            groups[0]._start_coalescing(torch.device("cpu"))
            sum_of(groups[0], torch.int64)
            groups[0]._end_coalescing(torch.device("cpu")).wait()


def test_futures_that_wait_where_they_are_asked_for(native: Options) -> None:
    with groups_of(dataclasses.replace(native, ordered_futures=True)) as groups:
        work = sum_of(groups[0])
        with interrupted(TimeIsUpError()):
            work.get_future()
        the_others_come(groups, lambda group: sum_of(group).wait())()
        assert work.get_future().wait()


def test_a_first_sum_that_waits_for_others_to_join(native: Options) -> None:
    store, name = c10d.HashStore(), f"leased{next(_names)}"

    def make(rank: int) -> FaninProcessGroup:
        place = c10d.PrefixStore(name, store)
        return FaninProcessGroup(place, rank, SIZE, LONG, group_name=name, global_ranks=range(SIZE), options=native)

    groups: Groups = on_every(make, range(SIZE))
    try:
        with interrupted(TimeIsUpError()):
            sum_of(groups[0], waits=True).wait()
        the_others_come(groups, lambda group: sum_of(group))()
        last = [sum_of(group) for group in groups]
        for work in last:
            work.wait()
    finally:
        for group in groups:
            group.shutdown()


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_joining(options: Options, make: Callable[[], Exception]) -> None:
    with interrupted(make()):
        FaninProcessGroup(c10d.HashStore(), 0, 2, LONG, group_name=f"alone{next(_names)}", options=options)


def test_a_group_that_may_fall_back_to_gloo(native: Options) -> None:
    with groups_of(dataclasses.replace(native, fallback="gloo")) as groups:
        work = sum_of(groups[0])
        for make in RAISED:
            with interrupted(make()):
                work.wait()
        the_others_come(groups, lambda group: sum_of(group).wait())()
        work.wait()


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
def test_a_switch_that_is_looked_for(make: Callable[[], Exception]) -> None:
    with interrupted(make()):
        Session.join(
            options=Options(connect_timeout_s=30), switch=Options(switch="udp://127.0.0.1:9").switches[0],
            job_name="nobody", rank=0, size=2,
        )  # fmt: skip


def test_a_session_without_torch() -> None:
    with a_service(schemes=("udp",)) as service:
        sessions = join_all(address_of(service), f"s{next(_names)}", 2, Options())
        own, summed = reduction(np.ones(5, np.float32))
        ticket = sessions[0].submit(own)
        with interrupted(TimeIsUpError()):
            sessions[0].wait(ticket, 30)
        sessions[1].submit(reduction(np.ones(5, np.float32))[0])
        sessions[0].wait(ticket, 30)
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


def test_an_error_of_ours_is_no_interruption() -> None:
    with pytest.raises(SwitchUnreachableError, match="no switch answers"):
        Session.join(
            options=Options(connect_timeout_s=0.1), switch=Options(switch="udp://127.0.0.1:9").switches[0],
            job_name="nobody", rank=0, size=2,
        )  # fmt: skip
