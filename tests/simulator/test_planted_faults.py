"""A planted fault is named, with its rank or its switch, from two snapshots of a switch's statistics, and nothing else
is (fanin/watching/findings.py). Virtual time; half a second of it, where 10 s are allowed."""

from __future__ import annotations

import os

import pytest

from fanin.watching.findings import SLOW_SHARD, findings
from tests.support.machines import SWITCH_MACHINES
from tests.support.planted import FAULTS, PlantedJob, slow_shard

WATCHED_S = 0.5
FEW = range(2)
REST = range(len(FEW), 20 if os.environ.get("FANIN_TEST_PROFILE") == "soak" else 4)
"""The other seeds that docs/watching.md speaks of, or the first ones of them."""


def named(fault: str | None, seed: int) -> tuple[list[tuple[str, int | None]], int]:
    """Kinds and ranks of all findings, and the rank that has the fault."""
    job = PlantedJob(fault, seed)
    before, after = job.watched(WATCHED_S)
    return [(each.kind, each.rank) for each in findings([before], [after])], job.rank


def check(fault: str, seed: int) -> None:
    found, rank = named(fault, seed)
    assert found == [(fault, rank)], f"seed {seed}"


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_a_rank_is_all_that_is_named(fault: str, seed: int) -> None:
    check(fault, seed)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_all_that_is_named_with_every_seed(fault: str) -> None:
    for seed in REST:
        check(fault, seed)


@pytest.mark.parametrize("seed", FEW)
def test_nothing_is_named_in_a_healthy_job(seed: int) -> None:
    assert named(None, seed)[0] == []


@pytest.mark.slow
def test_nothing_is_named_in_a_healthy_job_with_any_seed() -> None:
    assert {seed: named(None, seed)[0] for seed in REST} == {seed: [] for seed in REST}


def check_shard(seed: int, *, slow: bool) -> None:
    switch, before, after = slow_shard(seed, slow=slow)
    found = [(each.kind, each.rank, each.switch) for each in findings(before, after)]
    assert found == ([(SLOW_SHARD, None, switch)] if slow else []), f"seed {seed}"


@pytest.mark.parametrize("slow", [True, False], ids=["slow", "healthy"])
def test_a_slow_shard_is_all_that_is_named(slow: bool) -> None:
    check_shard(0, slow=slow)


@pytest.mark.slow
@pytest.mark.parametrize("slow", [True, False], ids=["slow", "healthy"])
def test_a_slow_shard_is_all_that_is_named_with_every_seed(slow: bool) -> None:
    for seed in REST:
        check_shard(seed, slow=slow)


@pytest.mark.skipif(SWITCH_MACHINES["native"] is None, reason="the native extension is not built")
@pytest.mark.parametrize("fault", ["lossy uplink", "lossy downlink"])
def test_twin_and_native_count_the_same_for_every_rank(fault: str) -> None:
    twin, native = (PlantedJob(fault, 3, kind=kind) for kind in ("twin", "native"))
    assert twin.watched(0.04)[1] == native.watched(0.04)[1]
