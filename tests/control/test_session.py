"""A session over an engine that does what the test says: tickets, waits, one sticky failure."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial

import pytest

from fanin.errors import CollectiveTimeoutError, FaninError, WorkerLostError
from fanin.host.session.failures import MemberNames, workers_gone
from fanin.host.session.joining import Joined
from fanin.host.session.session import Session
from fanin.numerics.reduction import Element, PackedReduction, Reduction, sum_in_place
from fanin.options import Options, SwitchAddress
from fanin.protocol.events import EngineStopped, MembersChanged, WorkerEvent, WorkersGone
from fanin.protocol.job import JobSpec
from tests.support.processes import DEADLINE_S, in_thread

NOWHERE = SwitchAddress("udp", "127.0.0.1", 1)
"""A port where nothing listens: what a session asks of it is refused at once."""
SPEC = JobSpec(job=1, generation=2, workers=4, quorum=4, slots=8, words_per_packet=64, tokens=(0, 1, 2, 3))
REDUCTION = Reduction(source=0, destination=0, count=0, element=Element.FLOAT32)


class FakeEngine:
    """Finishes and fails when told to."""

    def __init__(self) -> None:
        self.description = "a fake"
        self.trouble = ""
        self.failed = False
        self.closed = False
        self.departed = self.cannot_leave = False
        self.path_suspected = 0
        self.spoiled = 0
        self._submitted = 0
        self._finished: set[int] = set()
        self._changed = threading.Condition()
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()

    def finish(self, ticket: int) -> None:
        with self._changed:
            self._finished.add(ticket)
            self._changed.notify_all()

    def fail(self, event: WorkerEvent | None) -> None:
        with self._changed:
            self.failed = True
            self._changed.notify_all()
        if event is not None:
            self._events.put(event)

    def report(self, event: WorkerEvent) -> None:
        self._events.put(event)

    def submit(self, reduction: Reduction) -> int:
        self._submitted += 1
        return self._submitted

    def submit_and_wait(self, packed: PackedReduction, timeout_s: float, owner: object) -> int:
        ticket = self.submit(REDUCTION)
        return 0 if self.wait(ticket, timeout_s) else ticket

    def begin(self, base: int) -> None:
        raise AssertionError("these sessions found their jobs")

    def wait(self, ticket: int, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._finished or self.failed or self.closed, timeout_s)
            return ticket in self._finished

    def done(self, ticket: int) -> bool:
        return ticket in self._finished

    def subscribe(self) -> None:
        raise AssertionError("nobody follows these sessions")

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        try:
            return self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None

    def counters(self) -> dict[str, int]:
        return {"results": len(self._finished), "path_suspected": self.path_suspected}

    def leave(self, timeout_s: float) -> bool:
        if self.cannot_leave:
            raise OSError("the socket is gone")
        self.departed = True
        return True

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


def a_session() -> tuple[Session, FakeEngine]:
    engine = FakeEngine()
    processes = tuple(f"node:{rank}" for rank in range(4))
    who = MemberNames(address=NOWHERE, job_name="j", rank=1, size=4, processes=processes)
    return Session(Joined(engine, SPEC, who, 1, "nonce"), Options()), engine


def test_a_failure_reaches_every_waiting_thread_and_names_rank_process_and_address() -> None:
    session, engine = a_session()
    tickets = [session.submit(REDUCTION) for _ in range(3)]
    waiting = [in_thread(partial(session.wait, ticket)) for ticket in tickets]
    engine.fail(WorkersGone(lost=0b1001, left=0b100))
    errors = [future.exception(DEADLINE_S) for future in waiting]
    assert all(error is session.failure for error in errors)
    assert isinstance(errors[0], WorkerLostError)
    assert errors[0].ranks == (0, 3, 2)
    assert "ranks 0 (node:0) and 3 (node:3) of job 'j'" in str(errors[0])
    assert "rank 2 (node:2) of job 'j' left" in str(errors[0])
    assert str(NOWHERE) in str(errors[0])
    with pytest.raises(WorkerLostError):
        session.submit(REDUCTION)


def test_a_failure_is_found_by_asking_and_stays() -> None:
    session, engine = a_session()
    engine.fail(WorkersGone(lost=1, left=0))
    failure = session.failure
    assert isinstance(failure, WorkerLostError)
    session.close()
    assert session.failure is failure


def test_what_was_done_before_a_failure_can_still_be_waited_for() -> None:
    session, engine = a_session()
    ticket = session.submit(REDUCTION)
    engine.finish(ticket)
    engine.fail(WorkersGone(lost=1, left=0))
    session.wait(ticket)


def test_an_engine_that_stops_without_a_word_is_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.host.session.session.REASON_TIMEOUT_S", 0.1)
    session, engine = a_session()
    engine.trouble = "the network is down"
    engine.fail(None)
    with pytest.raises(FaninError, match="the network is down"):
        session.wait(session_ticket := 1)
    assert not session.done(session_ticket)


def test_an_engine_that_stops_by_itself_is_asked_for_no_other_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.host.session.session.REASON_TIMEOUT_S", DEADLINE_S)
    session, engine = a_session()
    engine.fail(EngineStopped("flow 0: ZeroDivisionError('a bug')"))
    with pytest.raises(FaninError, match=r"of rank 1 of job 'j' at switch udp://127.0.0.1:1 stopped: flow 0: .*a bug"):
        session.wait(1)


def test_a_wait_that_is_too_long_says_so_and_changes_nothing() -> None:
    session, engine = a_session()
    ticket = session.submit(REDUCTION)
    with pytest.raises(CollectiveTimeoutError, match="Timed out"):
        session.wait(ticket, 0.01)
    engine.finish(ticket)
    session.wait(ticket, 0.01)
    assert session.failure is None


def test_a_wait_that_is_too_long_on_a_narrow_path_blames_no_rank(caplog: pytest.LogCaptureFixture) -> None:
    session, engine = a_session()
    engine.path_suspected = 1
    for _ in range(2):
        with pytest.raises(CollectiveTimeoutError, match=f"long packets .* do not pass between rank 1 .* {NOWHERE}"):
            session.wait(session.submit(REDUCTION), 0.01)
    assert caplog.text.count("the path has become narrower") == 1, "once for each time it begins"


def sum_at_once(session: Session) -> int:
    return session.submit_and_wait(sum_in_place(64, 8, Element.FLOAT32, 32, tag=2), None)


def test_what_is_done_at_once_is_done_or_has_a_ticket_to_wait_for() -> None:
    session, engine = a_session()
    engine.finish(1)
    assert sum_at_once(session) == 0
    assert sum_at_once(session) == 2
    with pytest.raises(CollectiveTimeoutError, match="Timed out: reduction 2"):
        session.wait(2, 0.01)
    engine.fail(WorkersGone(lost=0b0100, left=0))
    with pytest.raises(WorkerLostError):
        session.wait(sum_at_once(session))
    closed, _ = a_session()
    closed.close()
    with pytest.raises(FaninError, match="closed"):
        closed.wait(sum_at_once(closed))


def test_an_observer_is_told_of_what_is_done_at_once_too() -> None:
    session, _ = a_session()
    seen: list[tuple[int, Reduction]] = []
    session.observer = lambda ticket, reduction, _: seen.append((ticket, reduction))
    assert sum_at_once(session) == 1
    ((ticket, reduction),) = seen
    assert ticket == 1
    assert (reduction.source, reduction.destination, reduction.count, reduction.tag) == (64, 64, 8, 2)


def test_an_observer_is_told_of_a_time_at_which_no_rank_can_have_the_sum() -> None:
    session, engine = a_session()
    begun: list[float] = []
    handed_in: list[float] = []
    submit = engine.submit

    def late(reduction: Reduction) -> int:
        handed_in.append(time.monotonic())
        return submit(reduction)

    engine.submit = late  # type: ignore[method-assign]
    session.observer = lambda ticket, reduction, began_s: begun.append(began_s)
    session.submit(REDUCTION)
    assert begun[0] <= handed_in[0]


def test_closing_leaves_once_and_ends_waits() -> None:
    session, engine = a_session()
    ticket = session.submit(REDUCTION)
    waiting = in_thread(lambda: session.wait(ticket))
    session.close()
    session.close()
    assert (engine.departed, engine.closed) == (True, True)
    with pytest.raises(FaninError, match="closed"):
        waiting.result(DEADLINE_S)
    with pytest.raises(FaninError, match="closed"):
        session.submit(REDUCTION)


def test_a_session_that_cannot_leave_in_order_closes_its_engine_all_the_same() -> None:
    session, engine = a_session()
    waiting = in_thread(lambda: session.wait(session.submit(REDUCTION)))
    engine.cannot_leave = True
    session.close()
    assert (engine.departed, engine.closed) == (False, True)
    with pytest.raises(FaninError, match="closed"):
        waiting.result(DEADLINE_S)


def test_changes_of_membership_are_told_once_and_never_silently(caplog: pytest.LogCaptureFixture) -> None:
    session, engine = a_session()
    engine.report(MembersChanged(1, 0b1011, 0b0100, 0, 7))
    with caplog.at_level("WARNING", "fanin"):
        (change,) = session.take_changes()
    assert (change.gone, change.come, change.members, change.base) == ((2,), (), (0, 1, 3), 7)
    assert "rank 2" in caplog.text
    assert "is gone" in caplog.text
    assert session.take_changes() == []
    assert session.members == (0, 1, 3)
    assert session.failure is None


@pytest.mark.parametrize(
    ("lost", "said", "remedy"),
    [
        ((1,), "rank 1 (b:2) of job 'j' is lost: it hung up", "see the output of that rank"),
        ((1, 2), "ranks 1 (b:2) and 2 of job 'j' are lost: they hung up", "see the output of those ranks"),
        ((0, 1), "ranks 0 (a:1) and 1 (b:2) of job 'j' are lost: they hung up", "`fanin doctor udp://[fd00::1]:4919`"),
    ],
)
def test_a_rank_that_is_lost_itself_is_sent_to_its_path(lost: tuple[int, ...], said: str, remedy: str) -> None:
    """It lives, so its packets no longer arrive at the switch, as behind a firewall that has changed."""
    address = SwitchAddress("udp", "fd00::1", 4919)
    who = MemberNames(address=address, job_name="j", rank=0, size=3, processes=("a:1", "b:2"))
    error = workers_gone(who, lost, (), 30.0)
    assert error.ranks == lost
    assert said in str(error)
    assert remedy in str(error).partition("Remedy: ")[2]
