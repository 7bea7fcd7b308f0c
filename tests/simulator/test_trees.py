"""Trees of switches, packet by packet: what one switch comes to, to the bit, under every fault; who dies is named."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fanin.emulation.simulator.chaos import Chaos, draw
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.scenario import Fault, JobPlan, Scenario, load
from fanin.emulation.simulator.simulation import Simulation, simulate
from fanin.emulation.simulator.violations import ViolationError
from tests.support.cluster import WORKER_MACHINES

KINDS: list[Kind] = ["native", "python"]
NATIVE_SCHEDULES = 60
TWIN_SCHEDULES = 8
HOSTILE = Link(loss=0.1, duplicate=0.1, reorder=0.2, stray=0.05, corrupt=0.05)
WITHIN_S = 10.0
"""In which everybody must know of a leaf that is dead."""


def built(kind: Kind) -> None:
    if kind == "native" and WORKER_MACHINES["native"] is None:
        pytest.skip("the native extension is not built")


def finished(scenario: Scenario, seed: int, kind: Kind) -> Simulation:
    simulation = Simulation(scenario, seed, kind=kind)
    simulation.run()
    return simulation


def results_of(simulation: Simulation) -> dict[int, bytes]:
    """By step, the bits that every worker of the first job held."""
    return {step: held for (_, step), held in simulation.jobs[0].results.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_a_tree_gives_the_bits_of_one_switch_whatever_the_links_and_leaves_do(seed: int, kind: Kind) -> None:
    built(kind)
    dice = random.Random(seed)
    leaves = dice.randint(1, 4)
    plan = JobPlan(
        workers=dice.randint(leaves, 9),
        slots=dice.randint(1, 4),
        chunks=dice.randint(1, 8),
        steps=4,
        element=dice.choice(("int32", "float32")),
        ahead=dice.randint(1, 3),
    )
    restart = Fault(kind="restart", leaf=dice.randrange(leaves), at_s=0.002, for_s=0.01)
    tree = Scenario(
        jobs=(dataclasses.replace(plan, tree=True),),
        leaves=leaves,
        link=HOSTILE,
        noise_s=0.5,
        faults=(restart,) if seed % 2 else (),
    )
    one_switch = Scenario(jobs=(plan,))
    assert results_of(finished(tree, seed, kind)) == results_of(finished(one_switch, seed, kind))


@pytest.mark.parametrize(("seed", "kind"), [(0, "python"), *((seed, "native") for seed in range(6))])
def test_a_leaf_that_dies_is_named_to_every_worker_at_another(seed: int, kind: Kind) -> None:
    built(kind)
    dead = seed % 3
    died_s = 0.1 + 0.05 * seed
    scenario = Scenario(
        jobs=(JobPlan(tree=True, workers=7, steps=50, think_s=0.02, element="float32"),),
        leaves=3,
        link=dataclasses.replace(HOSTILE, loss=0.05),
        faults=(Fault(kind="restart", leaf=dead, at_s=died_s, for_s=12.0),),
        noise_s=12.0,
    )
    simulation = finished(scenario, seed, kind)
    job = simulation.jobs[0]
    told = {rank: (at, each) for rank, at, each in reversed(job.explanations) if at < died_s + WITHIN_S}
    ranks = tuple(range(dead, 7, 3))
    assert told.keys() == set(range(7)) - set(ranks), "those at the dead leaf have nobody to ask"
    for _, explanation in told.values():
        assert f"leaf switch {simulation.leaves[dead].url}" in explanation.text
        assert explanation.lost == ranks


def test_drawn_schedules_of_trees_violate_nothing_with_native_machines() -> None:
    built("native")
    for seed in range(NATIVE_SCHEDULES):
        simulate(draw(seed, Chaos(trees=1.0)), seed)


def test_drawn_schedules_of_trees_violate_nothing_with_twins() -> None:
    for seed in range(100_000, 100_000 + TWIN_SCHEDULES):
        simulate(draw(seed, Chaos(trees=1.0)), seed, kind="python")


def test_a_tree_of_sixty_workers_is_more_than_one_switch_takes() -> None:
    built("native")
    plan = JobPlan(tree=True, workers=60, steps=2, chunks=3, element="float32")
    assert simulate(Scenario(jobs=(plan,), leaves=4, link=HOSTILE, noise_s=0.2), 1).attempts == 1


def test_a_tree_and_a_job_of_the_root_itself_share_the_root() -> None:
    built("native")
    report = simulate(load("tree"), 5)
    assert report.attempts >= 3, "a leaf died, so the tree's job needed another generation, and the other job did not"


def test_leaves_are_judged_by_books_of_their_own() -> None:
    """A leaf that adds a duplicate again sends up what was never accepted."""
    from fanin.emulation.simulator.canary import AddsADuplicate, machine_of

    plan = JobPlan(tree=True, workers=4, steps=10)
    with pytest.raises(ViolationError, match="on its way up") as caught:
        simulate(
            Scenario(jobs=(plan,), leaves=2, link=Link(duplicate=0.5), noise_s=1.0),
            1,
            kind="python",
            switch=machine_of(AddsADuplicate),
        )
    assert caught.value.kind == "conservation"
