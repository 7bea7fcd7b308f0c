"""Does a bound chosen at run time beat every fixed one? Training in virtual time, without processes.

    python -m fanin.benchmarks.staleness_virtual --seeds 5

Rules of this file
------------------
* Rounds are those of docs/staleness.md under the policy `wait`, for a model of one chunk over links that take no time:
  K = N - 1, and a gradient whose round is over is added to the next one. S is chosen by the real code
  (host/stale/bound.py), every EVERY steps of rank 0 as in host/torch/training/pacing.py.
* Gradients are real, of a network with 4,810 parameters on handwritten digits, by plain SGD; only compute times are
  made up by the condition. So a larger bound trades waiting for worse learning, and figures repeat bit for bit.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fanin.host.stale.bound import DynamicBound, Pace
from fanin.host.torch.training.pacing import EVERY, SMOOTHING

Array = npt.NDArray[np.float64]

WORKERS, HIDDEN, SAMPLES = 4, 64, 16
TARGET, SMOOTHED, EVALUATE_EVERY = 0.9, 3, 5
"""Accuracy whose time is compared, number of points that it is averaged over, and versions between two points."""
FIXED = (0, 1, 2, 3)
RANGE = DynamicBound(lowest=0, highest=3)
SLOW = 4.0
"""Duration of a slow step; an ordinary one takes 1."""
RATES = (0.25, 1.0)
"""Learning rates; staleness costs more with the higher one."""


def even(rank: int, step: int, dice: random.Random) -> float:
    """All ranks take the same time."""
    return 1.0


def at_random(rank: int, step: int, dice: random.Random) -> float:
    """One step in ten is slow."""
    return SLOW if dice.random() < 0.1 else 1.0


def one_slow(rank: int, step: int, dice: random.Random) -> float:
    """The last rank is always slow."""
    return SLOW if rank == WORKERS - 1 else 1.0


def slow_then_fast(rank: int, step: int, dice: random.Random) -> float:
    """The last rank is slow for 20 steps and twice as fast as the others for 20."""
    return 1.0 if rank < WORKERS - 1 else SLOW if step // 20 % 2 == 0 else 0.5


def in_turn(rank: int, step: int, dice: random.Random) -> float:
    """Each rank in turn is slow for 4 steps."""
    return SLOW if step // 4 % WORKERS == rank else 1.0


def even_then_random(rank: int, step: int, dice: random.Random) -> float:
    """All ranks take the same time for 20 steps; then for 20 steps one step in five is slow."""
    return SLOW if step // 20 % 2 and dice.random() < 0.2 else 1.0


CONDITIONS: tuple[Callable[[int, int, random.Random], float], ...] = (
    even,
    at_random,
    one_slow,
    slow_then_fast,
    in_turn,
    even_then_random,
)


class Digits:
    """The task: data, gradients and accuracy."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        order = np.random.default_rng(0).permutation(len(bunch.target))
        images, labels = bunch.images.reshape(-1, 64)[order] / 16.0, bunch.target[order]
        self.test, self.images, self.labels = (images[:360], labels[:360]), images[360:], labels[360:]

    def weights(self, seed: int) -> list[Array]:
        """Random weights and zero biases of both layers."""
        draw = np.random.default_rng(seed)
        sizes = ((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))
        return [draw.uniform(-1, 1, s) / 8 if len(s) == 2 else np.zeros(s) for s in sizes]

    def batches(self, rank: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the indices of a rank's samples, step by step."""
        own, draw = np.arange(rank, len(self.labels), WORKERS), np.random.default_rng((seed, rank))
        while True:
            yield draw.choice(own, SAMPLES, replace=False)

    def gradient(self, weights: list[Array], chosen: npt.NDArray[np.int64]) -> list[Array]:
        """Gradient of the mean cross-entropy over the chosen samples."""
        first, first_bias, second, second_bias = weights
        inputs = self.images[chosen]
        hidden = np.maximum(inputs @ first + first_bias, 0)
        logits = hidden @ second + second_bias
        odds = np.exp(logits - logits.max(1, keepdims=True))
        error = odds / odds.sum(1, keepdims=True)
        error[np.arange(len(chosen)), self.labels[chosen]] -= 1
        error /= len(chosen)
        below = (error @ second.T) * (hidden > 0)
        return [inputs.T @ below, below.sum(0), hidden.T @ error, error.sum(0)]

    def accuracy(self, weights: list[Array]) -> float:
        """Accuracy on the test set."""
        images, labels = self.test
        first, first_bias, second, second_bias = weights
        found = np.maximum(images @ first + first_bias, 0) @ second + second_bias
        return float((found.argmax(1) == labels).mean())


@dataclass(slots=True)
class Worker:
    """State of a rank between two of its gradients."""

    base: int = 0
    """Number of results that it has received, which is the base of its next contribution."""
    contributed: int = 0
    """Number of bases that it has contributed to or passed."""
    held: list[Array] | None = None
    """A gradient whose round was over, which is added to the next one; None without one."""
    pace: Pace = Pace(0.0, 0.0)
    computes_s: float = 0.0


class Job:
    """Rounds of one job: which gradients each round sums, and when it closes."""

    def __init__(self, task: Digits, seed: int, rate: float, bound: int | DynamicBound) -> None:
        self.staleness = bound if isinstance(bound, int) else bound.lowest
        self.chooser = None if isinstance(bound, int) else bound
        self.quorum = WORKERS if bound == 0 else WORKERS - 1
        self.task, self.rate = task, rate
        self.versions = [task.weights(seed)]
        """Weights after each number of rounds."""
        self.open = [np.zeros_like(each) for each in self.versions[0]]
        self.count = 0
        self.workers = [Worker() for _ in range(WORKERS)]

    def ready(self, rank: int, gradient: list[Array], now: float) -> None:
        """Hand a rank's gradient in: contribute it, or hold it if its round is over."""
        worker = self.workers[rank]
        late = worker.base < len(self.versions) - 1
        if late and worker.held is None:
            worker.held = gradient
        else:
            held = worker.held or [np.zeros_like(each) for each in gradient]
            for total, part, other in zip(self.open, gradient, held, strict=True):
                total += part + other
            worker.held = None
            self.count += 1
        worker.contributed += 1
        steps, step_s = worker.contributed, worker.computes_s
        before = worker.pace.step_s
        worker.pace = Pace(now, step_s if steps == 1 else (1 - SMOOTHING) * before + SMOOTHING * step_s)
        if self.chooser and rank == 0 and steps % EVERY == 0:
            self.staleness = self.chooser.choose([each.pace for each in self.workers])
        self._close()

    def _close(self) -> None:
        while self.count >= self.quorum:
            floor = min(each.contributed for each in self.workers)
            if len(self.versions) - 1 - self.staleness >= floor:
                return
            self.versions.append(
                [old - self.rate / WORKERS * total for old, total in zip(self.versions[-1], self.open, strict=True)]
            )
            self.open, self.count = [np.zeros_like(each) for each in self.open], 0


def seconds_to_target(
    task: Digits,
    condition: Callable[[int, int, random.Random], float],
    bound: int | DynamicBound,
    *,
    rate: float,
    seed: int,
    steps: int,
) -> float | None:
    """Virtual seconds until rank 0's accuracy is TARGET; None if `steps` of its steps do not suffice."""
    job = Job(task, seed, rate, bound)
    dice = [random.Random(1000 * seed + rank) for rank in range(WORKERS)]
    batches = [task.batches(rank, seed) for rank in range(WORKERS)]
    computing: list[tuple[float, int]] = []
    waiting = set(range(WORKERS))
    points: list[float] = []
    now = 0.0

    def start() -> None:
        for rank in sorted(waiting):
            worker = job.workers[rank]
            if worker.contributed > worker.base:
                if worker.base >= len(job.versions) - 1:
                    continue
                worker.base += 1
            worker.computes_s = condition(rank, worker.contributed, dice[rank])
            heapq.heappush(computing, (now + worker.computes_s, rank))
            waiting.discard(rank)

    start()
    while computing:
        now, rank = heapq.heappop(computing)
        worker = job.workers[rank]
        job.ready(rank, task.gradient(job.versions[worker.base], next(batches[rank])), now)
        if rank == 0 and worker.contributed % EVALUATE_EVERY == 0:
            points = [*points[1 - SMOOTHED :], task.accuracy(job.versions[worker.base])]
            if len(points) == SMOOTHED and sum(points) / SMOOTHED >= TARGET:
                return now
            if worker.contributed >= steps:
                return None
        waiting.add(rank)
        start()
    return None


def main() -> None:
    """Print a table: seconds to the target by condition and bound, mean and range over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each cell")
    parser.add_argument("--steps", type=int, default=600, help="steps of rank 0 after which a run has failed")
    asked = parser.parse_args()
    task = Digits()
    bounds: tuple[int | DynamicBound, ...] = (*FIXED, RANGE)
    print("| rate | condition | " + " | ".join(f"S = {each}" for each in FIXED) + " | DSSP, 0..3 | best fixed / DSSP |")
    print("|---:|---|" + "---:|" * (len(bounds) + 1))
    for rate in RATES:
        for condition in CONDITIONS:
            means, cells = [], []
            for bound in bounds:
                found = [
                    seconds_to_target(task, condition, bound, rate=rate, seed=seed, steps=asked.steps)
                    for seed in range(asked.seeds)
                ]
                reached = [each for each in found if each is not None]
                means.append(statistics.mean(reached) if len(reached) == len(found) else float("inf"))
                spread = f"{min(reached):.0f}..{max(reached):.0f}" if reached else "never"
                cells.append(f"{means[-1]:.0f} ({spread})")
            ratio = min(means[:-1]) / means[-1]
            print(
                f"| {rate:g} | {condition.__name__.replace('_', ' ')} | {' | '.join(cells)} | {ratio:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
