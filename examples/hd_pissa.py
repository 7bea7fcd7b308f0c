"""HD-PiSSA: every worker trains different principal directions of a matrix, and the switch sums their changes.

    torchrun --nproc-per-node 4 -m fanin.examples.hd_pissa --check

Wang et al., HD-PiSSA, 2025. W = U S V^T; worker i takes the singular triples [i r, (i + 1) r): A = sqrt(S) V^T and
B = U sqrt(S), each with an Adam of its own. Every step changes the full matrix by
-sum_i (dB_i A_i + B_i dA_i - dB_i dA_i), whose rank is up to 2 N r, whereas data-parallel LoRA's stays at r. A and B
themselves do not change, as in the authors' code.

The workers exchange either the factors' changes (a gather of N r (m + n) elements) or the product (a sum of m n),
whichever is smaller. A and B are fixed, so gathering them once is enough. `--check` compares the matrix with the one
that one process computes for all workers, and the rank of the change with that of LoRA at equal r.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.examples.train import report

ROWS, COLUMNS, RANK = 192, 160, 8
ALPHA = 8.0
"""LoRA's alpha: changes are scaled by alpha / r."""
STEPS, SAMPLES = 8, 64
LEARNING_RATE = 1e-2
BETAS, EPSILON = (0.9, 0.999), 1e-8
TOLERANCE = 1e-4
"""Largest difference from the result of one process, relative to the largest change."""
SPECTRUM_FLOOR = 1e-3
"""Least size, relative to the largest, of a singular value of the change that counts towards its rank."""
RANK_TIMES = 2
"""Least rank of the change, per worker and relative to LoRA's: 8 times LoRA's with 4 workers."""


@dataclass(slots=True)
class Adam:
    """Adam's state for one factor."""

    shape: tuple[int, int]
    steps: int = 0
    first: Tensor = field(init=False)
    second: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.second = torch.zeros(self.shape), torch.zeros(self.shape)

    def change(self, gradient: Tensor) -> Tensor:
        """Amount by which the factor falls in this step, of the gradient's shape."""
        self.steps += 1
        self.first = BETAS[0] * self.first + (1 - BETAS[0]) * gradient
        self.second = BETAS[1] * self.second + (1 - BETAS[1]) * gradient.square()
        mean = self.first / (1 - BETAS[0] ** self.steps)
        spread = (self.second / (1 - BETAS[1] ** self.steps)).sqrt()
        change: Tensor = LEARNING_RATE * mean / (spread + EPSILON)
        return change


class Adapter:
    """One worker's singular triples: B, shape (rows, r), and A, shape (r, columns)."""

    def __init__(self, weight: Tensor, worker: int) -> None:
        u, s, vh = torch.linalg.svd(weight, full_matrices=False)
        own = slice(worker * RANK, (worker + 1) * RANK)
        self.b, self.a = u[:, own] * s[own].sqrt(), s[own].sqrt()[:, None] * vh[own]
        self._adam_b, self._adam_a = Adam((weight.shape[0], RANK)), Adam((RANK, weight.shape[1]))

    def changes(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """dB and dA from the gradient of the matrix, shape (rows, columns)."""
        scale = ALPHA / RANK
        return self._adam_b.change(scale * gradient @ self.a.T), self._adam_a.change(scale * self.b.T @ gradient)

    def product(self, db: Tensor, da: Tensor) -> Tensor:
        """Change of the matrix, shape (rows, columns), that results from dB and dA."""
        change: Tensor = (ALPHA / RANK) * (db @ self.a + self.b @ da - db @ da)
        return change


def gathers(rows: int, columns: int, rank: int, workers: int, lane_bits: int = 32) -> tuple[bool, float, float]:
    """Whether a gather is the smaller exchange, and the sizes of gather and sum in words of 32 bits.

    A gather moves the factors as they are, a sum elements in lanes of `lane_bits`.
    """
    of_gather, of_sum = float(workers * rank * (rows + columns)), rows * columns * lane_bits / 32
    return of_gather <= of_sum, of_gather, of_sum


class Exchange:
    """Combines the workers' changes into one change of the matrix, by a gather or by a sum."""

    def __init__(self, adapter: Adapter, weight: Tensor, worker: int, workers: int, by_gather: bool) -> None:
        self._own, self._workers, self._by_gather = adapter, workers, by_gather
        everyones = range(workers) if by_gather else ()
        # Every worker has W, and can compute the others' A and B itself.
        self._adapters = [adapter if each == worker else Adapter(weight, each) for each in everyones]

    def total(self, db: Tensor, da: Tensor) -> Tensor:
        """The sum of all workers' changes, shape (rows, columns)."""
        if not self._by_gather:
            change = self._own.product(db, da)
            dist.all_reduce(change)
            return change
        own = torch.cat([db.reshape(-1), da.reshape(-1)])
        gathered = own.new_empty(self._workers, own.numel())
        dist.all_gather(list(gathered.unbind()), own)
        total = torch.zeros(db.shape[0], da.shape[1])
        for adapter, flat in zip(self._adapters, gathered, strict=True):
            db_of, da_of = flat.split([db.numel(), da.numel()])
            total += adapter.product(db_of.view_as(db), da_of.view_as(da))
        return total


def data(worker: int, step: int, target: Tensor) -> tuple[Tensor, Tensor]:
    """A worker's inputs (samples, columns) of a step, and the target matrix's outputs for them."""
    drawn = torch.Generator().manual_seed(1000 * step + worker)
    inputs = torch.randn(SAMPLES, COLUMNS, generator=drawn)
    return inputs, inputs @ target.T


def gradient(weight: Tensor, inputs: Tensor, wanted: Tensor) -> Tensor:
    """Gradient of the mean squared error with respect to the matrix."""
    return 2 * (inputs @ weight.T - wanted).T @ inputs / wanted.numel()


def matrices() -> tuple[Tensor, Tensor]:
    """The pretrained matrix, with a decaying spectrum, and the target matrix; the same at every worker."""
    drawn = torch.Generator().manual_seed(1)
    u, _, vh = torch.linalg.svd(torch.randn(ROWS, COLUMNS, generator=drawn), full_matrices=False)
    weight = (u * torch.logspace(0, -1, COLUMNS)) @ vh
    return weight, weight + 0.02 * torch.randn(ROWS, COLUMNS, generator=drawn)


def effective_rank(change: Tensor) -> int:
    """Number of singular values above SPECTRUM_FLOOR times the largest."""
    values = torch.linalg.svdvals(change)
    return int((values > SPECTRUM_FLOOR * values[0]).sum())


def train_alone(workers: int) -> Tensor:
    """The matrix after training in one process that plays all workers in turn."""
    weight, target = matrices()
    adapters = [Adapter(weight, each) for each in range(workers)]
    for step in range(STEPS):
        total = torch.zeros_like(weight)
        for worker, adapter in enumerate(adapters):
            total += adapter.product(*adapter.changes(gradient(weight, *data(worker, step, target))))
        weight = weight - total
    return weight


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchange", choices=("smaller", "gather", "sum"), default="smaller")
    parser.add_argument("--check", action="store_true", help="compare with one process, and the rank with LoRA's")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    worker, workers = dist.get_rank(), dist.get_world_size()
    start, target = matrices()
    smaller, of_gather, of_sum = gathers(ROWS, COLUMNS, RANK, workers)
    by_gather = smaller if arguments.exchange == "smaller" else arguments.exchange == "gather"
    weight, adapter = start, Adapter(start, worker)
    exchange = Exchange(adapter, start, worker, workers, by_gather)
    for step in range(STEPS):
        weight = weight - exchange.total(*adapter.changes(gradient(weight, *data(worker, step, target))))
    change = weight - start
    facts: dict[str, Any] = {
        "event": "end", "exchange": "gather" if by_gather else "sum", "elements_of_gather": of_gather,
        "elements_of_sum": of_sum, "rank_of_change": effective_rank(change), "rank_of_lora": RANK,
        "error_before": float((start - target).norm()), "error": float((weight - target).norm()),
    }  # fmt: skip
    if arguments.check:
        alone = train_alone(workers)
        facts["difference"] = float((weight - alone).abs().max() / (alone - start).abs().max())
    report(**facts)
    dist.destroy_process_group()
    if arguments.check and not facts["difference"] <= TOLERANCE:
        raise SystemExit(f"worker {worker}: {facts['difference']:.3g} from one process; at most {TOLERANCE}")
    if arguments.check and facts["rank_of_change"] < math.floor(RANK_TIMES * workers) * RANK:
        raise SystemExit(f"worker {worker}: the change has rank {facts['rank_of_change']}")


if __name__ == "__main__":
    main()
