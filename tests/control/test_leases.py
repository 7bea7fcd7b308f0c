"""A membership that is there while it is used: joined at the first sum, given back when idle, alike on every rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from fanin.errors import (
    AdmissionError,
    CollectiveTimeoutError,
    ConfigurationError,
    FaninError,
    JoinTimeoutError,
    WorkerLostError,
)
from fanin.host.session.failures import MemberNames
from fanin.host.session.leased import LeasedSession, LeaseState
from fanin.host.session.session import Session
from fanin.numerics.reduction import Element, PackedReduction, Reduction
from fanin.options import SwitchAddress

ADDRESS = SwitchAddress.parse("udp://127.0.0.1:4919")
IDLE_S = 10.0
LOST = WorkerLostError((1,), "rank 1 is gone")


def reduction(count: int) -> Reduction:
    """One that is told from others by its count."""
    return Reduction(source=1, destination=1, count=count, element=Element.FLOAT32)


@dataclass
class AJob:
    """A job as its switch sees it: the reductions that each rank has submitted, and the ranks that have left."""

    given: list[list[int]]
    left: set[int] = field(default_factory=set)


class ASession:
    """One rank of such a job."""

    def __init__(self, job: AJob, rank: int) -> None:
        self.job, self.rank = job, rank
        self.spec, self.flows, self.description = cast("Any", object()), 1, "joined"
        self.lost: FaninError | None = None
        self.refuses: dict[int, Exception] = {}
        self.closed = False

    def submit(self, given: Reduction) -> int:
        if self.failure is not None:
            raise self.failure
        if given.count in self.refuses:
            raise self.refuses[given.count]
        self.job.given[self.rank].append(given.count)
        return len(self.job.given[self.rank])

    def submit_and_wait(self, packed: PackedReduction, owner: object) -> int:
        ticket = self.submit(reduction(packed[2]))
        return 0 if self.done(ticket) else ticket

    def done(self, ticket: int) -> bool:
        assert 1 <= ticket <= len(self.job.given[self.rank])
        return all(len(each) >= ticket for each in self.job.given)

    def wait(self, ticket: int, timeout_s: float | None) -> None:
        if not self.done(ticket):
            raise self.failure or CollectiveTimeoutError("not done")

    @property
    def failure(self) -> FaninError | None:
        """A rank that has left is missed by all others, as the switch tells them."""
        others = self.job.left - {self.rank}
        return self.lost or (WorkerLostError(tuple(others), "left") if others else None)

    def counters(self) -> dict[str, int | float]:
        return {"results": len(self.job.given[self.rank])}

    def close(self, timeout_s: float = 0.0) -> None:
        self.closed = True
        self.job.left.add(self.rank)


class ABallot:
    """In memory. `pause` is called before each of the steps that are atomic in a store."""

    def __init__(self, size: int, pause: Callable[[], None] = lambda: None) -> None:
        self._size, self._pause = size, pause
        self.numbers: dict[tuple[int, int], int] = {}
        self.words: dict[tuple[int, int], str] = {}
        self.broken: Exception | None = None

    def idle(self, lease: int, count: int) -> bool:
        self._step()
        self.numbers[lease, count] = self.numbers.get((lease, count), 0) + 1
        if self.numbers[lease, count] < self._size:
            return False
        self._step()
        return self.words.setdefault((lease, count), "ended") == "ended"

    def has_ended(self, lease: int, count: int) -> bool | None:
        self._step()
        return {None: None, "ended": True, "busy": False}[self.words.get((lease, count))]

    def goes_on(self, lease: int, count: int) -> bool:
        self._step()
        return self.words.setdefault((lease, count), "busy") == "busy"

    def _step(self) -> None:
        self._pause()
        if self.broken is not None:
            raise self.broken


class AThread:
    """A thread that the test runs when it likes."""

    def __init__(self, work: Callable[[], None], others: list[AThread]) -> None:
        self._work, self._others = work, others
        self._begun = False
        others.append(self)

    def run(self) -> None:
        if not self._begun:
            self._begun = True
            self._others.remove(self)
            self._work()

    def join(self, timeout: float | None = None) -> None:
        self.run()


class ACluster:
    """Ranks with leases over one switch, in one thread."""

    def __init__(self, size: int, pause: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.jobs: dict[str, AJob] = {}
        self.sessions: list[list[ASession]] = [[] for _ in range(size)]
        self.threads: list[list[AThread]] = [[] for _ in range(size)]
        self.ballot = ABallot(size, pause)
        self.elsewhere: FaninError | None = None
        self.refuses_to_join: FaninError | None = None
        self.no_threads = False
        self.ranks = [self._rank(rank, size) for rank in range(size)]

    def _rank(self, rank: int, size: int) -> LeasedSession:
        def join(name: str, interrupted: Callable[[], None]) -> Session:
            interrupted()
            if self.refuses_to_join is not None:
                raise self.refuses_to_join
            job = self.jobs.setdefault(name, AJob([[] for _ in range(size)]))
            self.sessions[rank].append(ASession(job, rank))
            return cast("Session", self.sessions[rank][-1])

        def start(work: Callable[[], None], _name: str) -> AThread:
            if self.no_threads:
                raise RuntimeError("can't start new thread")
            return AThread(work, self.threads[rank])

        return LeasedSession(
            join,
            MemberNames(address=ADDRESS, job_name="job", rank=rank, size=size),
            ballot=self.ballot,
            idle_s=IDLE_S,
            elsewhere=lambda: self.elsewhere,
            clock=lambda: self.now,
            start=start,
        )

    def settle(self) -> None:
        """Run threads until there are none."""
        while any(self.threads):
            for threads in self.threads:
                for thread in list(threads):
                    thread.run()

    def pass_time(self, times: int = 3) -> None:
        """Everybody looks, and looks again when idle_s have passed."""
        for _ in range(times):
            for rank in self.ranks:
                rank.return_if_idle()
            self.settle()
            self.now += IDLE_S

    def submit(self, count: int) -> list[int]:
        return [rank.submit(reduction(count)) for rank in self.ranks]

    def states(self) -> set[LeaseState]:
        return {rank._state for rank in self.ranks}


def test_a_group_that_sums_nothing_joins_nothing() -> None:
    cluster = ACluster(2)
    cluster.pass_time()
    assert not cluster.jobs
    assert "not yet joined" in cluster.ranks[0].description
    assert cluster.ranks[0].counters() == {"leases": 0}


def test_what_is_submitted_before_the_job_is_joined_goes_there_in_order() -> None:
    cluster = ACluster(2)
    rank = cluster.ranks[0]
    assert [rank.submit(reduction(count)) for count in (5, 6, 7)] == [1, 2, 3]
    assert not rank.done(1)
    with pytest.raises(CollectiveTimeoutError, match=r"Timed out: job 'job' .* is joined at its first sum"):
        rank.wait(1, 0.0)
    cluster.settle()
    assert rank.submit(reduction(8)) == 4
    assert cluster.jobs["job"].given == [[5, 6, 7, 8], []]
    assert not any(rank.done(ticket) for ticket in (1, 2, 3, 4))
    for count in (5, 6, 7):
        cluster.ranks[1].submit(reduction(count))
    cluster.settle()
    assert [rank.done(ticket) for ticket in (1, 2, 3, 4)] == [True, True, True, False]
    rank.wait(3, 1.0)
    with pytest.raises(ValueError, match="never given out"):
        rank.done(5)


def test_an_idle_job_is_given_back_and_joined_anew_under_another_name() -> None:
    cluster = ACluster(3)
    cluster.submit(5)
    cluster.settle()
    cluster.pass_time()
    assert cluster.states() == {LeaseState.ABSENT}
    assert all(session.closed for sessions in cluster.sessions for session in sessions)
    assert "given back after 10 s" in cluster.ranks[0].description
    assert cluster.submit(6) == [2, 2, 2]
    cluster.settle()
    assert all(rank.done(ticket) for rank in cluster.ranks for ticket in (1, 2))
    assert {name: job.given for name, job in cluster.jobs.items()} == {"job": [[5]] * 3, "job.1": [[6]] * 3}
    assert cluster.ranks[0].counters() == {"leases": 2, "results": 2}
    assert all(rank.failure is None for rank in cluster.ranks)


def test_a_rank_that_goes_on_keeps_the_lease_for_all() -> None:
    cluster = ACluster(2)
    cluster.submit(5)
    cluster.settle()
    first, second = cluster.ranks
    first.return_if_idle()
    cluster.now += IDLE_S
    first.return_if_idle()
    cluster.settle()
    assert first._state is LeaseState.IDLE
    assert second.submit(reduction(6)) == 2  # has not said that it was idle, so it asks nobody
    assert first.submit(reduction(6)) == 2
    cluster.settle()
    assert first.done(2)
    assert list(cluster.jobs) == ["job"]
    cluster.pass_time()
    assert cluster.states() == {LeaseState.ABSENT}


def test_a_job_with_a_reduction_under_way_is_not_idle() -> None:
    cluster = ACluster(2)
    cluster.ranks[0].submit(reduction(5))
    cluster.settle()
    cluster.pass_time()
    assert cluster.ranks[0]._state is LeaseState.LEASED
    assert not cluster.ballot.numbers


def test_a_sum_that_comes_while_a_rank_finds_that_all_is_done_keeps_it_from_being_idle() -> None:
    cluster = ACluster(1)
    (rank,) = cluster.ranks
    cluster.submit(5)
    cluster.settle()
    rank.return_if_idle()
    cluster.now += IDLE_S
    session = cluster.sessions[0][0]
    done = session.done

    def submitting(ticket: int) -> bool:
        session.done = done  # type: ignore[method-assign]
        rank.submit(reduction(6))
        return done(ticket)

    session.done = submitting  # type: ignore[method-assign]
    rank.return_if_idle()
    cluster.settle()
    assert rank._state is LeaseState.LEASED
    assert not cluster.ballot.numbers


@pytest.mark.parametrize("error", [ConfigurationError("6 is refused"), OverflowError("6 is refused")])
def test_a_reduction_that_the_session_refuses_after_it_waited_raises_in_its_wait_alone(error: Exception) -> None:
    cluster = ACluster(1)
    (rank,) = cluster.ranks
    for count in (5, 6, 7):
        rank.submit(reduction(count))

    def refuse() -> None:
        cluster.sessions[0][0].refuses[6] = error

    join = rank._join
    rank._join = lambda name, look: (join(name, look), refuse())[0]  # type: ignore[func-returns-value]
    cluster.settle()
    assert cluster.jobs["job"].given == [[5, 7]]
    assert rank.done(2)
    with pytest.raises(type(error), match="6 is refused"):
        rank.wait(2)
    rank.wait(3)
    assert rank.submit(reduction(8)) == 4
    rank.wait(4)
    cluster.pass_time()
    assert rank._state is LeaseState.ABSENT
    with pytest.raises(type(error), match="6 is refused"):
        rank.wait(2)


@pytest.mark.parametrize(
    "error", [JoinTimeoutError((1,), "rank 1 is missing"), AdmissionError("no memory"), ValueError("a bug")]
)
def test_a_join_that_fails_is_the_failure_of_every_wait(error: Exception) -> None:
    cluster = ACluster(2)
    cluster.refuses_to_join = cast("FaninError", error)
    rank = cluster.ranks[0]
    rank.submit(reduction(5))
    cluster.settle()
    with pytest.raises(FaninError, match=str(error)):
        rank.wait(1)
    with pytest.raises(FaninError, match=str(error)):
        rank.submit(reduction(5))
    assert not rank.done(1)


def test_a_rank_that_is_lost_while_all_are_idle_is_told_from_one_that_left_in_order() -> None:
    cluster = ACluster(3)
    cluster.submit(5)
    cluster.settle()
    first, second, third = cluster.ranks
    for rank in (first, second):
        rank.return_if_idle()
    cluster.now += IDLE_S
    for rank in (first, second):
        rank.return_if_idle()
    cluster.settle()
    cluster.sessions[0][0].lost = LOST
    assert first.failure is LOST
    third.return_if_idle()
    cluster.now += IDLE_S
    third.return_if_idle()
    cluster.settle()  # the last one: it is decided, and this one leaves
    assert third._state is LeaseState.ABSENT
    assert isinstance(cluster.sessions[1][0].failure, WorkerLostError)
    assert second.failure is None
    second.return_if_idle()
    cluster.settle()
    assert second._state is LeaseState.ABSENT


def test_without_a_lease_the_loss_that_others_have_noticed_counts() -> None:
    cluster = ACluster(2)
    cluster.elsewhere = LOST
    assert cluster.ranks[0].failure is LOST
    with pytest.raises(WorkerLostError):
        cluster.ranks[0].submit(reduction(5))


@pytest.mark.parametrize("error", [FaninError("no answer"), ValueError("no answer")])
def test_a_rank_that_cannot_ask_fails_instead_of_guessing(error: Exception) -> None:
    cluster = ACluster(2)
    cluster.submit(5)
    cluster.settle()
    cluster.ranks[0].return_if_idle()
    cluster.now += IDLE_S
    cluster.ranks[0].return_if_idle()
    cluster.settle()
    cluster.ballot.broken = error
    ticket = cluster.ranks[0].submit(reduction(6))
    cluster.settle()
    with pytest.raises(FaninError, match="no answer"):
        cluster.ranks[0].wait(ticket)
    with pytest.raises(FaninError, match="no answer"):
        cluster.ranks[0].joined()


@pytest.mark.parametrize("idle", [False, True], ids=["while it says so", "while it looks"])
def test_an_idle_rank_whose_thread_raises_has_failed(idle: bool) -> None:
    cluster = ACluster(2)
    rank = cluster.ranks[0]
    cluster.submit(5)
    cluster.settle()
    for _ in range(2 if idle else 1):
        rank.return_if_idle()
        cluster.settle()
        cluster.now += IDLE_S
    assert rank._state is (LeaseState.IDLE if idle else LeaseState.LEASED)
    cluster.ballot.broken = ValueError("a bug")
    rank.return_if_idle()
    cluster.settle()
    with pytest.raises(FaninError, match=r"fanin-idle of rank 0 of job 'job' at .*a bug"):
        rank.submit(reduction(6))


def test_a_reduction_for_which_no_thread_can_be_started_has_no_ticket() -> None:
    cluster = ACluster(1)
    (rank,) = cluster.ranks
    cluster.no_threads = True
    with pytest.raises(RuntimeError, match="new thread"):
        rank.submit(reduction(5))
    cluster.no_threads = False
    assert rank.submit(reduction(6)) == 1
    cluster.settle()
    rank.wait(1)
    assert cluster.jobs["job"].given == [[6]]


def test_closing_ends_what_waits_for_the_lease() -> None:
    cluster = ACluster(2)
    rank = cluster.ranks[0]
    ticket = rank.submit(reduction(5))
    rank.close()
    cluster.settle()
    assert not cluster.jobs
    with pytest.raises(FaninError, match="closed"):
        rank.wait(ticket)


class Schedule:
    """Ranks that submit the same sums, one after the other, while threads run in any order.

    `choose(n)` picks one of n things to do next; a step of the ballot may be held up by any of them.
    """

    def __init__(self, size: int, sums: int, looks: int, choose: Callable[[int], int], deepest: int = 3) -> None:
        self._choose, self._sums, self._depth, self._deepest = choose, sums, 0, deepest
        self._looks = [looks] * size
        self.cluster = ACluster(size, self._pause)
        self._given = [0] * size

    def begin(self) -> None:
        """One sum everywhere, and an idle time of which no rank has yet told the others."""
        for rank in range(len(self._given)):
            self._submit(rank)
        self.cluster.settle()
        for session in self.cluster.ranks:
            session.return_if_idle()

    def _pause(self) -> None:
        if self._depth < self._deepest:
            self._depth += 1
            while self._choose(2):
                if not self._act():
                    break
            self._depth -= 1

    def _act(self) -> bool:
        """One thing that can happen now; False if there is none."""
        actions: list[Callable[[], None]] = []
        for rank, session in enumerate(self.cluster.ranks):
            # A program waits for its sum before the next.
            if self._given[rank] < self._sums and (not self._given[rank] or session.done(self._given[rank])):
                actions.append(lambda rank=rank: self._submit(rank))  # type: ignore[misc]
            if self._looks[rank]:
                actions.append(lambda rank=rank: self._look(rank))  # type: ignore[misc]
            actions += [thread.run for thread in self.cluster.threads[rank]]
        if actions:
            actions[self._choose(len(actions))]()
        return bool(actions)

    def _submit(self, rank: int) -> None:
        self._given[rank] += 1
        assert self.cluster.ranks[rank].submit(reduction(self._given[rank])) == self._given[rank]

    def _look(self, rank: int) -> None:
        self._looks[rank] -= 1
        self.cluster.now += IDLE_S
        self.cluster.ranks[rank].return_if_idle()
        assert self.cluster.ranks[rank].failure is None

    def run(self) -> int:
        """Every sum is done on every rank, and was one sum of one job. Returns the number of jobs."""
        while self._act():
            pass
        self.cluster.settle()
        for session in self.cluster.ranks:
            assert session.failure is None
            assert all(session.done(ticket) for ticket in range(1, self._sums + 1))
        for job in self.cluster.jobs.values():
            assert all(given == job.given[0] for given in job.given), "each sum is in the same lease on every rank"
        assert sum(len(job.given[0]) for job in self.cluster.jobs.values()) == self._sums
        return len(self.cluster.jobs)


def test_ranks_agree_on_the_lease_of_every_sum_whatever_the_order_of_events() -> None:
    seen = set()
    for seed in range(1500):
        draw = random.Random(seed)
        size = draw.choice((2, 2, 2, 3, 4))
        schedule = Schedule(size, sums=draw.randint(1, 4), looks=draw.randint(0, 20), choose=draw.randrange)
        try:
            seen.add(schedule.run())
        except BaseException as error:
            error.args = (*error.args, f"seed {seed}")
            raise
    assert {1, 2, 3} <= seen


def test_every_order_of_what_two_ranks_do_around_an_idle_time_is_safe() -> None:
    """Exhaustively: each run takes the next path through the choices."""
    path: list[tuple[int, int]] = []
    jobs: set[int] = set()
    while path or not jobs:
        at = iter(range(1 << 20))

        def choose(count: int, at: Iterator[int] = at) -> int:
            step = next(at)
            if step == len(path):
                path.append((0, count))
            assert path[step][1] == count
            return path[step][0]

        schedule = Schedule(2, sums=2, looks=1, choose=choose, deepest=1)
        schedule.begin()
        jobs.add(schedule.run())
        while path and path[-1][0] == path[-1][1] - 1:
            path.pop()
        if path:
            path[-1] = (path[-1][0] + 1, path[-1][1])
    assert jobs == {1, 2}
