"""One rank of `fanin bench staleness`: trains the same network in every mode, one after another, and reports curves.

The mode `rate-by-age` is `skip` with gradients divided by their age, `predicted-loss` is `skip` with gradients weighed
by the loss that is predicted for when they land. `local-H` has H local steps between two meetings, at which the mean of
the weights is taken; with `-quorum` all but one worker close a meeting, and late ones join the next. Modes whose names
end in -8 have lanes of 8 bits that keep their bits in sums ("8" of `Options.lanes`).

A step's length is dominated by an emulated compute time: the rank sleeps, as long as the condition says, where a larger
model would compute. The gradients are real, and with them the effect of staleness on learning. The clock starts after a
few steps, when every mode has opened its job and DDP has made its buckets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from fanin.benchmarks import trainee
from fanin.benchmarks.allreduce_worker import group_of
from fanin.benchmarks.ranks import asked_of, group_of_ranks, progress, report
from fanin.benchmarks.rivals import Rival
from fanin.benchmarks.staleness import ASYNCHRONOUS, MEETINGS, NARROW, SLOW_WORKER, Asked
from fanin.examples import digits
from fanin.examples.tasks import TASKS
from fanin.examples.train import cross_entropy, replica_hash
from fanin.host.stale.account import Account
from fanin.host.stale.bound import DynamicBound
from fanin.host.stale.quorum import SemiAsynchronousQuorum
from fanin.host.torch import (
    AsynchronousOptimizer,
    LocalSteps,
    StaleOptions,
    StaleSynchronousState,
    stale_synchronous_hook,
)

HIDDEN = 64
WARM_UP_STEPS = 3
"""Number of steps before the clock starts."""
EVALUATE_EVERY = 5
"""Steps of rank 0 between two points of its curve."""
EVALUATED = 4096
"""Most classes predicted for a point of the curve, so that evaluation does not make rank 0 a slow worker."""
SLOW_PROBABILITY, SLOW_FACTOR = 0.1, 5.0


Optimizer = torch.optim.Optimizer | AsynchronousOptimizer | LocalSteps


@dataclass(frozen=True, slots=True)
class Subject:
    """A task: the network, its data and its optimizer."""

    network: Callable[[], nn.Module]
    data: Callable[[], tuple[TensorDataset, TensorDataset]]
    """Training and test set."""
    samples: int
    """Samples per step of a worker."""
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]


def small_network() -> nn.Module:
    """A network of 4,810 parameters, whose sums take almost no time."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


SUBJECTS = {
    "digits": Subject(small_network, digits.load, 16, lambda parameters: torch.optim.SGD(parameters, lr=0.25)),
    "text": Subject(
        TASKS["text"].network,
        TASKS["text"].data,
        trainee.SAMPLES_PER_WORKER,
        lambda parameters: torch.optim.AdamW(parameters, trainee.LEARNING_RATE, fused=True),
    ),
}
"""Tasks by name; the text task has the steps of `fanin bench network --steps`."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Durations of a rank's steps under one condition."""

    name: str
    """`even`, `random` or one of SLOW_WORKER; with `slow-link`, compute times are even."""
    rank: int
    workers: int
    step_s: float
    seed: int
    """Seed of slow-downs, weights and batches, the same in every mode."""
    slow: float = 3.0
    """Duration of a slow worker's step, as a multiple of an ordinary one."""

    @property
    def quorum(self) -> int:
        """K of `skip`: over links, where each further round costs a result's travel, all workers but the slow one."""
        return self.workers - 1 if self.name == "slow-worker-over-links" else max(self.workers // 2, 1)

    @property
    def staleness(self) -> int:
        """S of `skip`; each further round costs the switch a copy of the gradient."""
        return 4 if self.name == "slow-worker-over-links" else 6

    def seconds(self) -> Iterator[float]:
        """Yield the emulated compute time of each step, the same in every mode."""
        chance = random.Random(1000 * (self.seed + 1) + self.rank)
        slow = self.slow if self.name in SLOW_WORKER and self.rank == self.workers - 1 else 1.0
        while True:
            hit = self.name == "random" and chance.random() < SLOW_PROBABILITY
            yield self.step_s * slow * (SLOW_FACTOR if hit else 1.0)


class Curve:
    """Loss and accuracy of one replica against time."""

    def __init__(self, network: nn.Module, test: TensorDataset) -> None:
        self.network = network
        inputs, targets = test.tensors
        samples = max(EVALUATED // targets[0].numel(), 1)
        self._inputs, self._targets = inputs[:samples], targets[:samples]
        self._started_s = time.perf_counter()
        self.points: list[tuple[float, int, float, float]] = []
        """(seconds, steps, test loss, test accuracy) of each point."""

    def add(self, steps: int) -> None:
        """Evaluate the replica, and add a point with the current time."""
        now = time.perf_counter() - self._started_s
        with torch.no_grad():
            logits = self.network(self._inputs)
            loss = cross_entropy(logits, self._targets).item()
            accuracy = (logits.argmax(-1) == self._targets).float().mean().item()
        self.points.append((now, steps, loss, accuracy))


class Training:
    """Parts that every mode's training shares: the same initial weights, the same samples in the same order, and step
    durations by `conditions`.
    """

    def __init__(self, task: str, conditions: Conditions) -> None:
        subject = SUBJECTS[task]
        torch.manual_seed(5 + conditions.seed)
        self.network = subject.network()
        self.conditions = conditions
        self.samples = subject.samples
        self.make_optimizer = subject.optimizer
        training, self._test = subject.data()
        self._batches = self._shuffled(training)
        self._seconds = conditions.seconds()
        self.curve = Curve(self.network, self._test)
        self.step_s: list[float] = []
        """Duration of each step since the clock started."""

    def start(self) -> None:
        """Start the clock, and begin an empty curve."""
        self.curve = Curve(self.network, self._test)
        self.step_s.clear()

    def step(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Compute a gradient, sleep as the condition says, and take the optimizer's step."""
        started = time.perf_counter()
        optimizer.zero_grad()
        inputs, targets = next(self._batches)
        time.sleep(next(self._seconds))
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        if isinstance(optimizer, AsynchronousOptimizer):
            optimizer.step(loss)
        else:
            optimizer.step()
        self.step_s.append(time.perf_counter() - started)

    def point(self, steps: int) -> None:
        """Add a point to rank 0's curve every EVALUATE_EVERY steps."""
        if self.conditions.rank == 0 and steps > 0 and steps % EVALUATE_EVERY == 0:
            self.curve.add(steps)

    def _shuffled(self, training: TensorDataset) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's batches of the training set, shuffled anew in each epoch."""
        rank, workers = self.conditions.rank, self.conditions.workers
        inputs, targets = (each[rank::workers] for each in training.tensors)
        generator = torch.Generator().manual_seed(1000 * self.conditions.seed + rank)
        while True:
            order = torch.randperm(len(inputs), generator=generator)
            for start in range(0, len(order) - self.samples + 1, self.samples):
                chosen = order[start : start + self.samples]
                yield inputs[chosen], targets[chosen]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One rank's report of one run, without its curve and steps."""

    gradients: int
    """Gradients of this rank that training used since the clock started."""
    facts: dict[str, Any] = field(default_factory=dict)


def facts_of(account: Account, choices: list[int]) -> dict[str, Any]:
    """Report fields of a rank that may drop gradients."""
    return {
        "account": str(account),
        "choices": choices,
        "handed_in": account.handed_in,
        "dropped": sum(account.dropped.values()),
    }


def train_together(mode: str, training: Training, steps: int, group: dist.ProcessGroup | None) -> Outcome:
    """Train by DDP: synchronously over fanin or gloo, or stale synchronously."""
    model = DistributedDataParallel(training.network, process_group=group)
    optimizer = training.make_optimizer(model.parameters())
    state: StaleSynchronousState | None = None
    if mode.startswith("ssp-"):
        state = StaleSynchronousState(StaleOptions(staleness=int(mode.removeprefix("ssp-"))))
    elif mode == "dssp":
        state = StaleSynchronousState(StaleOptions(tune=DynamicBound(lowest=1, highest=4)))
    if state is not None:
        model.register_comm_hook(state, stale_synchronous_hook)
    for step in range(-WARM_UP_STEPS, steps):
        if step == 0:
            dist.barrier()
            training.start()
        training.step(model, optimizer)
        training.point(step + 1)
    outcome = Outcome(steps)
    if state is not None:
        outcome = Outcome(steps, facts_of(state.flush(optimizer)[training.conditions.rank], state.choices))
    training.curve.add(steps)
    return outcome


def train_apart(mode: str, training: Training, steps: int) -> Outcome:
    """Train asynchronously, with as many gradients as `steps` synchronous steps would take."""
    conditions, quorum = training.conditions, training.conditions.quorum
    optimizer = AsynchronousOptimizer(
        training.make_optimizer(training.network.parameters()),
        training.network,
        rounds=(WARM_UP_STEPS + steps) * conditions.workers // quorum,
        policy="skip",
        options=StaleOptions(
            staleness=conditions.staleness,
            quorum=quorum,
            tune=SemiAsynchronousQuorum(bound=4) if mode == "quorum" else None,
            lanes="8" if mode.endswith(NARROW) else None,
        ),
        staleness_rate=mode == "rate-by-age",
        predict_loss=mode == "predicted-loss",
    )
    step, before = -WARM_UP_STEPS, 0
    while not optimizer.finished:
        if step == 0:  # no barrier: a round may need a gradient of a rank that would wait there
            training.start()
            before = optimizer.account.contributed if optimizer.account else 0
        training.step(training.network, optimizer)
        step += 1
        training.point(step)
    account = optimizer.flush()[conditions.rank]
    training.curve.add(step)
    return Outcome(account.contributed - before, facts_of(account, optimizer.choices))


def train_locally(mode: str, training: Training, steps: int) -> Outcome:
    """Train alone, and meet every so many steps: the mean of the workers' weights counts."""
    conditions = training.conditions
    late = mode.endswith("-quorum")
    model = LocalSteps(
        training.network,
        training.make_optimizer(training.network.parameters()),
        period=MEETINGS[mode],
        quorum=conditions.workers - 1 if late else None,
    )
    for step in range(-WARM_UP_STEPS - 1, steps):  # a whole period of the shorter kind before the clock starts
        if step == 0:
            dist.barrier()
            training.start()
        training.step(training.network, model)
        training.point(step + 1)
    accounts = model.flush()
    training.curve.add(steps)
    return Outcome(steps, facts_of(accounts[conditions.rank], []) if late else {})


def run(mode: str, task: str, conditions: Conditions, steps: int, groups: dict[str, dist.ProcessGroup]) -> float:
    """Train in one mode; every rank prints its report. Returns the accuracy at the end."""
    training = Training(task, conditions)
    if mode in ASYNCHRONOUS:
        outcome = train_apart(mode, training, steps)
    elif mode in MEETINGS:
        outcome = train_locally(mode, training, steps)
    else:
        outcome = train_together(mode, training, steps, groups.get(mode))
    points = training.curve.points
    record = {
        "mode": mode,
        "condition": conditions.name,
        "seed": conditions.seed,
        "points": points,
        "step_s": training.step_s,
        "samples_per_s": outcome.gradients * training.samples / points[-1][0],
        "replica": replica_hash(training.network),
        **outcome.facts,
    }
    report(record)
    dist.barrier()
    return points[-1][3]


def main(asked: Asked) -> None:
    """Train in every mode with every seed."""
    with group_of_ranks("fanin", default_pg_timeout) as (rank, workers):
        rivals = {"gloo": Rival("gloo"), "synchronous-8": Rival("fanin", "8")}
        groups = {mode: group_of(rival) for mode, rival in rivals.items() if mode in asked.modes}
        plan = list(product(range(asked.repeats), asked.modes))
        for done, (seed, mode) in enumerate(plan, start=1):
            conditions = Conditions(asked.condition, rank, workers, asked.step_ms / 1e3, seed, asked.slow)
            accuracy = run(mode, asked.task, conditions, asked.steps, groups)
            progress(f"run {done} of {len(plan)} is done: {mode}, {accuracy:.1%} at the end")


if __name__ == "__main__":
    main(asked_of(Asked, __doc__))
