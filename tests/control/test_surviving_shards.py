"""A job over several switches that goes on without ranks, and without switches, over real sockets."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pytest

from fanin.errors import (
    CollectiveTimeoutError,
    EvictedError,
    FaninError,
    SwitchLostError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.session.failures import End
from fanin.host.session.joining import JoinTerms
from fanin.host.session.joining_shards import join_shards
from fanin.host.session.kept_reductions import KeptReduction
from fanin.host.session.session import Session
from fanin.host.session.shards import ShardedSession
from fanin.host.session.surviving import SurvivingSession
from fanin.host.session.survivor import LostOnTheWay, Successor
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options, SwitchAddress
from tests.support.processes import DEADLINE_S, in_thread, until
from tests.support.services import a_service, address_of
from tests.support.sharded_sessions import join_all, tensors, together

WORKERS = 3
LARGE = 64 * 40 + 17
"""Elements that are dealt to all shards."""
OPTIONS = Options(
    words_per_packet=64, slots=8, connect_timeout_s=DEADLINE_S, join_timeout_s=DEADLINE_S, on_worker_loss="continue"
)
Rejoined = list[Session | LostOnTheWay]
PATIENT = dataclasses.replace(OPTIONS, join_timeout_s=2 * DEADLINE_S)
Array = npt.NDArray[np.generic]


def kill(session: Session) -> None:
    """Without a word, as a process that is killed."""
    session._engine.close()
    assert session._line is not None
    session._line.close()


class Cluster:
    """Switches, and ranks that are members at all of them."""

    def __init__(self, shards: int, workers: int = WORKERS, options: Options = OPTIONS, **service: object) -> None:
        self._options = options
        self._running = []
        self.addresses = []
        for _ in range(shards):
            running = contextlib.ExitStack()
            self.addresses.append(address_of(running.enter_context(a_service(native=True, **service))))
            self._running.append(running)
        self.sessions = together([partial(self._join, rank, workers) for rank in range(workers)])

    def _join(self, rank: int, size: int) -> ShardedSession:
        terms = JoinTerms(options=self._options, switch=self.addresses[0], job_name="spread", rank=rank, size=size)
        return join_shards(terms, self.addresses, frozenset(self.addresses))

    def shard_dies(self, number: int) -> SwitchAddress:
        self._running[number].close()
        return self.addresses[number]

    def rank_dies(self, rank: int) -> None:
        """Without a word, as a process that is killed."""
        for each in self.sessions[rank].sessions:
            kill(each)

    def close(self) -> None:
        together([session.close for session in self.sessions])
        for each in self._running:
            each.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with contextlib.closing(Cluster(3)) as found:
        yield found


def submit(session: ShardedSession, array: Array, lanes: int = 32, residual: int = 0) -> int:
    element = Element.INT32 if array.dtype == np.int32 else Element.FLOAT32
    address = array.ctypes.data
    return session.submit(
        Reduction(
            source=address, destination=address, count=array.size, element=element, lanes=lanes, residual=residual,
            owner=array,
        )
    )  # fmt: skip


def sums(sessions: list[ShardedSession], arrays: list[Array], lanes: int = 32) -> None:
    tickets = [submit(session, array, lanes) for session, array in zip(sessions, arrays, strict=True)]
    wait_for(sessions, tickets)


def wait_for(sessions: list[ShardedSession], tickets: list[int]) -> None:
    """At every rank at the same time, since each must say what it has lost."""
    together([partial(session.wait, ticket, DEADLINE_S) for session, ticket in zip(sessions, tickets, strict=True)])
    assert all(session.done(ticket) for session, ticket in zip(sessions, tickets, strict=True))


def go_on(sessions: list[ShardedSession], shards: int) -> bool:
    """Whether all sessions have gone on with so many shards. Asking for failures makes a session notice losses."""
    assert [session.failure for session in sessions] == [None] * len(sessions)
    return all(len(session.sessions) == shards for session in sessions)


def is_of(session: ShardedSession, ranks: tuple[int, ...]) -> bool:
    """Whether it has heard that these are left."""
    return session.members == ranks


def integers(ranks: list[int], seed: int = 1, count: int = LARGE) -> list[Array]:
    return [np.random.default_rng((seed, rank)).integers(-(2**30), 2**30, count, dtype=np.int32) for rank in ranks]


def test_a_shard_that_dies_alone_costs_no_rank_and_no_bit(cluster: Cluster) -> None:
    """Ranks are not equally far when it happens: those that are behind must still give what the others wait for."""
    first, second, third = cluster.sessions
    assert all(isinstance(each, SurvivingSession) for each in cluster.sessions)
    sums(cluster.sessions, integers([0, 1, 2]))
    ahead, behind = integers([0], seed=2)[0], integers([0], seed=3)[0]
    early = [submit(first, ahead), submit(first, behind)]
    started = [submit(second, integers([1], seed=2)[0])]
    lost = cluster.shard_dies(1)
    arrays = {rank: [integers([rank], seed=seed)[0] for seed in (2, 3)] for rank in (1, 2)}
    submit(second, arrays[1][1])
    for array in arrays[2]:
        submit(third, array)
    for ticket in (2, 3):
        wait_for(cluster.sessions, [ticket] * WORKERS)
    for seed, result in ((2, ahead), (3, behind)):
        expected = np.sum(integers([0, 1, 2], seed=seed), axis=0, dtype=np.int32)
        assert result.tobytes() == expected.tobytes()
    assert early == [2, 3]
    assert started == [2]
    for session in cluster.sessions:
        assert session.failure is None
        assert session.members == (0, 1, 2)
        assert session.take_changes() == []
        assert str(lost) not in session.description
        assert len(session.sessions) == 2


@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_that_dies_takes_its_rank_and_its_shard_and_the_others_go_on(cluster: Cluster, victim: int) -> None:
    """Shard 0 is the one that would have been asked first."""
    left = [rank for rank in range(WORKERS) if rank != victim]
    sessions = [cluster.sessions[rank] for rank in left]
    sums(cluster.sessions, integers([0, 1, 2]))
    under_way = [integers([rank], seed=5)[0] for rank in left]
    tickets = [submit(session, array) for session, array in zip(sessions, under_way, strict=True)]
    cluster.rank_dies(victim)
    cluster.shard_dies(victim)
    wait_for(sessions, tickets)
    expected = np.sum(integers(left, seed=5), axis=0, dtype=np.int32)
    assert [array.tobytes() for array in under_way] == [expected.tobytes()] * 2
    for session in sessions:
        assert session.members == tuple(left)
        assert [change.gone for change in session.take_changes()] == [(victim,)]
        assert session.failure is None


def test_sums_over_the_survivors_have_the_bits_of_a_job_of_the_survivors(cluster: Cluster) -> None:
    with a_service(native=True) as alone:
        reference = join_all([address_of(alone)], native=True, workers=2)
        cluster.rank_dies(1)
        cluster.shard_dies(1)
        left = [cluster.sessions[0], cluster.sessions[2]]
        until(lambda: go_on(left, 2))
        for lanes in (32, 8):
            for count in (5, LARGE):
                expected, found = tensors(count, 2), tensors(count, 2)
                sums(reference, list(expected), lanes)
                sums(left, list(found), lanes)
                assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]
        together([session.close for session in reference])


def test_a_result_that_one_rank_has_seen_is_everybodys(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be used by then, and its input overwritten: to sum anew would give other bits."""
    first, second, third = cluster.sessions
    arrays = integers([0, 1, 2])
    unseen = [session.sessions[1] for session in (second, third)]
    done = Session.done
    monkeypatch.setattr(Session, "done", lambda self, ticket: self not in unseen and done(self, ticket))
    tickets = [submit(session, array) for session, array in zip(cluster.sessions, arrays, strict=True)]
    first.wait(tickets[0], DEADLINE_S)
    result = arrays[0].copy()
    assert result.tobytes() == np.sum(integers([0, 1, 2]), axis=0, dtype=np.int32).tobytes()
    arrays[0][:] = 7
    cluster.shard_dies(1)
    until(lambda: go_on(cluster.sessions, 2))
    wait_for([second, third], [1, 1])
    assert [array.tobytes() for array in arrays[1:]] == [result.tobytes()] * 2
    assert arrays[0].tolist() == [7] * LARGE, "its own copy is the user's"


def test_error_feedback_is_that_of_one_sum_although_it_is_summed_twice(cluster: Cluster) -> None:
    with a_service(native=True) as alone:
        reference = join_all([address_of(alone)], native=True)
        outcomes = []
        for sessions in (reference, cluster.sessions):
            arrays, residuals = tensors(LARGE), [np.full(LARGE, 0.01, np.float32) for _ in range(WORKERS)]
            tickets = []
            for rank, session in enumerate(sessions):
                tickets.append(submit(session, arrays[rank], 8, residual=residuals[rank].ctypes.data))
                if sessions is cluster.sessions and rank == 0:
                    cluster.shard_dies(2)
            wait_for(sessions, tickets)
            outcomes.append([array.tobytes() for array in (*arrays, *residuals)])
        assert outcomes[0] == outcomes[1]
        together([session.close for session in reference])


@pytest.mark.parametrize("joins", [0, 1, 2], ids=["before it joins", "at one shard of two", "at both"])
def test_a_rank_that_dies_on_the_way_to_the_new_job_is_left_out_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, joins: int
) -> None:
    """All have agreed to go on with it by then."""
    first, victim, third = cluster.sessions
    assert isinstance(victim, SurvivingSession)
    sums(cluster.sessions, integers([0, 1, 2]))
    rejoin = victim._rejoin

    def dies(addresses: Sequence[SwitchAddress], job: Successor, interrupted: Callable[[], None]) -> NoReturn:
        assert len(addresses) == 2
        assert job.succeeds.ranks == (0, 1, 2)
        joined = rejoin(addresses[:joins], job, interrupted) if joins else []
        for each in (*joined, *victim.sessions):
            assert isinstance(each, Session)
            kill(each)
        raise FaninError("a dead process joins nothing")

    monkeypatch.setattr(victim, "_rejoin", dies)
    cluster.shard_dies(2)
    arrays = integers([0, 2], seed=7)
    tickets = [submit(session, array) for session, array in zip((first, third), arrays, strict=True)]
    waits = [partial(session.wait, ticket, DEADLINE_S) for session, ticket in zip((first, third), tickets, strict=True)]
    together([partial(until, lambda: victim.failure is not None), *waits])
    expected = np.sum(integers([0, 2], seed=7), axis=0, dtype=np.int32)
    assert [array.tobytes() for array in arrays] == [expected.tobytes()] * 2
    for session in (first, third):
        until(partial(is_of, session, (0, 2)))
        assert (session.failure, len(session.sessions)) == (None, 2)
        assert [change.gone for change in session.take_changes()] == [(1,)]


def test_a_rank_that_falls_silent_on_the_way_to_the_new_job_is_waited_for_until_the_shards_lose_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanin.host.session.joining_shards.REJOIN_TIMEOUT_S", 1.2)
    released = threading.Event()
    with contextlib.closing(Cluster(3, liveness_timeout_s=2.0)) as cluster, contextlib.ExitStack() as ending:
        ending.callback(released.set)
        first, silent, third = cluster.sessions
        assert isinstance(silent, SurvivingSession)

        def falls_silent(*_: object) -> NoReturn:
            for each in silent.sessions:
                each._engine.close()
            released.wait(DEADLINE_S)
            raise FaninError("its test is over")

        monkeypatch.setattr(silent, "_rejoin", falls_silent)
        cluster.shard_dies(2)
        arrays = integers([0, 2], seed=9)
        tickets = [submit(first, arrays[0]), submit(third, arrays[1])]
        until(lambda: silent.failure is None and go_on([first, third], 2))
        wait_for([first, third], tickets)
        expected = np.sum(integers([0, 2], seed=9), axis=0, dtype=np.int32)
        assert [array.tobytes() for array in arrays] == [expected.tobytes()] * 2


def test_a_rank_that_one_shard_has_lost_on_the_way_to_the_new_job_is_lost_by_that_shard_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shard 0 loses rank 1 in the job before, and refuses it; the others are in the new job there by then."""
    with contextlib.closing(Cluster(3, liveness_timeout_s=1.0)) as cluster:
        late = cluster.sessions[1]
        join_at = Session.join
        refused = f"refuses rank 1 of job spread at {cluster.addresses[0]}: it goes on without it"

        def join(terms: JoinTerms) -> Session:
            if terms.succeeds is None or (terms.rank, terms.switch) != (1, cluster.addresses[0]):
                return join_at(terms)
            kill(late.sessions[0])
            raise EvictedError((1,), refused)

        monkeypatch.setattr(Session, "join", join)
        cluster.shard_dies(2)
        until(lambda: go_on(cluster.sessions, 1))
        arrays = integers([0, 1, 2], seed=8)
        sums(cluster.sessions, arrays)
        expected = np.sum(integers([0, 1, 2], seed=8), axis=0, dtype=np.int32)
        assert [array.tobytes() for array in arrays] == [expected.tobytes()] * 3
        assert [session.members for session in cluster.sessions] == [(0, 1, 2)] * 3


def test_a_rank_that_every_shard_of_the_new_job_has_lost_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = cluster.sessions[1]
    join_at = Session.join

    def join(terms: JoinTerms) -> Session:
        if terms.succeeds is None or terms.rank != 1:
            return join_at(terms)
        for each in late.sessions:
            kill(each)
        if terms.switch == cluster.addresses[0]:
            raise SwitchUnreachableError(str(terms.switch), "silent")
        raise EvictedError((1,), f"refused at {terms.switch}")

    monkeypatch.setattr(Session, "join", join)
    cluster.shard_dies(2)
    others = [cluster.sessions[0], cluster.sessions[2]]
    until(lambda: (late.failure is not None) & go_on(others, 2))
    assert isinstance(late.failure, WorkerLostError)
    assert late.failure.ranks == (1,)
    assert f"refused at {cluster.addresses[1]}" in str(late.failure)


@pytest.mark.parametrize("hears", [True, False], ids=["a join that waits for others", "one that nothing interrupts"])
def test_a_rank_that_leaves_on_the_way_to_the_new_job_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    """The others are not there yet, and may never be."""
    monkeypatch.setattr("fanin.host.session.joining_shards.REJOIN_TIMEOUT_S", 2 * DEADLINE_S)
    joining, released = threading.Event(), threading.Event()

    def absent(*_: object) -> NoReturn:
        released.wait(DEADLINE_S)
        raise FaninError("its test is over")

    with contextlib.closing(Cluster(3, options=PATIENT)) as cluster, contextlib.ExitStack() as ending:
        ending.callback(released.set)
        first, *others = cluster.sessions
        assert isinstance(first, SurvivingSession)
        rejoin = first._rejoin

        def joins(addresses: Sequence[SwitchAddress], job: Successor, interrupted: Callable[[], None]) -> Rejoined:
            joining.set()
            return rejoin(addresses, job, interrupted) if hears else absent()

        for session in others:
            monkeypatch.setattr(session, "_rejoin", absent)
        monkeypatch.setattr(first, "_rejoin", joins)
        cluster.shard_dies(2)
        until(lambda: go_on(cluster.sessions, 3) and joining.is_set())
        dealer = first._dealer
        assert dealer is not None
        in_thread(partial(first.close, DEADLINE_S if hears else 0.1)).result(DEADLINE_S)
        assert dealer.is_alive() != hears


@pytest.mark.parametrize("at_once", [True, False], ids=["at the same time", "one after the other"])
def test_two_hosts_may_die(at_once: bool) -> None:
    with contextlib.closing(Cluster(4, workers=4)) as cluster:
        sums(cluster.sessions, integers([0, 1, 2, 3]))
        left = [0, 1, 2, 3]
        for victim in (1, 2):
            cluster.rank_dies(victim)
            cluster.shard_dies(victim)
            left.remove(victim)
            if not at_once or victim == 2:
                sessions = [cluster.sessions[rank] for rank in left]
                arrays = integers(left, seed=victim)
                sums(sessions, arrays)
                expected = np.sum(integers(left, seed=victim), axis=0, dtype=np.int32)
                assert [array.tobytes() for array in arrays] == [expected.tobytes()] * len(left)
                assert [session.members for session in sessions] == [tuple(left)] * len(left)
        for rank in left:
            assert [rank for change in cluster.sessions[rank].take_changes() for rank in change.gone] == [1, 2]
            assert f"rank {rank} of" not in str(cluster.sessions[rank].failure)


def test_a_rank_that_alone_has_lost_a_shard_names_both_and_the_others_go_on_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanin.host.machine.shard_agreement.AGREEMENT_GRACE_S", 0.2)
    with contextlib.closing(Cluster(3, liveness_timeout_s=1.5)) as cluster:
        first, cut, third = cluster.sessions
        cut.sessions[2]._switch_is_gone(End.REFUSED)
        until(lambda: cut.failure is not None)
        assert isinstance(cut.failure, SwitchLostError)
        assert re.search(rf"rank 1 .* has lost shard {cluster.addresses[2]}, and ranks 0, 2 ", str(cut.failure))
        arrays = integers([0, 2])
        sums([first, third], arrays)
        assert arrays[0].tobytes() == np.sum(integers([0, 2]), axis=0, dtype=np.int32).tobytes()
        assert first.members == third.members == (0, 2)
        assert (first.failure, third.failure, len(first.sessions)) == (None, None, 3)


def test_a_path_that_is_lost_costs_its_shard_and_no_rank() -> None:
    """The shard that rank 1 does not reach evicts it, and the others do not: no sum lacks it."""
    with contextlib.closing(Cluster(3, liveness_timeout_s=1.0)) as cluster:
        cut = cluster.sessions[1].sessions[2]
        cut._engine.close()
        cut._switch_is_gone(End.REFUSED)
        under_way = integers([0, 2], seed=4)
        tickets = [submit(cluster.sessions[rank], array) for rank, array in zip((0, 2), under_way, strict=True)]
        until(lambda: go_on(cluster.sessions, 2))
        own = integers([1], seed=4)[0]
        wait_for(cluster.sessions, [tickets[0], submit(cluster.sessions[1], own), tickets[1]])
        expected = np.sum(integers([0, 1, 2], seed=4), axis=0, dtype=np.int32)
        assert [array.tobytes() for array in (*under_way, own)] == [expected.tobytes()] * 3
        for session in cluster.sessions:
            assert session.members == (0, 1, 2)
            assert session.take_changes() == []


def test_a_wait_for_a_sum_that_is_in_doubt_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three small sums is made at the shard that has evicted rank 1."""
    monkeypatch.setattr("fanin.host.session.survivor.DOUBT_GRACE_S", DEADLINE_S)
    with contextlib.closing(Cluster(3, liveness_timeout_s=1.0)) as cluster:
        cut, third = cluster.sessions[1].sessions[2], cluster.sessions[2]
        assert isinstance(third, SurvivingSession)
        cut._engine.close()
        cut._switch_is_gone(End.REFUSED)
        for rank in (0, 2):
            tickets = [submit(cluster.sessions[rank], np.ones(1, np.int32)) for _ in range(3)]
        kept = [third._survivor.kept.get(ticket) for ticket in tickets]
        until(lambda: third.failure is None and bool(_doubted(kept)))
        with pytest.raises(CollectiveTimeoutError, match="it lacks a rank that some shards have lost, and others have"):
            third.wait(_doubted(kept)[0], 0.01)


def _doubted(kept: Sequence[KeptReduction | None]) -> list[int]:
    return [each.ticket for each in kept if each is not None and each.is_summed and each.is_in_doubt]


def test_the_last_shard_is_not_survived_and_every_wait_says_so(cluster: Cluster) -> None:
    sums(cluster.sessions, integers([0, 1, 2]))
    for number in range(3):
        cluster.shard_dies(number)
    array = integers([0])[0]

    def reduce() -> None:
        cluster.sessions[0].wait(submit(cluster.sessions[0], array), DEADLINE_S)

    with pytest.raises(SwitchLostError):
        reduce()
    assert isinstance(cluster.sessions[0].failure, FaninError)


def test_what_is_done_everywhere_is_forgotten(cluster: Cluster) -> None:
    """A window of packets at each shard is kept, not every result since the beginning."""
    slots = cluster.sessions[0].sessions[0].spec.slots
    for _ in range(6 * slots * len(cluster.addresses)):
        sums(cluster.sessions, integers([0, 1, 2], count=64))
    for session in cluster.sessions:
        assert isinstance(session, SurvivingSession)
        assert len(session._survivor.kept) < 3 * slots * len(cluster.addresses)
