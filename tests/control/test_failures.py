"""Messages to each rank when a worker or the switch dies, stops or leaves: real processes, real signals."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from fanin.errors import CollectiveMismatchError, FaninError, SwitchLostError, WorkerLostError
from fanin.host.session.session import Session
from tests.support.processes import (
    DEADLINE_S,
    MODES,
    Mode,
    SwitchProcess,
    a_switch,
    a_worker,
    in_thread,
    join_all,
    options,
    reduce_together,
    reduce_until_it_fails,
    reduction,
    until,
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """The engine and the transport."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def switch(mode: Mode) -> Iterator[SwitchProcess]:
    """One switch that all jobs of a mode share: what happens to one must not touch another."""
    with a_switch(mode) as switch:
        yield switch


@pytest.fixture
def bystander(mode: Mode, switch: SwitchProcess) -> Iterator[list[Session]]:
    """A healthy job on the same switch, which still works when the test is over."""
    with contextlib.ExitStack() as stack:
        sessions = join_all(switch.address, "bystander", 2, options(mode))
        for session in sessions:
            stack.callback(session.close)
        yield sessions
        reduce_together(sessions)


def has_reduced(session: Session, times: int) -> bool:
    """Whether a session that reduces without end is in the middle of it."""
    return session.counters()["results"] >= times


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_every_survivor_names_the_rank_that_died_in_mid_collective(
    mode: Mode, switch: SwitchProcess, number: signal.Signals
) -> None:
    job = f"loses a worker by {number.name}"
    with a_worker(switch.address, job, 2, 3, options(mode)) as victim:
        survivors = join_all(switch.address, job, 3, options(mode), range(2))
        failing = [in_thread(partial(reduce_until_it_fails, session)) for session in survivors]
        until(partial(has_reduced, survivors[0], 20))
        victim.signal(number)
        errors = [future.result(DEADLINE_S) for future in failing]  # all before one leaves: it would be named too
        for error, session in zip(errors, survivors, strict=True):
            assert isinstance(error, WorkerLostError), error
            assert error.ranks == (2,)
            assert f"rank 2 ({session._who.processes[2]})" in str(error)
            assert str(victim.process.pid) in str(error)
            assert "Remedy" in str(error)
            assert session.failure is not None
            session.close()
        if number == signal.SIGSTOP:  # it was asleep, and must not go on as if nothing had happened
            victim.signal(signal.SIGCONT)
            assert victim.last_words()["error"] in ("WorkerLostError", "SwitchLostError")


@pytest.mark.parametrize("mode", ["native-udp", "native-zmq"])
def test_a_rank_that_holds_the_interpreter_for_longer_than_the_liveness_timeout_is_not_lost(mode: Mode) -> None:
    """Over ZeroMQ only libzmq's own threads go on meanwhile: they answer heartbeats."""
    with (
        a_switch(mode, "--liveness-timeout", "0.5") as switch,
        a_worker(switch.address, "held up", 1, 2, options(mode), habit="holds the interpreter"),
    ):
        (session,) = join_all(switch.address, "held up", 2, options(mode), range(1))
        for _ in range(3):  # the second waits for what the other rank does between the first two
            request, result = reduction(np.ones(20_000, np.float32))
            session.wait(session.submit(request), DEADLINE_S)
            assert (result == 2).all()
        session.close()


@pytest.mark.usefixtures("bystander")
def test_a_rank_that_leaves_while_others_wait_is_named(mode: Mode, switch: SwitchProcess) -> None:
    staying, leaving = join_all(switch.address, "one leaves", 2, options(mode))
    reduce_together([staying, leaving])
    failing = in_thread(lambda: reduce_until_it_fails(staying))
    leaving.close()
    error = failing.result(DEADLINE_S)
    assert isinstance(error, WorkerLostError), error
    assert error.ranks == (1,)
    assert "left" in str(error)
    staying.close()


@pytest.mark.usefixtures("bystander")
def test_ranks_that_call_different_collectives_are_told_so(mode: Mode, switch: SwitchProcess) -> None:
    sessions = join_all(switch.address, "they differ", 2, options(mode))
    failing = [in_thread(partial(reduce_until_it_fails, session, 1000 + session.rank)) for session in sessions]
    until(lambda: any(future.done() for future in failing))
    mistaken = next(rank for rank in range(2) if failing[rank].done())
    assert isinstance(failing[mistaken].result(), CollectiveMismatchError), failing[mistaken].result()
    if "zmq" in mode:  # whose heartbeats go on while the rank lives
        sessions[mistaken].close()
    other = failing[1 - mistaken].result(DEADLINE_S)
    assert isinstance(other, WorkerLostError | CollectiveMismatchError), other
    assert "different collectives" in str(other)
    for session in sessions:
        session.close()


@pytest.mark.parametrize(
    ("mode", "number"),
    [*((mode, signal.SIGKILL) for mode in MODES), ("native-udp", signal.SIGSTOP)],
    ids=[*(f"{mode}-killed" for mode in MODES), "native-udp-stopped"],
)
def test_every_rank_is_told_that_the_switch_died(mode: Mode, number: signal.Signals) -> None:
    with a_switch(mode) as switch:
        sessions = join_all(switch.address, "doomed", 2, options(mode))
        failing = [in_thread(partial(reduce_until_it_fails, session)) for session in sessions]
        until(partial(has_reduced, sessions[0], 20))
        switch.process.send_signal(number)
        for future, session in zip(failing, sessions, strict=True):
            error = future.result(DEADLINE_S)
            assert isinstance(error, SwitchLostError), error
            assert error.address == str(switch.address)
            assert str(switch.address) in str(error)
            session.close()


def test_a_switch_that_was_restarted_tells_old_workers_that_it_does_not_know_them() -> None:
    mode: Mode = "native-udp"
    old = SwitchProcess(mode, "--liveness-timeout", "30")
    sessions = join_all(old.address, "outlives its switch", 2, options(mode))
    old.end(signal.SIGKILL)
    new = SwitchProcess(mode, bind=f"127.0.0.1:{old.port}")
    try:
        for session in sessions:
            error = reduce_until_it_fails(session)
            assert isinstance(error, SwitchLostError), error
            assert "restarted" in str(error)
            session.close()
    finally:
        new.end()


def test_a_collective_that_one_rank_never_calls_times_out_and_can_still_be_finished() -> None:
    with a_switch("native-udp") as switch:
        late, early = join_all(switch.address, "late", 2, options("native-udp"))
        request, result = reduction(np.ones(10, np.float32))
        ticket = early.submit(request)
        with pytest.raises(FaninError, match="Timed out: reduction 1 of job 'late'"):
            early.wait(ticket, 0.05)
        assert not early.done(ticket)
        other, _ = reduction(np.ones(10, np.float32))
        late.wait(late.submit(other), DEADLINE_S)
        early.wait(ticket, DEADLINE_S)
        assert (result == 2).all()
        late.close()
        early.close()
