"""Bounds in virtual time: the model's rounds are those of the page, and the chosen bound is between fixed ones."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fanin.benchmarks.staleness_virtual import (
    FIXED,
    RANGE,
    WORKERS,
    Digits,
    Job,
    at_random,
    even,
    in_turn,
    seconds_to_target,
)
from fanin.host.stale.bound import DynamicBound
from tests.support.packages import require_package

require_package("sklearn", "scikit-learn is not installed: pip install 'fanin[demo]'")


@pytest.fixture(scope="module")
def task() -> Digits:
    """Data and gradients of the digits, loaded once."""
    return Digits()


def to_target(task: Digits, condition: object, bound: int | DynamicBound, seed: int = 0) -> float:
    found = seconds_to_target(task, condition, bound, rate=1.0, seed=seed, steps=400)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_with_even_workers_the_chosen_bound_is_the_synchronous_one(task: Digits) -> None:
    assert to_target(task, even, RANGE) == to_target(task, even, 0)


def test_a_synchronous_step_lasts_as_long_as_its_slowest(task: Digits) -> None:
    steps = to_target(task, even, 0)  # of length 1
    dice = [random.Random(rank) for rank in range(WORKERS)]
    lengths = [max(at_random(rank, 0, dice[rank]) for rank in range(WORKERS)) for _ in range(int(steps) - 1)]
    last = at_random(0, 0, dice[0])  # the clock ends with rank 0's own step
    assert to_target(task, at_random, 0) == sum(lengths) + last


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_worker_waits_at_the_bound_and_every_gradient_is_in_one_round(task: Digits, bound: int) -> None:
    job = Job(task, 0, 1.0, bound)
    ones = [each * 0 + 1 for each in job.versions[0]]
    for _ in range(bound + 3):
        for rank in range(WORKERS - 1):  # the last rank is silent
            worker = job.workers[rank]
            if worker.contributed == worker.base:
                job.ready(rank, ones, 0.0)
            worker.base += worker.base < len(job.versions) - 1
    assert len(job.versions) - 1 == bound
    contributed = sum(worker.contributed for worker in job.workers)
    landed = (job.versions[0][1] - job.versions[-1][1])[0] * WORKERS + job.open[1][0]
    assert landed == contributed == (bound + 1) * (WORKERS - 1)


def test_bounds_beat_synchronous_steps_where_ranks_are_slow_in_turn_and_the_chosen_one_lies_between(
    task: Digits,
) -> None:
    fixed = [sum(to_target(task, in_turn, bound, seed) for seed in range(3)) for bound in FIXED]
    chosen = sum(to_target(task, in_turn, RANGE, seed) for seed in range(3))
    assert min(fixed) < chosen < fixed[0]
