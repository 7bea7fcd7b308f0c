"""`fanin bench federated --runs FILE`: that runs are kept, and what rows say of several rates."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fanin.benchmarks import federated
from fanin.benchmarks.federated_runs import MOST_IN_A_JOB, Asked, Outcome, Run, Trainings
from fanin.benchmarks.harness import Output
from fanin.errors import ConfigurationError
from fanin.settings import words_of

LONGEST_ARGUMENT = 128 * 1024
PLAN = federated.Plan(
    clients=0, simulated=64, policies=("fedavg", "fedsa"), partitions=("even",), seeds=2, rounds=6,
    learning_rates=(0.1, 0.3),
)  # fmt: skip


def brought(run: Run) -> Outcome:
    """A possible result: 90 % in the last rounds, after a time by policy, rate and seed; fedsa never at 0.3."""
    diverges = run.policy == "fedsa" and run.learning_rate == 0.3
    round_s = (4.0 if run.policy == "fedavg" else 1.0) * (1 + run.seed) / (10 * run.learning_rate)
    return Outcome(
        run=run,
        seconds=tuple(round_s * (each + 1) for each in range(run.rounds)),
        bytes=tuple(100 * (each + 1) for each in range(run.rounds)),
        accuracies=(*(0.0 for _ in range(run.rounds - 3)), *(0.1 if diverges else 0.9 for _ in range(3))),
        handed_in=10,
        dropped=1,
    )


def all_in(file: Path, plan: federated.Plan) -> federated.Plan:
    """The plan, with a file that has every run."""
    kept = Trainings(file)
    for run in plan.all_runs:
        kept.add(brought(run))
    return dataclasses.replace(plan, runs=file)


def rows_of(plan: federated.Plan, file: Path) -> tuple[list[dict[str, object]], str]:
    """The rows that the benchmark writes, and what it prints."""
    screen = io.StringIO()
    federated.bench(plan, Output(json=file, console=Console(file=screen, width=200)))
    return json.loads(file.read_text()), screen.getvalue()


def test_whole_seeds_come_first_and_what_is_kept_is_not_done_again(tmp_path: Path) -> None:
    assert [run.seed for run in PLAN.all_runs] == [0] * 4 + [1] * 4
    _, said = rows_of(all_in(tmp_path / "runs.json", PLAN), tmp_path / "rows.json")
    assert "64 simulated ..." not in said, "a job was started"


def test_each_policy_stands_with_its_best_rate_beside_fedavg_with_its_own(tmp_path: Path) -> None:
    rows, said = rows_of(all_in(tmp_path / "runs.json", PLAN), tmp_path / "rows.json")
    found = {(row["policy"], row["best_rate"], row["learning_rate"]): row for row in rows}
    assert set(found) == {
        ("fedavg", False, 0.1), ("fedsa", False, 0.1), ("fedavg", False, 0.3), ("fedsa", False, 0.3),
        ("fedavg", True, 0.3), ("fedsa", True, 0.1),
    }  # fmt: skip
    assert found["fedsa", False, 0.1]["speed_up"] == pytest.approx(4 / 2)  # twice as many rounds, of a quarter each
    assert found["fedsa", False, 0.3]["speed_up"] is None
    assert found["fedsa", False, 0.3]["reached"] == 0
    assert found["fedsa", True, 0.1]["speed_up"] == pytest.approx(4 / 2 / 3)
    assert found["fedsa", True, 0.1]["met"] is False
    assert "64 simulated, even, each with its best rate" in said


def test_one_rate_has_no_best_one(tmp_path: Path) -> None:
    plan = all_in(tmp_path / "runs.json", dataclasses.replace(PLAN, learning_rates=(0.3,)))
    assert [row["best_rate"] for row in rows_of(plan, tmp_path / "rows.json")[0]] == [False, False]


def test_other_rates_rounds_and_places_are_other_runs(tmp_path: Path) -> None:
    kept = Trainings(all_in(tmp_path / "runs.json", PLAN).runs)
    others: tuple[dict[str, object], ...] = (
        {"rounds": 7}, {"learning_rates": (0.2,)}, {"clients": 16, "simulated": 0}, {"turn_ms": 50.0},
    )  # fmt: skip
    for other in others:
        plan = dataclasses.replace(PLAN, **other)  # type: ignore[arg-type]
        assert kept.missing(plan.all_runs) == plan.all_runs


def test_the_runs_of_a_job_fit_into_an_argument() -> None:
    long = Run("fedlesscan", "two-classes", 99, 1024, False, 10_000, 1 / 3, 100 / 3)
    assert max(map(len, words_of(Asked(runs=(long,) * MOST_IN_A_JOB)))) < LONGEST_ARGUMENT


@pytest.mark.parametrize("given", [{"learning_rates": ()}, {"learning_rates": (0.1, 0.1)}, {"policies": ()}], ids=str)
def test_nothing_and_the_same_twice_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="expected one at least, and none twice"):
        dataclasses.replace(PLAN, **given)  # type: ignore[arg-type]
