"""What a controller decides when ranks of a job over several shards have lost others of them."""

from __future__ import annotations

import pytest

from fanin.protocol import control
from fanin.protocol.control import Refusal, Regroup, Regrouped, Waiting
from fanin.protocol.events import WorkerLeft, WorkerSilent
from fanin.switch.controller.regroup import MAX_OPEN_REDUCTIONS, decide
from tests.support.controllers import World, join

SIZE = 3


def said(
    rank: int, first: int = 1, last: int = 0, done: tuple[int, ...] = (), lost: tuple[int, ...] = (1,),
    dead: tuple[int, ...] = (), gone: tuple[int, ...] = (), decided: Regrouped | None = None,
) -> Regroup:  # fmt: skip
    return Regroup(
        job="j", rank=rank, nonce=f"nonce-{rank}", lost=lost, dead=dead, gone=gone, first=first, last=last, done=done,
        decided=decided,
    )  # fmt: skip


def a_running_job(loss: str = "continue") -> tuple[World, int]:
    world = World()
    admitted = world.run(*(join(rank, SIZE, on_worker_loss=loss) for rank in range(SIZE)))
    return world, admitted.index


def regroup(world: World, request: Regroup) -> control.Reply:
    return world.say(request.nonce, request)


def test_it_is_decided_when_all_ranks_that_are_left_have_said_it_and_all_are_told_the_same() -> None:
    world, _ = a_running_job()
    assert regroup(world, said(2)) == Waiting(job="j", missing=(0, 1))
    assert regroup(world, said(0, lost=(3,), dead=(3,))) == Waiting(job="j", missing=(1,))
    decided = regroup(world, said(1))
    assert decided == Regrouped(job="j", successor="j~1", ranks=(0, 1, 2), lost=(1, 3), dead=(3,), first=1)
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


def test_a_rank_that_another_one_misses_at_some_shard_is_left_out_and_not_waited_for() -> None:
    world, _ = a_running_job()
    assert regroup(world, said(0, gone=(1,))) == Waiting(job="j", missing=(2,))
    decided = regroup(world, said(2))
    assert isinstance(decided, Regrouped)
    assert decided.ranks == (0, 2)
    assert isinstance(regroup(world, said(1)), control.Refused)


def test_what_a_rank_has_heard_at_another_shard_is_what_was_decided() -> None:
    world, _ = a_running_job()
    assert regroup(world, said(0)) == Waiting(job="j", missing=(1, 2))
    heard = Regrouped(job="j", successor="j~1", ranks=(0, 2), lost=(0, 1), dead=(), first=3)
    assert regroup(world, said(2, decided=heard)) == heard
    assert regroup(world, said(0)) == heard
    assert isinstance(regroup(world, said(1)), control.Refused)


def test_results_that_somebody_has_count_and_the_rest_is_summed_anew() -> None:
    decided = decide("j~4", {0: said(0, 3, 8, (5, 5, 7, 8)), 1: said(1, 6, 6), 4: said(4, 4, 7, (6, 6))})
    assert decided is not None
    assert (decided.successor, decided.first) == ("j~5", 3)
    assert dict(zip(decided.again, decided.holders, strict=True)) == {3: 1, 4: 1, 5: 0, 6: 4, 7: 0, 8: 0}
    nobody = decide("j", {0: said(0, 2, 3), 1: said(1, 2, 2)})
    assert nobody is not None
    assert (nobody.again, nobody.holders) == ((2, 3), (-1, -1))


def test_ranks_that_cannot_be_so_far_apart_are_refused() -> None:
    assert decide("j", {0: said(0, 1, 1), 1: said(1, 1, MAX_OPEN_REDUCTIONS + 1)}) is None


def test_a_job_that_ends_with_its_first_loss_and_strangers_are_refused() -> None:
    world, _ = a_running_job("raise")
    refused = regroup(world, said(0))
    assert isinstance(refused, control.Refused)
    assert refused.code == Refusal.DISAGREEMENT
    stranger = world.say("x", Regroup(job="j", rank=0, nonce="another", lost=(), dead=(), gone=(), first=1, last=0))
    assert isinstance(stranger, control.Refused)
    assert stranger.code == Refusal.MEMBER_LOST
