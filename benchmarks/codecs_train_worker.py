"""One rank of `fanin bench codecs --train`: carries out one training after another, each with a new network."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from fanin.benchmarks import codecs_train_hooks as hooks
from fanin.benchmarks.codecs_train_runs import GLOO, Asked, Run, evaluated
from fanin.benchmarks.device_bytes import device_bytes
from fanin.benchmarks.processor import ProcessorMeter
from fanin.benchmarks.ranks import asked_of, group_of_ranks, progress, report
from fanin.examples.tasks import TASKS
from fanin.examples.train import cross_entropy, evaluate, replica_hash
from fanin.host.torch import CodecState, codec_hook
from fanin.options import Options

WARM_UP_STEPS = 2
"""Steps that are not timed: DDP makes its buckets in the first one, and encoders are made in both."""
COMPUTE_SAMPLES = 3
BUCKET_MB = 1
"""Bucket size of DDP, for every codec and gloo. Its default of 25 MB would put each of these networks' gradients into
one or two buckets, of which none is sent before the last gradient is computed.
"""
TIMEOUT = timedelta(seconds=300)
ORDERED = "ordered"
"""Name of the fanin group for torch's hook, whose futures run callbacks in order, because these callbacks sum."""


@functools.cache
def data_of(task: str) -> tuple[TensorDataset, TensorDataset]:
    """Training and test set of a task; cached, because making them takes seconds."""
    return TASKS[task].data()


def batches(training: TensorDataset, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's part of each batch, the same for every codec."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    own = batch // workers
    inputs, classes = training.tensors
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(inputs), generator=generator)
        for first in range(0, len(order) - batch + 1, batch):
            chosen = order[first + rank * own : first + (rank + 1) * own]
            yield inputs[chosen], classes[chosen]


def evaluated_by_all(network: nn.Module, test: TensorDataset, gloo: dist.ProcessGroup) -> tuple[float | None, float]:
    """Loss (None: not finite) and accuracy on the test set, divided among all ranks."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    part = TensorDataset(*(each[rank::workers] for each in test.tensors))
    found = evaluate(network, part) if len(part) else {"test_loss": 0.0, "accuracy": 0.0}
    totals = torch.tensor([found["test_loss"], found["accuracy"]], dtype=torch.float64) * len(part)
    dist.all_reduce(totals, group=gloo)
    loss, accuracy = (totals / len(test)).tolist()
    return (loss if math.isfinite(loss) else None), accuracy


def compute_s(model: DistributedDataParallel, inputs: Tensor, classes: Tensor, gloo: dist.ProcessGroup) -> float:
    """Seconds of a forward and backward pass without communication, while all ranks do the same."""
    taken = []
    for _ in range(COMPUTE_SAMPLES):
        dist.barrier(gloo)
        started = time.perf_counter()
        with model.no_sync():
            cross_entropy(model(inputs), classes).backward()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def group_of(run: Run) -> str:
    """Name of the group over which a run's gradients are summed."""
    if hooks.is_hook(run.codec):
        return ORDERED if hooks.read(run.codec).group == "fanin" else GLOO
    return GLOO if run.codec == GLOO else "fanin"


def groups_for(runs: Sequence[Run]) -> dict[str, dist.ProcessGroup]:
    """By name, the groups that these runs need, and a gloo group for what is not measured."""
    groups = {GLOO: dist.new_group(backend="gloo", timeout=TIMEOUT), "fanin": dist.new_group(backend="fanin")}
    if any(group_of(run) == ORDERED for run in runs):
        groups[ORDERED] = dist.new_group(backend="fanin", pg_options=Options(ordered_futures=True))
    return groups


def train(run: Run, groups: dict[str, dist.ProcessGroup]) -> dict[str, object]:
    """Carry out one training; returns this rank's report."""
    torch.manual_seed(run.seed)
    task = TASKS[run.task]
    network = task.network()
    hook = hooks.read(run.codec) if hooks.is_hook(run.codec) else None
    group = groups[group_of(run)]
    # The same seed makes the same weights, so they need not be sent over a slow link.
    model = DistributedDataParallel(
        network, process_group=group, init_sync=False, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MB
    )
    state = None
    if hook is not None:
        hook.register(model, group)
    elif run.codec != GLOO:
        state = CodecState(run.codec, group=group, model=network)
        model.register_comm_hook(state, codec_hook)
    optimizer = torch.optim.AdamW(model.parameters(), task.learning_rate, fused=True)
    training, test = data_of(run.task)
    data = batches(training, run.batch, run.seed)
    asked, points = set(evaluated(run)), []
    step_s, codec_s, optimizer_s, processor_s, before = [], [], [], [], (0, 0)
    meter = ProcessorMeter()
    for step in range(run.steps):
        if step == WARM_UP_STEPS:
            before = device_bytes()
        inputs, classes = next(data)
        dist.barrier(groups[GLOO])
        meter.start()
        started, used = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        cross_entropy(model(inputs), classes).backward()
        computed = time.perf_counter()
        optimizer.step()
        ended = time.perf_counter()
        if step >= WARM_UP_STEPS:
            meter.stop()
            step_s.append(ended - started)
            processor_s.append(time.process_time() - used)
            optimizer_s.append(ended - computed)
            codec_s.append(state.arithmetic_s() if state else 0.0)
        if step + 1 in asked:
            points.append((step + 1, *evaluated_by_all(network, test, groups[GLOO])))
    sent, received = (now - then for now, then in zip(device_bytes(), before, strict=True))
    replica = replica_hash(network)
    return {
        "points": points,
        "step_s": statistics.median(step_s),
        "compute_s": compute_s(model, inputs, classes, groups[GLOO]) + statistics.median(optimizer_s),
        "codec_s": statistics.median(codec_s),
        "processor_s": statistics.median(processor_s),
        "bytes_out": sent / (run.steps - WARM_UP_STEPS),
        "bytes_in": received / (run.steps - WARM_UP_STEPS),
        "processor": meter.share,
        "replica": replica,
    }


def main(asked: Asked) -> None:
    """Carry out the trainings; every rank reports each."""
    with group_of_ranks(timeout=TIMEOUT):
        groups = groups_for(asked.trainings)
        for number, run in enumerate(asked.trainings):
            report({"run": number, **train(run, groups)})
            progress(f"{number + 1} of {len(asked.trainings)} is done: {run.task}, {run.codec}, seed {run.seed}")


if __name__ == "__main__":
    main(asked_of(Asked, __doc__))
