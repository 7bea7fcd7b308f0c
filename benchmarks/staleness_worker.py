"""One rank of `fanin bench staleness`: trains the same network in every mode, one after the other, and reports curves.

A step's length is dominated by an emulated compute time: the rank sleeps, as long as the condition says, where a
larger model would compute. The gradients are real, so what staleness does to learning is real too. The clock starts
after a few steps, when every mode has opened its job and DDP has made its buckets.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fanin.examples import digits
from fanin.examples.train import replica_hash
from fanin.host.stale.bound import DynamicBound
from fanin.host.stale.quorum import SemiAsynchronousQuorum
from fanin.host.torch import AsynchronousOptimizer, StaleOptions, StaleSynchronousState, stale_synchronous_hook

BATCH = 16
LEARNING_RATE = 0.25
HIDDEN = 64
WARM_UP_STEPS = 3
"""Steps before the clock starts."""
EVALUATE_EVERY = 5
"""Steps of rank 0 between two points of its curve."""
SLOW_PROBABILITY, SLOW_FACTOR, SLOW_RANK_FACTOR = 0.1, 5.0, 3.0
MODES = ("synchronous", "gloo", "ssp-1", "ssp-2", "ssp-4", "dssp", "quorum", "skip")


@dataclass(frozen=True, slots=True)
class Conditions:
    """How long a rank's step takes."""

    name: str
    """`even`, `random` or `slow-worker`; `slow-link` is even as far as computing goes."""
    rank: int
    workers: int
    step_s: float
    seed: int
    """Seed of slow-downs, weights and batches: the same in every mode."""

    def seconds(self) -> Iterator[float]:
        """Emulated compute time of one step after the other, the same in every mode."""
        chance = random.Random(1000 * (self.seed + 1) + self.rank)
        slow = SLOW_RANK_FACTOR if self.name == "slow-worker" and self.rank == self.workers - 1 else 1.0
        while True:
            hit = self.name == "random" and chance.random() < SLOW_PROBABILITY
            yield self.step_s * slow * (SLOW_FACTOR if hit else 1.0)


class Curve:
    """Loss and accuracy of one replica against time."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._inputs, self._targets = digits.load()[1].tensors
        self._started_s = time.perf_counter()
        self.points: list[tuple[float, int, float, float]] = []
        """Seconds, steps, test loss, test accuracy."""

    def add(self, steps: int) -> None:
        """A point, now."""
        now = time.perf_counter() - self._started_s
        with torch.no_grad():
            logits = self.network(self._inputs)
            loss = nn.functional.cross_entropy(logits, self._targets).item()
            accuracy = (logits.argmax(-1) == self._targets).float().mean().item()
        self.points.append((now, steps, loss, accuracy))


def make_network(seed: int) -> nn.Module:
    """The same on every rank and in every mode."""
    torch.manual_seed(5 + seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def batches(conditions: Conditions) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's part of the training set, shuffled anew in each round through it."""
    rank, workers = conditions.rank, conditions.workers
    inputs, targets = digits.load()[0].tensors
    inputs, targets = inputs[rank::workers], targets[rank::workers]
    generator = torch.Generator().manual_seed(1000 * conditions.seed + rank)
    while True:
        order = torch.randperm(len(inputs), generator=generator)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield inputs[chosen], targets[chosen]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank tells of one run."""

    curve: Curve
    steps: int
    facts: dict[str, Any]


def step_of(network: nn.Module, data: Iterator[tuple[Tensor, Tensor]], seconds: Iterator[float]) -> Tensor:
    """One step's gradient, as slow as the condition says; the loss."""
    inputs, targets = next(data)
    time.sleep(next(seconds))
    loss: Tensor = nn.functional.cross_entropy(network(inputs), targets)
    loss.backward()
    return loss


def train_together(mode: str, conditions: Conditions, steps: int, group: dist.ProcessGroup | None) -> Outcome:
    """DDP: synchronous over fanin or gloo, or stale synchronous."""
    network = make_network(conditions.seed)
    model = DistributedDataParallel(network, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    state: StaleSynchronousState | None = None
    if mode.startswith("ssp-"):
        state = StaleSynchronousState(StaleOptions(staleness=int(mode.removeprefix("ssp-"))))
    elif mode == "dssp":
        state = StaleSynchronousState(StaleOptions(tune=DynamicBound(lowest=1, highest=4)))
    if state is not None:
        model.register_comm_hook(state, stale_synchronous_hook)
    data, seconds = batches(conditions), conditions.seconds()
    curve = Curve(network)
    for step in range(-WARM_UP_STEPS, steps):
        if step == 0:
            dist.barrier()
            curve = Curve(network)
        optimizer.zero_grad()
        step_of(model, data, seconds)
        optimizer.step()
        if conditions.rank == 0 and step >= 0 and (step + 1) % EVALUATE_EVERY == 0:
            curve.add(step + 1)
    facts: dict[str, Any] = {}
    if state is not None:
        facts = {"account": str(state.flush(optimizer)[conditions.rank]), "choices": state.choices}
    curve.add(steps)
    return Outcome(curve, steps, facts)


def train_apart(mode: str, conditions: Conditions, steps: int) -> Outcome:
    """Asynchronously, with as many gradients as `steps` synchronous steps would take."""
    network = make_network(conditions.seed)
    workers = conditions.workers
    quorum = max(workers // 2, 1)
    tune = SemiAsynchronousQuorum(bound=4) if mode == "quorum" else None
    optimizer = AsynchronousOptimizer(
        torch.optim.SGD(network.parameters(), lr=LEARNING_RATE),
        network,
        rounds=(WARM_UP_STEPS + steps) * workers // quorum,
        policy="skip",
        options=StaleOptions(staleness=6, quorum=quorum, tune=tune),
    )
    data, seconds = batches(conditions), conditions.seconds()
    curve = Curve(network)
    step = -WARM_UP_STEPS
    while not optimizer.finished:
        if step == 0:  # no barrier: a round may need a gradient of those who would wait there
            curve = Curve(network)
        optimizer.zero_grad()
        optimizer.step(step_of(network, data, seconds))
        step += 1
        if conditions.rank == 0 and step > 0 and step % EVALUATE_EVERY == 0:
            curve.add(step)
    accounts = optimizer.flush()
    curve.add(step)
    return Outcome(curve, step, {"account": str(accounts[conditions.rank]), "choices": optimizer.choices})


def run(mode: str, conditions: Conditions, steps: int, gloo: dist.ProcessGroup) -> float:
    """One mode; every rank prints what it saw. Returns the accuracy at the end."""
    trainer: Callable[[], Outcome] = (
        (lambda: train_apart(mode, conditions, steps))
        if mode in ("quorum", "skip")
        else (lambda: train_together(mode, conditions, steps, gloo if mode == "gloo" else None))
    )
    outcome = trainer()
    record = {
        "mode": mode,
        "condition": conditions.name,
        "seed": conditions.seed,
        "points": outcome.curve.points,
        "steps": outcome.steps,
        "replica": replica_hash(outcome.curve.network),
        **outcome.facts,
    }
    print(json.dumps(record), flush=True)
    dist.barrier()
    return outcome.curve.points[-1][3]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", required=True)
    parser.add_argument("--conditions", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    gloo = dist.new_group(backend="gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    plan = list(product(arguments.conditions.split(","), range(arguments.repeats), arguments.modes.split(",")))
    for done, (condition, seed, mode) in enumerate(plan, start=1):
        conditions = Conditions(condition, rank, workers, arguments.step_ms / 1e3, seed)
        accuracy = run(mode, conditions, arguments.steps, gloo)
        if rank == 0:
            words = f"run {done} of {len(plan)} is done: {mode}, {accuracy:.1%} at the end"
            print(json.dumps({"progress": words}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
