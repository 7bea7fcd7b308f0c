"""False alarms and delays of `watch_ranks`: `python -m benchmarks.unlike_ranks [--task text] [--steps 10000]`.

The ranks of a job train an example's task in one process. Each has its own batch of every step; all have one model. The
numbers that ranks would gather are judged by the real code (host/torch/training/rank_judge.py). A faulty rank has its
own copy of the model if the fault is in its weights.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fanin.examples.tasks import TASKS, Task
from fanin.host.torch.training.rank_judge import RankJudge, Values
from fanin.host.torch.training.rank_watch import (
    FALSE_ALARMS_PER_STEP,
    hash_of,
    layers_of,
    numbers_of,
    sample_of,
    squared_norm,
)

RANKS = 8
FAULTS = ("bad shard", "learning rate", "stale weights", "flipped bit", "raw inputs")
HEALTHY_STEPS = 150
"""Number of steps before a fault."""
STEPS_TO_ALARM = 5
STALE_STEPS = 5
FASTER = 3.0
"""Factor of the faulty rank's learning rate."""
RAW = 16.0
"""Factor of inputs that are not normalized or, for a task with integer inputs, of a loss that is not divided."""
SAMPLES = 32
"""Samples per rank and step."""
EXPONENT_BITS = range(23, 31)


@dataclass(slots=True)
class Run:
    """A job of RANKS ranks in one process."""

    task: Task
    seed: int
    fault: str = ""
    at: int = 0
    """The step, from 0, at which the fault of `rank` begins."""
    rank: int = 0
    batches: list[Iterator[tuple[Tensor, Tensor]]] = field(init=False)
    model: nn.Module = field(init=False)
    own: nn.Module | None = field(init=False, default=None)
    """The faulty rank's own model; None before the fault, or if the fault is not in the weights."""
    random: np.random.Generator = field(init=False)
    past: list[dict[str, Tensor]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.random = np.random.default_rng(self.seed)
        self.model = self.task.network()
        data = self.task.data()[0].tensors
        shards = torch.randperm(len(data[0])).split(len(data[0]) // RANKS)[:RANKS]
        each = min(SAMPLES, len(data[0]) // RANKS)
        self.batches = [
            _drawn(data[0][shard], data[1][shard], each, seed=self.seed * RANKS + rank)
            for rank, shard in enumerate(shards)
        ]

    def steps(self) -> Iterator[tuple[Values, Values, list[list[int]]]]:
        """Yield, per step, norms and cosines, each of shape (RANKS, layers), and each rank's hashes of its layers."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.task.learning_rate)
        own_optimizer: torch.optim.Optimizer | None = None
        step = 0
        while True:
            faulty = bool(self.fault) and step >= self.at
            if faulty and self.fault in ("learning rate", "stale weights", "flipped bit") and self.own is None:
                self.own = copy.deepcopy(self.model)
                own_optimizer = torch.optim.Adam(self.own.parameters())
                own_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                for each in own_optimizer.param_groups:
                    each["lr"] *= FASTER if self.fault == "learning rate" else 1.0
                if self.fault == "flipped bit":
                    self._flip(self.own)
            if faulty and self.fault == "stale weights" and self.own is not None:
                self.own.load_state_dict(self.past[0])
            kept, hashes, sums = [], [], [torch.zeros_like(each) for each in self.model.parameters()]
            for rank in range(RANKS):
                unlike = faulty and rank == self.rank
                model = self.own if unlike and self.own is not None else self.model
                gradients = self._gradients(model, rank, unlike)
                kept.append([(squared_norm(each), sample_of(each).clone()) for each in gradients])
                hashes.append([int(hash_of(layer)) for _, layer in layers_of(model)])
                torch._foreach_add_(sums, gradients)
            torch._foreach_div_(sums, RANKS)
            yield (*self._numbers(kept, sums), hashes)
            self.past = [*self.past, {name: each.clone() for name, each in self.model.state_dict().items()}]
            self.past = self.past[-STALE_STEPS:] if self.fault == "stale weights" else []
            for trained, stepped in ((self.model, optimizer), (self.own, own_optimizer)):
                if trained is not None and stepped is not None:
                    for parameter, mean in zip(trained.parameters(), sums, strict=True):
                        parameter.grad = mean.clone()
                    stepped.step()
            step += 1

    def _gradients(self, model: nn.Module, rank: int, unlike: bool) -> list[Tensor]:
        inputs, classes = next(self.batches[rank])
        if unlike and self.fault == "bad shard":
            classes = classes[torch.randperm(len(classes))] if classes.dim() > 1 else classes.roll(1).add(1) % 10
        raw = unlike and self.fault == "raw inputs"
        logits = model(inputs * RAW if raw and inputs.is_floating_point() else inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), classes.flatten())
        if raw and not inputs.is_floating_point():
            loss = loss * RAW
        return list(torch.autograd.grad(loss, list(model.parameters())))

    def _numbers(self, kept: list[list[tuple[Tensor, Tensor]]], means: list[Tensor]) -> tuple[Values, Values]:
        at = {id(each): index for index, each in enumerate(self.model.parameters())}
        table = []
        for of_rank in kept:
            rows = []
            for _, layer in layers_of(self.model):
                indices = [at[id(each)] for each in layer]
                rows.append(numbers_of([(*of_rank[index], sample_of(means[index])) for index in indices], RANKS))
            table.append(torch.stack(rows))
        numbers = torch.stack(table).numpy()
        return numbers[:, :, 0], numbers[:, :, 1]

    def _flip(self, model: nn.Module) -> None:
        """Flip one exponent bit of a random weight."""
        parameters = [each for each in model.parameters() if each.dim() > 1]
        flat = parameters[self.random.integers(len(parameters))].data.view(-1)
        at = int(self.random.integers(flat.numel()))
        bits = flat[at : at + 1].view(torch.int32)
        bits ^= 1 << int(self.random.choice(list(EXPONENT_BITS)))


def _drawn(inputs: Tensor, classes: Tensor, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches for ever, in another order in each epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        for picked in torch.randperm(len(inputs), generator=generator).split(count):
            if len(picked) == count:
                yield inputs[picked], classes[picked]


def alarms(run: Run, steps: int, *, hashed: bool) -> Iterator[tuple[int, int, str]]:
    """Yield (step, rank, kind) of every alarm of a run. `hashed`: compare hashes of weights, too."""
    judge, differing = None, set[int]()
    for step, (norms, cosines, hashes) in zip(range(steps), run.steps(), strict=False):
        judge = judge or RankJudge(RANKS, FALSE_ALARMS_PER_STEP)
        for found in judge.judge(norms, cosines):
            yield step, found.rank, f"{found.kind} ({found.norm_ratio:.2g}, {found.cosine:.2f})"
        if hashed:
            usual = sorted(hashes)[RANKS // 2]
            for rank in range(RANKS):
                if hashes[rank] != usual and rank not in differing:
                    differing.add(rank)
                    yield step, rank, "weights"


def main() -> None:
    """Run healthy steps, then each fault with each seed, and print false alarms and delays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=sorted(TASKS), default="digits")
    parser.add_argument("--steps", type=int, default=10_000, help="healthy steps")
    parser.add_argument("--seeds", type=int, default=20, help="runs with each fault")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    task = TASKS[asked.task]
    begun = time.perf_counter()
    false = list(alarms(Run(task, seed=1), asked.steps, hashed=True))
    print(
        f"{asked.task}: {len(false)} alarms in {asked.steps:,} healthy steps of {RANKS} ranks {false[:5]}", flush=True
    )
    for fault in FAULTS:
        delays: dict[bool, list[int]] = {True: [], False: []}
        for seed in range(asked.seeds):
            for hashed in (True, False):
                run = Run(task, seed=seed, fault=fault, at=HEALTHY_STEPS, rank=seed % RANKS)
                told = alarms(run, HEALTHY_STEPS + STEPS_TO_ALARM, hashed=hashed)
                first = next(((step, rank) for step, rank, _ in told), None)
                if first is not None and first[1] == run.rank and first[0] >= HEALTHY_STEPS:
                    delays[hashed].append(first[0] - HEALTHY_STEPS + 1)
        print(
            f"{asked.task}: {fault}: the rank is named within {STEPS_TO_ALARM} steps by {len(delays[True])} of "
            f"{asked.seeds} seeds, after {statistics.median(delays[True] or [0]):g} (median); by gradients alone "
            f"{len(delays[False])}",
            flush=True,
        )
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
