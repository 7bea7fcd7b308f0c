"""The table of PPO's scaling, of outcomes that can be worked out by hand."""

from __future__ import annotations

from fanin.benchmarks.ppo_scaling import ITERATIONS, Outcome, Run, lines


def outcome(reward: str, workers: int, seed: int, solved_after: int | None) -> Outcome:
    return Outcome(Run(reward, workers, seed), solved_after, best_return=480.0, replicas=1)


def test_a_run_that_is_not_solved_counts_as_all_iterations() -> None:
    found = [outcome("simple", 1, 0, 100), outcome("simple", 1, 1, None), outcome("simple", 2, 0, 90)]
    found.append(outcome("simple", 2, 1, 110))
    _, _, row = lines(found)
    assert row.startswith(f"| simple | {(100 + ITERATIONS) / 2:.0f} ± ")
    assert "1 of 2" in row
    assert row.endswith("2 of 2 |")
    assert "| 100 ± 127, 2 of 2 |" in row, "95 % of Student's distribution with one degree of freedom"


def test_rewards_are_rows_and_numbers_of_workers_columns() -> None:
    found = [
        outcome(reward, workers, seed, 50) for reward in ("shaped", "simple") for workers in (4, 1) for seed in (0, 1)
    ]
    head, _, *rows = lines(found)
    assert head == "| reward | 1 worker | 4 workers |"
    assert [row.split(" | ")[0] for row in rows] == ["| shaped", "| simple"]
