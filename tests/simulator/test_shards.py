"""Ranks that go on without shards that they lose, in virtual time, and what the checkers of that must find."""

from __future__ import annotations

import dataclasses
import re

import pytest

from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.shard_search import SELDOM_DRAWN, SHARD_DEFECTS, hunt_shards, shorten_shards
from fanin.emulation.simulator.shards import FaultKind, ShardFault, ShardPlan, Step, draw_shards, simulate_shards
from fanin.emulation.simulator.violations import ConservationError
from fanin.host.machine.shard_agreement import Whole
from fanin.host.session.doubt import Doubt
from fanin.host.session.survivor import Survivor

FOUND_AS = {
    "passes nothing on": {"progress", "agreement"},
    "goes on in any part": {"agreement"},
    "keeps what it held back": {"progress"},
    "doubts nothing": {"conservation", "progress", "agreement"},
    "finishes meanwhile": {"crash", "agreement", "conservation"},
    "sums with what it has": {"agreement", "conservation", "progress"},
    "waits for the dead": {"progress"},
    "takes zeros for results": {"agreement", "conservation"},
    "has one name for all": {"progress", "agreement"},
}


def fault(kind: FaultKind, host: int, at_s: float = 0.1, *, after: Step | None = None, rank: int = 0) -> ShardFault:
    return ShardFault(kind=kind, host=host, at_s=at_s, after=after, rank=rank)


@pytest.mark.parametrize(("kind", "plans"), [("native", 40), ("python", 12)])
def test_drawn_plans_violate_nothing(kind: Kind, plans: int) -> None:
    dealt_anew = sum(simulate_shards(draw_shards(seed), seed, kind=kind).jobs > 1 for seed in range(plans))
    assert dealt_anew >= plans // 3


@pytest.mark.parametrize(
    ("faults", "ranks", "jobs"),
    [
        ((), 3, 1),
        ((fault("dies", 0),), 3, 2),
        ((fault("halts", 2),), 3, 2),
        ((fault("kills", 1),), 2, 2),
        ((fault("power", 2),), 2, 2),
        ((fault("kills", 0), fault("kills", 1)), 1, 2),
        ((fault("dies", 2), fault("dies", 0, 0.0, after="hears")), 3, 3),
        ((fault("dies", 2), fault("halts", 0, 0.0, after="hears")), 3, 3),
        ((fault("dies", 2), fault("dies", 1, 0.001, after="hears")), 3, 3),
        ((fault("dies", 0), fault("dies", 1, 2.0)), 3, 3),
        ((fault("dies", 0), fault("dies", 1), fault("dies", 2)), 0, 1),
        ((fault("part", 1),), 2, 2),
        ((fault("cut", 1, rank=2),), 3, 2),
    ],
    ids=lambda given: "+".join(f"{each.kind}{each.host}" for each in given) if isinstance(given, tuple) else None,
)
def test_who_goes_on_and_in_how_many_jobs(faults: tuple[ShardFault, ...], ranks: int, jobs: int) -> None:
    """With faults `after`, the shard that is asked dies when it has told the first rank what was decided."""
    for loss in (0.0, 0.02):
        report = simulate_shards(ShardPlan(hosts=3, steps=60, link=Link(loss=loss), faults=faults), 1)
        assert (report.ranks, report.jobs) == (ranks, jobs), report


@pytest.mark.parametrize("step", ["asks", "hears", "meets", "goes on"])
@pytest.mark.parametrize("kind", ["kills", "power", "ends", "stops"])
@pytest.mark.parametrize("host", [0, 1])
def test_a_rank_that_dies_at_any_step_to_the_new_job_is_left_out_of_it(host: int, kind: FaultKind, step: Step) -> None:
    """With its host or without it; the shard that is asked is that of host 0."""
    faults = (fault("dies", 3), fault(kind, host, 0.0002, after=step))
    report = simulate_shards(ShardPlan(hosts=4, steps=60, faults=faults), 1)
    assert report.ranks == 3, report
    assert not report.stopped


@pytest.mark.parametrize("step", ["hears", "meets", "goes on"])
def test_a_result_is_not_zeros_because_the_only_rank_that_had_it_died_while_it_handed_it_on(step: Step) -> None:
    """With so many packets lost, rank 1 alone has some results when the shard dies."""
    faults = (fault("dies", 2, 0.10037), fault("ends", 1, 0.0, after=step))
    plan = ShardPlan(hosts=3, steps=60, think_s=0.003, packets=13, link=Link(loss=0.15), faults=faults)
    report = simulate_shards(plan, 1)
    assert (report.ranks, report.jobs) == (2, 3)


@pytest.mark.parametrize("seed", [1, 150])
def test_what_a_shard_and_the_only_rank_that_heard_it_take_with_them_is_not_in_the_way(seed: int) -> None:
    report = simulate_shards(SELDOM_DRAWN["has one name for all"], seed)
    assert (report.ranks, report.stopped) == (3, ())


class NumbersAlone(Doubt):
    """Compares how many ranks have contributed with how many are left, and not which ones."""

    def about(self, arrived: int | None) -> bool:
        enough = arrived is not None and arrived.bit_count() >= len(self._shards[0].known_members)
        return super().about(None if enough else arrived)


class CountsContributors(Survivor):
    doubt_type = NumbersAlone


def test_a_sum_may_not_lack_a_rank_because_it_has_one_that_died() -> None:
    """Shard 0 loses rank 2, which has contributed, then rank 1, which has not and is at the other shards: as many
    have contributed as rank 0 knows to be left, since the news of the second loss gets lost."""
    faults = (fault("stops", 2, 0.0781), fault("cut", 0, 0.08381, rank=1))
    plan = ShardPlan(hosts=3, spares=1, steps=12, packets=3, link=Link(loss=0.2), faults=faults)
    report = simulate_shards(plan, 343)
    assert (report.ranks, report.jobs) == (2, 2), report
    with pytest.raises(ConservationError, match=re.escape("[1, 0, 1]")):
        simulate_shards(plan, 343, survivor=CountsContributors)


def test_of_two_halves_that_cannot_reach_each_other_the_one_with_the_lowest_shard_goes_on() -> None:
    report = simulate_shards(ShardPlan(hosts=4, faults=(fault("part", 2),)), 1)
    assert report.ranks == 2
    assert len(report.stopped) == 2
    assert all("fell into two" in text for text in report.stopped)


@pytest.mark.parametrize(
    ("left", "dead", "may"),
    [
        ((0, 1), (), True),
        ((2, 3), (), False),
        ((1, 2, 3), (), True),
        ((3,), (), False),
        ((3,), (0, 1, 2), True),
        ((2, 3), (0,), True),
        ((0,), (1,), False),
    ],
)
def test_the_smaller_part_of_four_shards_does_not_go_on(
    left: tuple[int, ...], dead: tuple[int, ...], may: bool
) -> None:
    assert Whole(workers=4, shards=(0, 1, 2, 3)).may_go_on(3, left, dead) is may


def test_a_job_that_began_only_in_the_smaller_part_of_a_network_does_not_go_on() -> None:
    """Rank 0 is alone when the network falls apart, and knows of shard 1 first: so it agrees with itself on a job at
    shards 0 and 3, which is half of a job that shard 3 never was in."""
    faults = (fault("kills", 2, 0.02135), fault("part", 1, 0.44474))
    for seed in range(1560, 1580):
        report = simulate_shards(ShardPlan(hosts=4, faults=faults), seed)
        assert report.ranks == 2, report


HUNTED_FROM = {"keeps what it held back": 54, "passes nothing on": 57, "takes zeros for results": 187}
"""Seeds of hunts for defects that few plans show: a few before one that does, since a plan takes a second."""
SLOW = {"passes nothing on"}
"""Defects by which ranks wait forever, which takes the simulator some seconds to say."""


@pytest.mark.parametrize(
    "defect", [pytest.param(each, marks=pytest.mark.thorough if each in SLOW else ()) for each in SHARD_DEFECTS]
)
def test_a_defect_in_what_ranks_agree_on_is_found(defect: str) -> None:
    found = hunt_shards(defect, HUNTED_FROM.get(defect, 150))
    assert found is not None
    assert found.violation.kind in FOUND_AS[defect]


@pytest.mark.thorough
def test_a_plan_that_fails_is_shortened_to_the_faults_that_it_takes() -> None:
    survivor = SHARD_DEFECTS["passes nothing on"]
    needed = (fault("dies", 2), fault("dies", 0, 0.0, after="hears"))
    plan = ShardPlan(hosts=4, faults=(fault("cut", 3, 5.0, rank=1), *needed))
    assert shorten_shards(plan, 1, survivor=survivor) == needed
    simulate_shards(dataclasses.replace(plan, faults=needed), 1)
