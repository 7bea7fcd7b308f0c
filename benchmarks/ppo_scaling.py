"""How fast PPO solves CartPole with 1, 2, 4 and 8 workers: `python -m fanin.benchmarks.ppo_scaling --keep runs.json`.

A worker's minibatch stays, so the batch that a gradient is made of grows with the workers, as does the experience of an
iteration; the learning rate stays. Compared are iterations, which do not depend on the machine: eight workers on two
cores take longer for one than two do. A run that is not solved counts as its last iteration.

Source: CaRL (Jaeger et al., CoRL 2025), which finds that simple rewards gain from larger batches and shaped ones less.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fanin.benchmarks.codecs_train_rows import half_interval
from fanin.benchmarks.kept import Kept
from fanin.emulation.processes import LocalJob

WORKERS = (1, 2, 4, 8)
REWARDS = ("simple", "shaped")
ITERATIONS = 300


@dataclass(frozen=True, slots=True)
class Run:
    """One training of the example."""

    reward: str
    workers: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a training."""

    run: Run
    solved_after: int | None
    """Iterations until the mean return was 475; None: not in ITERATIONS of them."""
    best_return: float
    replicas: int
    """Unlike replicas at the end: 1 where all are bit-identical."""

    @property
    def iterations(self) -> int:
        """Iterations until solved, or all of them."""
        return ITERATIONS if self.solved_after is None else self.solved_after


def outcome_of(run: Run) -> Outcome:
    """Train, and return the outcome."""
    words = ["--seed", str(run.seed), "--reward", run.reward, "--iterations", str(ITERATIONS)]
    with LocalJob("fanin.examples.cartpole", words, run.workers, {}) as job:
        ends = [report.record for report in job.reports() if report.record["event"] == "end"]
    return Outcome(run, ends[0]["solved_after"], ends[0]["best_return"], len({end["replica"] for end in ends}))


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """A Markdown table: rewards in rows, numbers of workers in columns."""
    workers = sorted({outcome.run.workers for outcome in outcomes})
    rows = [
        "| reward | " + " | ".join(f"{count} worker{'s' if count > 1 else ''}" for count in workers) + " |",
        "|---|" + "---:|" * len(workers),
    ]
    for reward in dict.fromkeys(outcome.run.reward for outcome in outcomes):
        cells = []
        for count in workers:
            found = [each for each in outcomes if (each.run.reward, each.run.workers) == (reward, count)]
            taken = [float(each.iterations) for each in found]
            solved = sum(each.solved_after is not None for each in found)
            cells.append(f"{statistics.mean(taken):.0f} ± {half_interval(taken):.0f}, {solved} of {len(found)}")
        rows.append(f"| {reward} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, metavar="N")
    parser.add_argument("--rewards", choices=REWARDS, nargs="+", default=REWARDS)
    parser.add_argument("--seeds", type=int, default=5, help="from 0 on")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="outcomes, as JSON; it goes on with what is missing")
    arguments = parser.parse_args()
    runs = [
        Run(reward, count, seed)
        for seed in range(arguments.seeds)
        for reward in arguments.rewards
        for count in arguments.workers
    ]
    kept: Kept[Run, Outcome] = Kept(arguments.keep, Outcome)
    for run in kept.missing(runs):
        outcome = outcome_of(run)
        kept.add(outcome)
        print(outcome, file=sys.stderr, flush=True)
    print(*lines([kept[run] for run in runs]), sep="\n")


if __name__ == "__main__":
    main()
