"""One rank of `fanin bench codecs --train`: trains the same network through every codec, one after the other.

The clock counts steps alone: rank 0's evaluations and the first steps, in which DDP makes its buckets, are outside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from fanin.emulation.network.fabric import WORKER_DEVICE
from fanin.examples.tasks import TASKS, Task
from fanin.examples.train import cross_entropy, evaluate, replica_hash
from fanin.host.torch import CodecState, codec_hook

GLOO = "gloo"
WARM_UP_STEPS = 2
"""Steps before the clock starts."""
TIMEOUT = timedelta(seconds=300)


def sent_bytes() -> int:
    """Bytes that have left by this namespace's device so far."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.split(":")[0].strip() == WORKER_DEVICE)


def batches(training: TensorDataset, task: Task, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's part of each batch, the same for every codec."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    own = task.batch // workers
    inputs, classes = training.tensors
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(inputs), generator=generator)
        for first in range(0, len(order) - task.batch + 1, task.batch):
            chosen = order[first + rank * own : first + (rank + 1) * own]
            yield inputs[chosen], classes[chosen]


def run(codec: str, task: Task, steps: int, points: int, seed: int, groups: dict[str, dist.ProcessGroup]) -> None:
    """One training; every rank prints what it saw."""
    torch.manual_seed(seed)
    network = task.network()
    group = groups[GLOO if codec == GLOO else "fanin"]
    model = DistributedDataParallel(network, process_group=group)
    if codec != GLOO:
        model.register_comm_hook(CodecState(codec, group=group, model=network), codec_hook)
    optimizer = torch.optim.AdamW(model.parameters(), task.learning_rate)
    training, test = task.data()
    data = batches(training, task, seed)
    clock_s, curve, step_s, before = 0.0, [], [], 0
    for step in range(-WARM_UP_STEPS, steps):
        if step == 0:
            before = sent_bytes()
        inputs, classes = next(data)
        dist.barrier(groups[GLOO])
        started = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(model(inputs), classes).backward()
        optimizer.step()
        if step < 0:
            continue
        step_s.append(time.perf_counter() - started)
        clock_s += step_s[-1]
        if dist.get_rank() == 0 and ((step + 1) * points // steps != step * points // steps or step == 0):
            found = evaluate(network, test)
            curve.append((clock_s, step + 1, found["test_loss"], found["accuracy"]))
    record = {
        "codec": codec,
        "seed": seed,
        "points": curve,
        "step_s": statistics.median(step_s),
        "bytes_out": (sent_bytes() - before) / steps,
        "gradient_bytes": sum(each.numel() * each.element_size() for each in network.parameters()),
        "replica": replica_hash(network),
    }
    print(json.dumps(record), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codecs", required=True)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--points", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    groups = {GLOO: dist.new_group(backend="gloo", timeout=TIMEOUT), "fanin": dist.new_group(backend="fanin")}
    codecs = arguments.codecs.split("|")
    for seed in range(arguments.repeats):
        for number, codec in enumerate(codecs, start=1):
            run(codec, TASKS[arguments.task], arguments.steps, arguments.points, seed, groups)
            if dist.get_rank() == 0:
                words = f"run {seed * len(codecs) + number} of {arguments.repeats * len(codecs)} is done: {codec}"
                print(json.dumps({"progress": words}), flush=True)
    dist.barrier(groups[GLOO])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
