"""One rank of `fanin bench meetings`: trains the same network in every mode, in turn, and reports curves."""

from __future__ import annotations

import contextlib
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from fanin.benchmarks.device_bytes import device_bytes
from fanin.benchmarks.meetings import ALONE, DDP, Asked
from fanin.benchmarks.ranks import COLLECTIVE_TIMEOUT, asked_of, group_of_ranks, progress, report
from fanin.emulation.network.hidden_exchange import exchanges_of
from fanin.emulation.network.timelines import legal, read_lines
from fanin.examples import digits
from fanin.examples.tasks import TASKS
from fanin.examples.train import cross_entropy, replica_hash
from fanin.host.torch import Every, LocalSteps, Outer, Quadratic
from fanin.options import Options

POINTS = 16
"""Number of points of a curve."""
SLOW_PROBABILITY, SLOW_FACTOR = 0.1, 5.0
SAMPLED_S, WINDOW_S = 0.1, 1.0
"""Seconds between two readings of the byte counter, and over which a rate is averaged."""
DILOCO = Outer(lr=0.7, momentum=0.9, nesterov=True)
RARE_DILOCO = Outer(lr=0.7, momentum=0.5, nesterov=True)
"""DiLoCo's outer step for a handful of meetings: with 0.9 the first deltas weigh most when the inner rate is small."""
CO2 = Outer(momentum=0.2)
"""CO2's outer step; the momentum is within the range of the released code, whose gap is 1."""
MEASURED_GAP = Outer(momentum=0.2, gap="measured")
GROWTH = 2.0
"""Alpha of the quadratic rule, as a multiple of the first learning rate."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A task: the network, its data and its optimizer."""

    network: Callable[[], nn.Module]
    data: Callable[[], tuple[TensorDataset, TensorDataset]]
    samples: int
    """Samples per step of a worker."""
    rate: float
    optimizer: Callable[[Iterable[Tensor], float], torch.optim.Optimizer]
    evaluated: int
    """Most test samples that are evaluated for a point of a curve."""


SUBJECTS = {
    "digits": Subject(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        digits.load, 16, 0.25, lambda parameters, rate: torch.optim.SGD(parameters, lr=rate), 10_000,
    ),
    "text": Subject(
        TASKS["text"].network, TASKS["text"].data, 4, 1e-3,
        lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate, fused=True), 128,
    ),
}  # fmt: skip


class Traffic:
    """Counts the bytes that this host sends, and their largest rate, by a thread that reads the counter regularly."""

    def __init__(self) -> None:
        self._first = device_bytes()[0]
        self._seen = [(time.monotonic(), self._first)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLED_S):
            self._seen.append((time.monotonic(), device_bytes()[0]))

    def stop(self) -> tuple[int, float]:
        """Stop counting; returns bytes sent, and the largest bit/s over any WINDOW_S."""
        self._ended.set()
        self._thread.join()
        self._seen.append((time.monotonic(), device_bytes()[0]))
        peak, begin = 0.0, 0
        for at_s, sent in self._seen:
            while at_s - self._seen[begin][0] > WINDOW_S:
                begin += 1
            peak = max(peak, (sent - self._seen[begin][1]) * 8 / WINDOW_S)
        return self._seen[-1][1] - self._first, peak


@dataclass(slots=True)
class Training:
    """The training of one mode: its step and flush, and what tables need."""

    model: nn.Module
    step: Callable[[], object]
    optimizer: torch.optim.Optimizer
    flush: Callable[[], object] = lambda: None
    meetings: Callable[[int], int] = lambda steps: steps
    waited_s: Callable[[], float | None] = lambda: None
    snapshots: list[tuple[float, list[Tensor]]] = field(default_factory=list)
    """(seconds since the start, copy of the weights) of each point."""


def training_of(mode: str, subject: Subject, network: nn.Module, steps: int) -> Training:
    """Set a mode's training up; all ranks must call it."""
    optimizer = subject.optimizer(network.parameters(), subject.rate)
    if mode == ALONE:
        return Training(network, optimizer.step, optimizer, meetings=lambda _: 0)
    if mode.startswith(DDP):
        model = DistributedDataParallel(network, process_group=group_of(mode), init_sync=False)
        return Training(model, optimizer.step, optimizer)
    if mode == "local-sgd":
        averager = PeriodicModelAverager(period=8, warmup_steps=0, process_group=group_of("gloo"))
        local = PostLocalSGDOptimizer(optimizer, averager)

        def average() -> None:
            for each in network.parameters():
                dist.all_reduce(each.data, op=dist.ReduceOp.SUM, group=group_of("gloo"))
                each.data /= dist.get_world_size()

        return Training(network, local.step, optimizer, average, lambda steps: -(-steps // 8))
    # Over the world's group, whose sums are in the rank's time line.
    training = LocalSteps(network, optimizer, init_sync=False, **settings(mode, subject, steps))
    return Training(
        network, training.step, optimizer, training.flush,
        lambda _: training.totals.meetings, lambda: training.totals.waited_s,
    )  # fmt: skip


def settings(mode: str, subject: Subject, steps: int) -> dict[str, Any]:
    """Keyword arguments of LocalSteps in this mode."""
    streaming = {"fragments": 4, "mix": 0.5}
    kinds: dict[str, dict[str, Any]] = {
        "qsr": {"period": Quadratic(alpha=GROWTH * subject.rate, base=4, init=4, total=steps)},
        "diloco": {"period": Every(16), "outer": DILOCO},
        "diloco-100": {"period": Every(100), "outer": RARE_DILOCO},
        "streaming": streaming | {"period": Every(16), "outer": DILOCO, "overlap": 2},
        "streaming-100": streaming | {"period": Every(100), "outer": RARE_DILOCO, "overlap": 10},
        "co2": {"period": Every(8), "outer": CO2, "overlap": 8},
        "co2-gap": {"period": Every(8), "outer": MEASURED_GAP, "overlap": 8},
    }
    kind, codec = mode.rsplit("-", 1) if "/" in mode else (mode, None)
    return kinds[kind] | ({} if codec is None else {"codec": codec})


_groups: dict[str, dist.ProcessGroup] = {}


def group_of(name: str) -> dist.ProcessGroup:
    """The group of all ranks for a mode or backend; made on the first call, in which all ranks must take part."""
    if name not in _groups:
        lanes = name.removeprefix(DDP)
        if lanes == "gloo":
            made = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        else:
            options = Options(lanes=lanes) if "/" in lanes else Options()
            made = dist.new_group(backend="fanin", timeout=COLLECTIVE_TIMEOUT, pg_options=options)
        _groups[name] = made
    return _groups[name]


def batches(subject: Subject, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's batches of the training set, shuffled anew in each epoch."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    inputs, targets = (each[rank::workers] for each in subject.data()[0].tensors)
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    while True:
        order = torch.randperm(len(inputs), generator=generator)
        for start in range(0, len(order) - subject.samples + 1, subject.samples):
            chosen = order[start : start + subject.samples]
            yield inputs[chosen], targets[chosen]


def seconds_of(condition: str, step_s: float, seed: int) -> Iterator[float]:
    """Yield the emulated compute time of each step, the same in every mode."""
    chance = random.Random(1000 * (seed + 1) + dist.get_rank())
    while True:
        hit = condition == "random" and chance.random() < SLOW_PROBABILITY
        yield step_s * (SLOW_FACTOR if hit else 1.0)


def train(mode: str, asked: Asked, seed: int) -> None:
    """Train in one mode, and report."""
    subject = SUBJECTS[asked.task]
    if asked.learning_rate:
        subject = replace(subject, rate=asked.learning_rate)
    torch.manual_seed(5 + seed)
    network = subject.network()
    training = training_of(mode, subject, network, asked.steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        training.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / asked.steps))
    )
    data, sleeps = batches(subject, seed), seconds_of(asked.condition, asked.step_ms / 1e3, seed)
    every = max(asked.steps // POINTS, 1)
    taken, step_s, timed_replica = asked.steps_of(mode), [], ""
    dist.barrier()
    traffic, started, launched_after_s = Traffic(), time.perf_counter(), time.monotonic()
    for step in range(1, taken + 1):
        began = time.perf_counter()
        inputs, targets = next(data)
        training.optimizer.zero_grad()
        time.sleep(next(sleeps))
        cross_entropy(training.model(inputs), targets).backward()
        training.step()
        schedule.step()
        step_s.append(time.perf_counter() - began)
        if step == asked.timed and not asked.links:
            timed_replica = replica_hash(network)
        if dist.get_rank() == 0 and step % every == 0 and step < asked.steps:
            copied = [each.detach().clone() for each in network.parameters()]
            training.snapshots.append((time.perf_counter() - started, copied))
    training.flush()
    ended_s = time.perf_counter() - started
    sent, peak = traffic.stop()
    dist.barrier()
    replica = replica_hash(network)
    training.snapshots.append((ended_s, [each.detach().clone() for each in network.parameters()]))
    report(
        {
            "mode": mode,
            "repeat": seed,
            "seconds": ended_s,
            "points": curve(training, network, subject) if dist.get_rank() == 0 else [],
            "replica": replica,
            "timed_replica": timed_replica,
            "step_s": step_s[: asked.timed],
            "meetings": training.meetings(taken),
            "waited_s": training.waited_s(),
            "exchanges": exchanges(launched_after_s),
            "sent_bytes": sent if asked.links else None,
            "peak_bit_s": peak if asked.links else None,
        }
    )
    dist.barrier()


def exchanges(after_s: float) -> list[dict[str, float]]:
    """Fields of `Exchanged` of this rank's meetings that were launched after a moment, from its time line."""
    lines = legal(read_lines(Path(os.environ["FANIN_TIMELINE"])))
    return [asdict(each) for each in exchanges_of(lines) if each.launched_s >= after_s]


@torch.no_grad()
def curve(training: Training, network: nn.Module, subject: Subject) -> list[tuple[float, float, float]]:
    """(seconds, loss, accuracy on the test set) of every snapshot; overwrites the network's weights."""
    inputs, targets = (each[: subject.evaluated] for each in subject.data()[1].tensors)
    points = []
    for at_s, copied in training.snapshots:
        for own, each in zip(network.parameters(), copied, strict=True):
            own.copy_(each)
        logits = network(inputs)
        right = (logits.argmax(-1) == targets).float().mean().item()
        points.append((at_s, cross_entropy(logits, targets).item(), right))
    return points


def run(asked: Asked) -> None:
    """Train in every mode with every seed."""
    with tempfile.TemporaryDirectory(prefix="fanin-meetings-") as folder:
        os.environ["FANIN_TIMELINE"] = f"{folder}/timeline.jsonl"
        with group_of_ranks("fanin", COLLECTIVE_TIMEOUT):
            train_all(asked)


def train_all(asked: Asked) -> None:
    """Train with the group of all ranks."""
    total, done = asked.repeats * len(asked.modes), 0
    for seed in range(asked.repeats):
        for mode in asked.modes:
            train(mode, asked, seed)
            done += 1
            progress(f"training {done} of {total} is done: {mode}")
    with contextlib.suppress(RuntimeError):
        dist.barrier()


if __name__ == "__main__":
    run(asked_of(Asked, __doc__))
