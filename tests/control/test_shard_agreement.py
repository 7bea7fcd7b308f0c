"""A rank asks one shard after another how its job goes on, until its agreement ends."""

from __future__ import annotations

from fanin.host.machine.shard_agreement import SETTLING_S, Agreement, Place, RankProgress, Stage, Whole, Why
from fanin.protocol.control import Refusal, Refused

SHARDS = (0, 1, 2)


def asking() -> Agreement:
    """An agreement of rank 1 of three, which has lost shard 0 and is about to ask."""
    places = {shard: Place(worker=1, nonce=f"nonce-{shard}") for shard in SHARDS}
    agreement = Agreement(
        "j", SHARDS, places, lambda shard: (0, 1, 2), RankProgress(first=1, last=0), lost={0}, dead=(),
        whole=Whole(workers=3, shards=SHARDS), patience_s=2.0, now=0.0,
    )  # fmt: skip
    agreement.handle_timer(SETTLING_S)
    return agreement


def refused(code: Refusal) -> Refused:
    return Refused(code=code.value, reason="so it is", remedy="start again", ranks=(1,))


# R-JOB-12
def test_a_rank_that_a_shard_has_evicted_asks_those_that_may_still_have_it() -> None:
    agreement = asking()
    ((first, _),) = agreement.requests(SETTLING_S)
    agreement.receive(first, refused(Refusal.EVICTED), SETTLING_S)
    ((second, said),) = agreement.requests(SETTLING_S)
    assert (first, second, said.lost) == (1, 2, (0, 1))
    agreement.receive(second, refused(Refusal.EVICTED), SETTLING_S)
    assert (agreement.stage, agreement.why) == (Stage.STRANDED, Why.REFUSED), "no shard has it"


def test_a_rank_that_others_go_on_without_asks_nobody_else() -> None:
    agreement = asking()
    agreement.receive(1, refused(Refusal.MEMBER_LOST), SETTLING_S)
    assert (agreement.stage, agreement.why) == (Stage.STRANDED, Why.REFUSED)
