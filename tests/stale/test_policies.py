"""Duties of every policy of the table: its jobs come to an end, and every gradient is accounted for."""

from __future__ import annotations

import pytest

from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.scenario import JobPlan, Scenario
from fanin.emulation.simulator.simulation import simulate
from fanin.host.stale.account import Account
from fanin.host.stale.policies import POLICIES, make_policy
from fanin.host.stale.rounds import StaleRounds, Step
from fanin.host.stale.scale import ScaleEpochs
from tests.support.repository import ROOT

EVERY_POLICY = pytest.mark.parametrize("name", POLICIES)


@EVERY_POLICY
@pytest.mark.parametrize("seed", range(4))
def test_a_job_with_a_slow_worker_and_losses_ends_and_balances(name: str, seed: int) -> None:
    job = JobPlan(workers=3, quorum=2, staleness=2, think_s=0.001, slow=(1.0, 1.0, 5.0), policy=name)
    report = simulate(Scenario(jobs=(job,), link=Link(loss=0.1, reorder=0.1), noise_s=0.4), seed, kind="python")
    assert report.attempts == 1


@EVERY_POLICY
@pytest.mark.parametrize("versions_late", range(4))
def test_a_flush_without_a_known_end_leaves_nothing_in_hand(name: str, versions_late: int) -> None:
    account = Account(0, 1)
    rounds = StaleRounds(make_policy(name), 1, ScaleEpochs(staleness=1, epoch_rounds=99, power=0), account)
    for _ in range(versions_late):
        rounds.hand_in(rounds.base)
        assert rounds.next_action() is Step.CONTRIBUTE
        rounds.finished()
    rounds.hear(rounds.base)
    rounds.hand_in(0)
    for _ in range(2):
        while rounds.next_action() is not None:
            pass
        if rounds.under_way:
            rounds.finished()
        if not rounds.ready:
            rounds.flush()
    while not rounds.done:
        while rounds.next_action() is not None:
            pass
        rounds.finished()
    account.check()
    assert account.in_hand == 0
    assert account.handed_in == account.contributed + sum(account.dropped.values())


@EVERY_POLICY
@pytest.mark.parametrize("workers", [1, 2, 3, 32])
def test_its_quorum_is_one_that_a_job_may_have(name: str, workers: int) -> None:
    assert 1 <= POLICIES[name].default_quorum(workers) <= workers


@EVERY_POLICY
def test_it_has_a_row_in_the_page_on_staleness_and_its_own_name(name: str) -> None:
    assert f"\n| `{name}` |" in (ROOT / "docs/staleness.md").read_text()
    assert POLICIES[name].name == name
