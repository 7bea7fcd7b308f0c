"""A controller's decisions when ranks of a job over several shards have lost others of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fanin.protocol import control
from fanin.protocol.control import Refusal, Regroup, Regrouped, Waiting
from fanin.protocol.events import WorkerJoined, WorkerLeft, WorkerSilent
from fanin.protocol.job import SUSPICION_TIMEOUT_S
from fanin.switch.controller.regroup import MAX_OPEN_REDUCTIONS, decide
from tests.support.controllers import World, join

SIZE = 3


def said(
    rank: int, first: int = 1, last: int = 0, done: tuple[int, ...] = (), lost: tuple[int, ...] = (1,),
    dead: tuple[int, ...] = (), members: tuple[int, ...] = (), held_back: tuple[int, ...] = (),
    decided: Regrouped | None = None,
) -> Regroup:  # fmt: skip
    return Regroup(
        job="j", rank=rank, nonce=f"nonce-{rank}", shard=2, lost=lost, dead=dead, members=members,
        first=first, last=last, done=done, held_back=held_back, decided=decided,
    )  # fmt: skip


def a_running_job(loss: str = "continue") -> tuple[World, int]:
    world = World()
    admitted = world.run(*(join(rank, SIZE, on_worker_loss=loss) for rank in range(SIZE)))
    return world, admitted.index


def regroup(world: World, request: Regroup) -> control.Reply:
    return world.say(request.nonce, request)


# R-JOB-12
def test_it_is_decided_when_all_ranks_that_are_left_have_said_it_and_all_are_told_the_same() -> None:
    world, _ = a_running_job()
    assert regroup(world, said(2)) == Waiting(job="j", missing=(0, 1))
    assert regroup(world, said(0, lost=(3,), dead=(3,))) == Waiting(job="j", missing=(1,))
    decided = regroup(world, said(1))
    assert decided == Regrouped(job="j", successor="j~1@2", ranks=(0, 1, 2), lost=(1, 3), dead=(3,), first=1)
    assert regroup(world, said(0)) == regroup(world, said(2, last=9)) == decided, "decided once"


@pytest.mark.parametrize("how", ["lost", "left", "lost after it has said it"])
def test_a_rank_that_is_gone_is_not_waited_for_and_comes_too_late(how: str) -> None:
    world, index = a_running_job()
    if how == "lost after it has said it":
        regroup(world, said(1, first=9, last=9))
    world.event(WorkerLeft(index, 1) if how == "left" else WorkerSilent(index, 1, 1.0))
    regroup(world, said(0, last=2))
    decided = regroup(world, said(2))
    assert isinstance(decided, Regrouped)
    assert (decided.ranks, decided.first, decided.again) == ((0, 2), 1, (1, 2))
    late = regroup(world, said(1))
    assert isinstance(late, control.Refused)
    assert (late.code, late.ranks) == (Refusal.MEMBER_LOST, (1,))


# R-JOB-12
def test_a_rank_that_is_lost_here_is_told_so_while_nothing_is_decided_since_others_may_have_it_elsewhere() -> None:
    world, index = a_running_job()
    world.event(WorkerSilent(index, 1, 1.0))
    told = regroup(world, said(1))
    assert isinstance(told, control.Refused)
    assert (told.code, told.ranks) == (Refusal.EVICTED, (1,))
    regroup(world, said(0))
    assert isinstance(regroup(world, said(2)), Regrouped)
    late = regroup(world, said(1))
    assert isinstance(late, control.Refused)
    assert late.code == Refusal.MEMBER_LOST


# R-JOB-12
def test_what_a_rank_has_heard_at_another_shard_is_what_was_decided() -> None:
    world, _ = a_running_job()
    assert regroup(world, said(0)) == Waiting(job="j", missing=(1, 2))
    heard = Regrouped(job="j", successor="j~1@1", ranks=(0, 2), lost=(0, 1), dead=(), first=3)
    assert regroup(world, said(2, decided=heard)) == heard
    assert regroup(world, said(0)) == heard
    assert isinstance(regroup(world, said(1)), control.Refused)


def goes_on(
    rank: int, places: tuple[int, ...] = (0, 1, 2), *, loss: str = "continue", **changes: object
) -> control.Join:
    """A rank of the successor, whose ranks had these places before."""
    succeeds = control.Predecessor(job="j", ranks=places)
    return join(
        rank, len(places), job="j~1@2", nonce=f"next-{rank}", on_worker_loss=loss, succeeds=succeeds, **changes
    )  # fmt: skip


def last(world: World, rank: int) -> control.Reply:
    """The last reply to a rank of the successor."""
    return world.told[f"next-{rank}"][-1]


# R-JOB-11
def test_a_successor_begins_without_the_rank_that_the_job_before_loses_at_this_switch() -> None:
    world, before = a_running_job()
    assert world.join(goes_on(0)) == Waiting(job="j~1@2", missing=(1, 2))
    assert world.join(goes_on(2)) == Waiting(job="j~1@2", missing=(1,))
    world.event(WorkerSilent(before, 1, 1.0))
    admitted = last(world, 0)
    assert isinstance(admitted, control.Admitted)
    index, evicted = admitted.index, world.servers["udp"].evicted
    world.event(WorkerJoined(index, 0))
    assert (index, 1) not in evicted, "who registers later must not hear that others are gone who come yet"
    world.event(WorkerJoined(index, 2))
    assert (index, 1) in evicted
    for rank in (0, 2):
        started = last(world, rank)
        assert isinstance(started, control.Started)
        assert started.processes == ("laptop:1000", "", "laptop:1002")
    late = world.refused(goes_on(1))
    assert (late.code, late.ranks) == (Refusal.EVICTED, (1,)), "it may be a member of the successor at other switches"


# R-JOB-11
def test_a_rank_of_another_successor_is_not_told_that_only_this_switch_is_without_it() -> None:
    """The others may have gone on in the first one everywhere, so nobody may go on in the second."""
    world, _ = a_running_job()
    index = world.admit(*(goes_on(rank) for rank in range(SIZE))).index
    for rank in range(SIZE):
        world.event(WorkerJoined(index, rank))
    late = world.refused(replace(goes_on(0, places=(1,)), job="j~1@3", nonce="other"))
    assert (late.code, late.ranks) == (Refusal.MEMBER_LOST, (0,))


def test_a_successor_knows_who_was_lost_before_anybody_asked_for_it_and_by_which_number() -> None:
    world, before = a_running_job()
    world.event(WorkerSilent(before, 0, 1.0))
    assert isinstance(world.join(goes_on(1, places=(0, 2))), control.Admitted), "rank 0 is lost, and 1 was rank 2"


def test_a_successor_does_not_wait_for_a_rank_that_asked_and_died() -> None:
    world, before = a_running_job()
    for rank in (1, 0):
        world.join(goes_on(rank))
    world.event(WorkerSilent(before, 1, 1.0))
    assert world.join(goes_on(0)) == Waiting(job="j~1@2", missing=(2,)), "it may live, and be lost to that job alone"
    world.controller.hung_up(b"next-1", world.now)
    world.advance(2 * SUSPICION_TIMEOUT_S)
    assert isinstance(world.join(goes_on(2)), control.Admitted)


def test_a_successor_waits_for_who_has_left_the_job_before_in_order() -> None:
    """It may be in another successor, if two shards have decided: then nobody may go on without it."""
    world, before = a_running_job()
    world.event(WorkerLeft(before, 1))
    for rank in (0, 2):
        assert isinstance(world.join(goes_on(rank)), Waiting)


# R-JOB-11
@pytest.mark.parametrize("how", ["silent", "gives up", "lapses"])
@pytest.mark.parametrize("succeeds", [True, False])
def test_a_successor_that_starts_goes_on_without_whom_it_loses_and_another_job_does_not(
    how: str, succeeds: bool
) -> None:
    world, _ = a_running_job()
    asked = [goes_on(rank) if succeeds else replace(goes_on(rank), succeeds=None) for rank in range(SIZE)]
    index = world.admit(*asked).index
    world.event(WorkerJoined(index, 1))
    if how == "silent":
        world.event(WorkerSilent(index, 1, 1.0))
    elif how == "gives up":
        world.say("next-1", control.Leave(job="j~1@2", rank=1, nonce="next-1", reason="it is tired"))
    else:
        for _ in range(9):
            world.advance(control.JOIN_INTERVAL_S)
            for rank in (0, 2):
                world.join(asked[rank])
    for rank in (0, 2):
        world.event(WorkerJoined(index, rank))
    told = [type(each) for each in world.told["next-0"]]
    assert (control.Started in told, control.Refused in told) == (succeeds, not succeeds)
    assert ((index, 1) in world.servers["udp"].evicted) is succeeds
    assert ("running" in world.state_of("j~1@2")) is succeeds


def test_a_successor_of_which_nobody_is_left_ends() -> None:
    world, _ = a_running_job()
    index = world.admit(*(goes_on(rank) for rank in range(SIZE))).index
    for rank in range(SIZE):
        world.event(WorkerSilent(index, rank, 1.0))
    assert world.state_of("j~1@2") == ["ended"]


def test_ranks_that_succeed_unlike_jobs_are_refused() -> None:
    world, _ = a_running_job()
    world.join(goes_on(0))
    assert world.refused(replace(goes_on(2), succeeds=control.Predecessor(job="k", ranks=(0, 1, 2))))
    odd = world.refused(replace(goes_on(1), job="other", succeeds=control.Predecessor(job="j", ranks=(0,))))
    assert odd.code == Refusal.MALFORMED


def test_results_that_somebody_has_count_and_the_rest_is_summed_anew() -> None:
    decided = decide("j~4@1", 2, {0: said(0, 3, 8, (5, 5, 7, 8)), 1: said(1, 6, 6), 4: said(4, 4, 7, (6, 6))})
    assert decided is not None
    assert (decided.successor, decided.first) == ("j~5@2", 3)
    assert dict(zip(decided.again, decided.holders, strict=True)) == {3: 1, 4: 1, 5: 0, 6: 4, 7: 0, 8: 0}
    nobody = decide("j", 2, {0: said(0, 2, 3), 1: said(1, 2, 2)})
    assert nobody is not None
    assert (nobody.again, nobody.holders) == ((2, 3), (-1, -1))


# R-JOB-12
def test_a_sum_that_was_held_back_is_there_once_another_rank_has_done_it() -> None:
    """The other rank may have forgotten its result: it knew that all have it."""
    decided = decide("j", 2, {0: said(0, 4, 6), 1: said(1, 2, 6, (4, 4), held_back=(2, 3, 6, 6))})
    assert decided is not None
    assert dict(zip(decided.again, decided.holders, strict=True)) == {4: 1, 5: -1, 6: -1}
    lacking = decide("j", 2, {0: said(0, 4, 3), 1: said(1, 2, 3, held_back=(2, 2)), 2: said(2, 2, 3, (3, 3))})
    assert lacking is not None
    assert dict(zip(lacking.again, lacking.holders, strict=True)) == {2: 0, 3: 0}


def test_ranks_that_cannot_be_so_far_apart_are_refused() -> None:
    assert decide("j", 2, {0: said(0, 1, 1), 1: said(1, 1, MAX_OPEN_REDUCTIONS + 1)}) is None


# R-JOB-7
def test_a_job_that_ends_with_its_first_loss_goes_on_elsewhere_with_all_of_its_ranks() -> None:
    world, _ = a_running_job("raise")
    assert regroup(world, said(0)) == Waiting(job="j", missing=(1, 2))
    assert regroup(world, said(2)) == Waiting(job="j", missing=(1,))
    decided = regroup(world, said(1, lost=(0,)))
    assert isinstance(decided, Regrouped)
    assert (decided.ranks, decided.lost) == ((0, 1, 2), (0, 1))
    for rank in (0, 2):
        assert isinstance(world.join(goes_on(rank, loss="raise")), Waiting)
    assert isinstance(world.join(goes_on(1, loss="raise")), control.Admitted)


# R-JOB-7
@pytest.mark.parametrize("how", ["lost", "left", "lost after it has said it", "leaves"])
def test_a_job_that_ends_with_its_first_loss_does_not_go_on_without_it(how: str) -> None:
    world, index = a_running_job("raise")
    if how == "lost after it has said it":
        regroup(world, said(1))
    if how == "leaves":
        world.say("nonce-1", control.Leave(job="j", rank=1, nonce="nonce-1"))
    else:
        world.event(WorkerLeft(index, 1) if how == "left" else WorkerSilent(index, 1, 1.0))
    for rank in (0, 2):
        refused = regroup(world, said(rank))
        assert isinstance(refused, control.Refused)
        assert (refused.code, refused.ranks) == (Refusal.MEMBER_LOST, (1,))


# R-JOB-11
def test_a_successor_of_a_job_that_ends_with_its_first_loss_waits_for_all() -> None:
    world, before = a_running_job("raise")
    for rank in (0, 2):
        assert isinstance(world.join(goes_on(rank, loss="raise")), Waiting)
    world.event(WorkerSilent(before, 1, 1.0))
    assert world.join(goes_on(0, loss="raise")) == Waiting(job="j~1@2", missing=(1,))


def test_strangers_are_refused() -> None:
    world, _ = a_running_job()
    stranger = world.say("x", replace(said(0), nonce="another"))
    assert isinstance(stranger, control.Refused)
    assert stranger.code == Refusal.MEMBER_LOST
