"""The simulator finds seven planted defects; and their schedules, shortened, still show them."""

from __future__ import annotations

import pytest

from fanin.emulation.simulator.canary import DEFECTS, HUNTED, hunt
from fanin.emulation.simulator.chaos import draw
from fanin.emulation.simulator.scenario import parse, to_toml
from fanin.emulation.simulator.search import shorten
from fanin.emulation.simulator.simulation import simulate
from fanin.emulation.simulator.violations import ViolationError

FOUND_AS = {
    "forgets a tag": {"conservation"},
    "history of S_max + 1": {"progress", "agreement", "staleness"},
    "adds a duplicate": {"conservation"},
    "closes early": {"staleness"},
    "skips the pass rule": {"progress"},
    "mixes two generations": {"isolation"},
    "repeats words in a leaf's train": {"train"},
}


@pytest.mark.parametrize("first_seed", [0, 1_000_000])
@pytest.mark.parametrize("defect", HUNTED)
def test_a_planted_defect_is_found(defect: str, first_seed: int) -> None:
    catch = hunt(defect, first_seed)
    assert catch is not None, f"{defect} was not found from seed {first_seed} on"
    assert catch.violation.kind in FOUND_AS[defect]
    assert catch.violation.trace
    assert f"seed {catch.violation.seed}, event {catch.violation.event_number}" in str(catch.violation)


@pytest.mark.parametrize("defect", ["forgets a tag", "mixes two generations"])
def test_a_failing_schedule_becomes_shorter_and_its_text_replays_the_failure(defect: str) -> None:
    catch = hunt(defect, 0)
    assert catch is not None
    seed, make = catch.violation.seed, DEFECTS[defect]
    failure = shorten(draw(seed), seed, catch.violation, kind="python", switch=make)
    assert len(failure.scenario.faults) <= len(draw(seed).faults)
    assert len(to_toml(failure.scenario)) < len(to_toml(draw(seed)))
    with pytest.raises(ViolationError) as replayed:
        simulate(parse(to_toml(failure.scenario)), seed, kind="python", switch=make)
    assert str(replayed.value) == str(failure.violation)


def test_a_defect_that_needs_one_fault_is_shortened_to_one_fault() -> None:
    """Strays of a former generation need a switch that restarts, or a stranger that repeats them, and nothing else."""
    catch = hunt("mixes two generations", 0)
    assert catch is not None
    seed = catch.violation.seed
    failure = shorten(draw(seed), seed, catch.violation, kind="python", switch=DEFECTS["mixes two generations"])
    assert {fault.kind for fault in failure.scenario.faults} <= {"restart", "crash", "leave", "evict", "strangers"}
    assert len(failure.scenario.faults) <= 2
