"""Drawn schedules and shipped scenarios: nothing is violated, a seed replays a run, and twin and native run alike.

`make simulate` does thousands of schedules; these are few, so that a broken machine shows here, too.
"""

from __future__ import annotations

import pytest

from fanin.emulation.simulator.chaos import draw
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.scenario import OF_A_LEAF, SCENARIO_FOLDER, load, parse, to_toml
from fanin.emulation.simulator.search import search
from fanin.emulation.simulator.simulation import simulate
from fanin.host.stale.policy import POLICIES
from tests.support.cluster import WORKER_MACHINES

SHIPPED = sorted(path.stem for path in SCENARIO_FOLDER.glob("*.toml"))
NATIVE_SCHEDULES = 200
TWIN_SCHEDULES = 40


def built(kind: Kind) -> None:
    if kind == "native" and WORKER_MACHINES["native"] is None:
        pytest.skip("the native extension is not built")


def events_of(name: str, seed: int, kind: Kind) -> list[str]:
    lines: list[str] = []
    simulate(load(name), seed, kind=kind, show=lines.append)
    return lines


@pytest.mark.parametrize("kind", ["native", "python"])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_violates_nothing(name: str, kind: Kind) -> None:
    built(kind)
    assert simulate(load(name), 1, kind=kind).contributions > 0


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
    assert events_of(name, 3, "python") == events_of(name, 3, "python")
    assert events_of(name, 3, "python") != events_of(name, 4, "python")


@pytest.mark.parametrize("name", SHIPPED)
def test_twin_and_native_machines_run_alike_event_by_event(name: str) -> None:
    built("native")
    assert events_of(name, 2, "native") == events_of(name, 2, "python")


def test_processes_find_what_one_process_finds() -> None:
    alone, together = search(0, 120, kind="python"), search(0, 120, kind="python", processes=2)
    assert (alone.events, alone.packets, alone.virtual_s) == (together.events, together.packets, together.virtual_s)


@pytest.mark.parametrize("seed", range(30))
def test_a_scenario_survives_being_written_and_read(seed: int) -> None:
    scenario = draw(seed)
    assert parse(to_toml(scenario)) == scenario


def test_the_drawn_schedules_have_every_kind_of_fault_and_of_work() -> None:
    scenarios = [draw(seed) for seed in range(300)]
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert kinds == {"cut", "clog", "degrade", "pause", "crash", "leave", "restart", "evict", "quorum", "staleness"}
    assert {fault.kind for scenario in scenarios for fault in scenario.faults if fault.leaf is not None} == set(
        OF_A_LEAF
    )
    assert any(job.passes for scenario in scenarios for job in scenario.jobs)
    assert {job.policy for scenario in scenarios for job in scenario.jobs} == {None, *POLICIES}
    assert 0.1 < sum(job.tree for scenario in scenarios for job in scenario.jobs[:1]) / len(scenarios) < 0.3
    assert max(job.staleness for scenario in scenarios for job in scenario.jobs) == 3
