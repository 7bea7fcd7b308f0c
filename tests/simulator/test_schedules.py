"""Drawn schedules and shipped scenarios: nothing is violated, a seed replays a run, and twin and native run alike.

`make simulate` does thousands of schedules; these are few, so that a broken machine shows here, too.
"""

from __future__ import annotations

import numpy as np
import pytest

from fanin.emulation.simulator.chaos import draw
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.scenario import (
    OF_A_LEAF,
    SCENARIO_FOLDER,
    Fault,
    JobPlan,
    Scenario,
    load,
    parse,
    to_toml,
)
from fanin.emulation.simulator.search import search
from fanin.emulation.simulator.simulation import simulate
from fanin.emulation.simulator.violations import ViolationError
from fanin.host.machine.scale_forecast import AGE_WORDS, Forecast
from fanin.host.stale.policies import POLICIES
from tests.support.cluster import WORKER_MACHINES
from tests.support.thorough import thorough

SHIPPED = sorted(path.stem for path in SCENARIO_FOLDER.glob("*.toml"))
SMALL = Scenario(
    jobs=(JobPlan(workers=3, element="float32", chunks=1, short=2, steady_steps=5, steps=40, ahead=3, think_s=0.001),),
    link=Link(loss=0.1, duplicate=0.1, reorder=0.2, stray=0.05, corrupt=0.05),
    noise_s=0.3,
)
"""Reductions of one packet, whose scales stay the same for five steps."""
NATIVE_SCHEDULES = 200
TWIN_SCHEDULES = 40


def built(kind: Kind) -> None:
    if kind == "native" and WORKER_MACHINES["native"] is None:
        pytest.skip("the native extension is not built")


def events_of(name: str, seed: int, kind: Kind) -> list[str]:
    """Events of a run that violates nothing, and in which something is summed."""
    lines: list[str] = []
    assert simulate(load(name), seed, kind=kind, show=lines.append).contributions > 0
    return lines


def test_drawn_schedules_violate_nothing_with_native_machines() -> None:
    built("native")
    tally = search(0, NATIVE_SCHEDULES)
    assert not tally.failed, tally.failed[0][1]
    assert tally.schedules == NATIVE_SCHEDULES


def test_drawn_schedules_violate_nothing_with_twins() -> None:
    tally = search(100_000, TWIN_SCHEDULES, kind="python")
    assert not tally.failed, tally.failed[0][1]


@pytest.mark.parametrize("name", ["hostile-link", "switch-restart"])
def test_a_seed_replays_every_event_and_another_does_not(name: str) -> None:
    kind: Kind = "python" if WORKER_MACHINES["native"] is None else "native"  # a tenth of the time
    assert events_of(name, 3, kind) == events_of(name, 3, kind)
    assert events_of(name, 3, kind) != events_of(name, 4, kind)


@pytest.mark.parametrize("name", [thorough(name) if name == "tree" else name for name in SHIPPED])
def test_shipped_scenarios_violate_nothing_and_twins_run_as_native_machines_event_by_event(name: str) -> None:
    built("native")
    assert events_of(name, 2, "native") == events_of(name, 2, "python")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["native", "python"])
def test_small_reductions_are_right_whether_forecasts_hold_or_not(kind: Kind, seed: int) -> None:
    built(kind)
    report = simulate(SMALL, seed, kind=kind)
    assert report.forecasts > 0
    assert report.forecasts_missed > 0


def test_a_worker_that_takes_codes_of_different_ages_for_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecasts from different reductions were not quantized alike, even where one of them is right."""
    monkeypatch.setattr(Forecast, "holds", lambda self, agreed, *_: np.array_equal(agreed, self.codes))
    with pytest.raises(ViolationError) as caught:
        simulate(SMALL, 0, kind="python")
    assert caught.value.kind in ("conservation", "agreement")


def test_an_eviction_waits_for_a_switch_that_is_stopped() -> None:
    """A contribution waits in its socket, sent before the eviction, to the round which the eviction closes."""
    job = JobPlan(
        workers=4,
        staleness=1,
        max_staleness=3,
        slots=1,
        chunks=1,
        steps=1,
        think_s=0.001,
        slow=(5.0, 1.0, 5.0, 1.0),
        policy="wait",
        on_worker_loss="continue",
    )
    stopped = Fault(kind="pause", at_s=0.009, for_s=0.9)
    evicted = Fault(kind="evict", at_s=0.26, rank=3)
    scenario = Scenario(jobs=(job,), link=Link(stray=0.002), faults=(stopped, evicted), noise_s=0.4)
    for seed in (*range(20), 1259):
        simulate(scenario, seed, kind="python")


def test_a_rank_that_asks_again_while_another_has_left_does_not_block_its_own_name() -> None:
    link = Link(loss=0.3, reorder=0.25, reorder_s=0.02, corrupt=0.25)
    job = JobPlan(workers=3, slots=1, steps=1, think_s=0.02, slow=(5.0, 1.0, 5.0), tree=True)
    left = Fault(kind="leave", at_s=0.28, for_s=1.1, rank=0)
    scenario = Scenario(jobs=(job,), leaves=2, link=link, faults=(left,), noise_s=0.4, liveness_timeout_s=1.0)
    for seed in range(30):
        simulate(scenario, seed, kind="python")


def test_processes_find_what_one_process_finds() -> None:
    alone, together = search(0, 30, kind="python"), search(0, 30, kind="python", processes=2)
    assert (alone.events, alone.packets, alone.virtual_s) == (together.events, together.packets, together.virtual_s)


@pytest.mark.parametrize("seed", range(30))
def test_a_scenario_survives_being_written_and_read(seed: int) -> None:
    scenario = draw(seed)
    assert parse(to_toml(scenario)) == scenario


def test_the_drawn_schedules_have_every_kind_of_fault_and_of_work() -> None:
    scenarios = [draw(seed) for seed in range(300)]
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert kinds == {
        "cut",
        "clog",
        "degrade",
        "pause",
        "freeze",
        "strangers",
        "crash",
        "leave",
        "restart",
        "evict",
        "quorum",
        "staleness",
    }
    assert {fault.kind for scenario in scenarios for fault in scenario.faults if fault.leaf is not None} == set(
        OF_A_LEAF
    )
    assert any(job.passes for scenario in scenarios for job in scenario.jobs)
    assert {job.policy for scenario in scenarios for job in scenario.jobs} == {None, *POLICIES}
    small = [job for scenario in scenarios for job in scenario.jobs if job.chunks == 1 and job.short >= AGE_WORDS]
    assert {job.tree for job in small} == {True, False}
    assert {job.steady_steps for job in small} == {1, 3, 100}
    assert 0.1 < sum(job.tree for scenario in scenarios for job in scenario.jobs[:1]) / len(scenarios) < 0.3
    assert max(job.staleness for scenario in scenarios for job in scenario.jobs) == 3


@pytest.mark.parametrize("kind", ["native", "python"])
@pytest.mark.parametrize("leaves", [0, 2])
@pytest.mark.parametrize("stopped_s", [1.2, 7.0])
@pytest.mark.parametrize("at_s", [0.0001, 0.02, 0.06, 0.8])
def test_a_job_outlasts_a_stop_of_everything(kind: Kind, at_s: float, stopped_s: float, leaves: int) -> None:
    """While it forms, while it works, and while its workers think for longer than a heartbeat."""
    built(kind)
    job = JobPlan(workers=3, steps=6, think_s=0.3, tree=leaves > 0)
    frozen = Fault(kind="freeze", at_s=at_s, for_s=stopped_s)
    assert simulate(Scenario(jobs=(job,), leaves=leaves, faults=(frozen,)), 1, kind=kind).attempts == 1


@pytest.mark.parametrize("kind", ["native", "python"])
@pytest.mark.parametrize("leaves", [0, 2])
def test_strangers_change_nothing(kind: Kind, leaves: int) -> None:
    built(kind)
    job = JobPlan(workers=3, steps=20, think_s=0.02, tree=leaves > 0)
    knocking = Fault(kind="strangers", at_s=0.0, for_s=0.5)
    quiet, noisy = (
        simulate(Scenario(jobs=(job,), leaves=leaves, faults=faults), 1, kind=kind) for faults in ((), (knocking,))
    )
    assert noisy.attempts == quiet.attempts == 1
    assert noisy.contributions > quiet.contributions, "some of what strangers send are contributions"
    assert noisy.virtual_s == pytest.approx(quiet.virtual_s, rel=0.1)
