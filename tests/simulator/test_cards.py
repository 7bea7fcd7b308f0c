"""Ranks that go on over the network cards that are left, in virtual time, and what the checks of that must find."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest

from fanin.emulation.simulator import shard_search
from fanin.emulation.simulator.cards import FLAP_S, CardFault, CardFaultKind, CardPlan, draw_cards, simulate_cards
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.shard_search import SumsWithWhatItHas
from fanin.emulation.simulator.shards import LIVENESS_TIMEOUT_S, FaultKind, ShardFault, Step
from fanin.emulation.simulator.violations import ViolationError
from fanin.host.session.card_survivor import CardSurvivor
from fanin.host.session.kept_reductions import KeptReduction
from fanin.numerics.reduction import Reduction


def card(
    host: int,
    number: int,
    at_s: float = 0.1,
    *,
    after: Step | None = None,
    kind: CardFaultKind = "card",
    lasts_s: float = FLAP_S,
) -> CardFault:
    return CardFault(kind=kind, host=host, card=number, at_s=at_s, after=after, lasts_s=lasts_s)


@pytest.mark.parametrize(("kind", "plans"), [("native", 40), ("python", 8)])
def test_drawn_plans_violate_nothing(kind: Kind, plans: int) -> None:
    reports = [simulate_cards(draw_cards(seed), seed, kind=kind) for seed in range(plans)]
    assert sum(report.jobs > 1 for report in reports) >= plans // 3
    assert sum(bool(report.stopped) for report in reports) >= plans // 12


@pytest.mark.parametrize(
    ("faults", "cards", "ranks", "jobs"),
    [
        ((), 2, 3, 1),
        ((card(1, 1),), 2, 3, 2),
        ((card(1, 0),), 2, 3, 2),
        ((card(1, 1, kind="flaps"),), 2, 3, 1),
        ((card(0, 1), card(2, 1)), 2, 3, 2),
        ((card(0, 1), card(2, 1, 3.0)), 2, 3, 2),
        ((card(0, 1), card(2, 0)), 2, 0, 1),
        ((card(1, 0), card(1, 1)), 2, 0, 1),
        ((card(1, 1), card(1, 0, 0.0, after="goes on")), 2, 0, 2),
        ((card(1, 1), card(1, 2)), 3, 3, 2),
        ((card(1, 0), card(2, 1)), 3, 3, 2),
        ((card(1, 0), card(2, 1, 0.0, after="goes on")), 3, 3, 3),
        ((card(1, 1), card(1, 2, 0.0, after="hears")), 3, 0, 1),
    ],
)
def test_who_goes_on_and_in_how_many_jobs(faults: tuple[CardFault, ...], cards: int, ranks: int, jobs: int) -> None:
    for loss in (0.0, 0.02):
        report = simulate_cards(CardPlan(hosts=3, cards=cards, link=Link(loss=loss), card_faults=faults), 1)
        assert (report.ranks, report.jobs) == (ranks, jobs), report


@pytest.mark.parametrize("step", ["asks", "hears", "meets", "goes on"])
@pytest.mark.parametrize("kind", ["kills", "power", "ends", "stops"])
@pytest.mark.parametrize("host", [0, 1])
def test_nobody_goes_on_without_a_rank_that_dies_after_a_card(host: int, kind: FaultKind, step: Step) -> None:
    """The shard that is asked is that of host 0."""
    later = ShardFault(kind=kind, host=host, at_s=0.0002, after=step)
    report = simulate_cards(CardPlan(hosts=3, packets=3, card_faults=(card(2, 1),), faults=(later,)), 1)
    assert report.ranks == 0
    assert len(report.stopped) == 2


@pytest.mark.parametrize(("kind", "plans"), [("native", 40), ("python", 8)])
def test_drawn_plans_of_jobs_that_go_on_without_lost_ranks_violate_nothing(kind: Kind, plans: int) -> None:
    reports = [simulate_cards(draw_cards(seed, leaves_out=True), seed, kind=kind) for seed in range(plans)]
    assert sum(report.jobs > 1 for report in reports) >= plans // 3


@pytest.mark.parametrize(
    ("faults", "cards", "ranks", "jobs"),
    [
        ((), 2, 3, 1),
        ((card(1, 1),), 2, 3, 2),
        ((card(0, 0),), 2, 3, 2),
        ((card(1, 1, kind="flaps"),), 2, 3, 1),
        ((card(1, 1, 0.05, kind="flaps", lasts_s=0.95 * LIVENESS_TIMEOUT_S),), 2, 3, 2),
        ((card(0, 0, kind="flaps", lasts_s=4 * LIVENESS_TIMEOUT_S),), 2, 3, 2),
        ((card(1, 1, 0.05, kind="mute"),), 2, 3, 2),
        ((card(1, 0, kind="mute"), card(2, 0)), 2, 3, 2),
        ((card(0, 1), card(2, 1)), 2, 3, 2),
        ((card(0, 1), card(2, 1, 3.0)), 2, 3, 2),
        ((card(1, 0), card(1, 1)), 2, 2, 2),
        ((card(1, 0, kind="mute"), card(1, 1, kind="mute")), 2, 2, 2),
        ((card(0, 1), card(2, 0)), 2, 0, 1),
        ((card(1, 1), card(1, 2)), 3, 3, 2),
    ],
)
def test_a_host_is_left_out_only_if_all_of_its_cards_are_lost(
    faults: tuple[CardFault, ...], cards: int, ranks: int, jobs: int
) -> None:
    for loss in (0.0, 0.02):
        plan = CardPlan(hosts=3, cards=cards, link=Link(loss=loss), card_faults=faults, leaves_out=True)
        report = simulate_cards(plan, 1)
        assert (report.ranks, report.jobs) == (ranks, jobs), report


@pytest.mark.parametrize("after", ["asks", "hears"])
def test_a_rank_that_a_shard_of_the_new_job_has_lost_before_it_came_is_lost_by_that_shard_alone(after: Step) -> None:
    """Its card works again when it joins there."""
    late = card(1, 0, 0.0034, after=after, kind="flaps", lasts_s=0.95 * LIVENESS_TIMEOUT_S)
    dies = ShardFault(kind="dies", host=0, at_s=0.2475)
    plan = CardPlan(hosts=2, packets=3, card_faults=(late,), faults=(dies,), leaves_out=True)
    report = simulate_cards(plan, 1)
    assert (report.ranks, report.jobs, report.stopped) == (2, 3, ())


def test_a_rank_that_alone_has_lost_a_shard_waits_until_the_others_have_noticed() -> None:
    """The shard hears rank 0, which does not hear it, so it expects that rank in the new job for JOIN_LEASE_S."""
    faults = (ShardFault(kind="halts", host=2, at_s=0.2444),)
    mute = card(1, 1, 2.3568, kind="mute")
    report = simulate_cards(CardPlan(hosts=2, packets=13, card_faults=(mute,), faults=faults, leaves_out=True), 1024)
    assert (report.ranks, report.jobs, report.stopped) == (2, 3, ())


def test_a_plan_that_fails_is_shortened_to_the_faults_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = (card(0, 1), ShardFault(kind="halts", host=2))

    def run(plan: CardPlan, seed: int, **_: object) -> None:
        if {*needed}.issubset({*plan.card_faults, *plan.faults}):
            raise ViolationError("both of them")

    monkeypatch.setattr(shard_search, "simulate_cards", run)
    plan = CardPlan(hosts=3, card_faults=(card(1, 1), needed[0]), faults=(needed[1], ShardFault(kind="dies", host=1)))
    assert shard_search.shorten_plan(plan, 1, kind="native") == needed


class HasEveryResult(SumsWithWhatItHas, CardSurvivor):
    """Hands on what it has, though another rank has the result."""


class KeepsNoInput(CardSurvivor):
    """Lets sums write to their destinations, which may be their inputs, before they are whole."""

    def _deal(self, kept: KeptReduction, reduction: Reduction, now: float) -> None:
        if kept.given is not None and reduction.destination == kept.result.ctypes.data:
            there = (ctypes.c_int32 * len(kept.result)).from_address(kept.given.destination)
            kept.result = np.ctypeslib.as_array(there)
            reduction = dataclasses.replace(reduction, destination=kept.given.destination)
        super()._deal(kept, reduction, now)


@pytest.mark.parametrize("defect", [HasEveryResult, KeepsNoInput])
def test_the_checks_find_defects(defect: type[CardSurvivor]) -> None:
    def is_caught(seed: int) -> bool:
        plan = CardPlan(hosts=3, card_faults=(card(1, 1, 0.03 + seed / 997),), link=Link(loss=0.05), packets=13)
        try:
            simulate_cards(plan, seed, survivor=defect)
        except ViolationError:
            return True
        return False

    assert any(map(is_caught, range(40)))
