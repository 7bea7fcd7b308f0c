"""One rank of the codec benchmark: runs every codec on every distribution, reports in JSON lines."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import torch
import torch.distributed as dist

from fanin.benchmarks.codecs import Asked
from fanin.benchmarks.ranks import asked_of, group_of_ranks, report
from fanin.examples.tasks import TASKS, Task
from fanin.examples.train import cross_entropy
from fanin.host.codecs import make
from fanin.host.codecs.codec import Floats, Place
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.codec_sums import reduce_now

ROWS = 256
"""Rows of the matrix as which the values are given to codecs that look at shapes."""


def drawn(distribution: str, rank: int, count: int) -> Floats:
    """A rank's random values, seeded by the rank."""
    generator = np.random.default_rng(rank)
    values = generator.normal(size=count) if distribution == "normal" else generator.standard_t(3, size=count)
    return values.astype(np.float32)


def captured(task: Task, step: int, size: int) -> tuple[list[Floats], tuple[tuple[int, ...], ...]]:
    """Each rank's gradient after `step` steps on the batches of all, and the parameters' shapes.

    Every rank computes the gradients of all ranks, so that each knows the exact mean.
    """
    torch.manual_seed(0)
    network, (training, _) = task.network(), task.data()
    optimizer = torch.optim.AdamW(network.parameters(), task.learning_rate)
    loader = torch.utils.data.DataLoader(training, task.batch, shuffle=True, drop_last=True)
    batches = (batch for _ in itertools.count() for batch in loader)
    for inputs, classes in itertools.islice(batches, step - 1):
        optimizer.zero_grad()
        cross_entropy(network(inputs), classes).backward()
        optimizer.step()
    inputs, classes = next(batches)
    found: list[Floats] = []
    for own, wanted in zip(inputs.tensor_split(size), classes.tensor_split(size), strict=True):
        optimizer.zero_grad()
        cross_entropy(network(own), wanted).backward()
        gradients = [each.grad.reshape(-1) for each in network.parameters() if each.grad is not None]
        found.append(torch.cat(gradients).numpy().copy())
    return found, tuple(tuple(each.shape) for each in network.parameters())


def inputs_of(distribution: str, count: int, size: int) -> tuple[list[Floats], tuple[tuple[int, ...], ...]]:
    """The values of every rank, and their shapes."""
    task, _, step = distribution.partition("@")
    if step:
        return captured(TASKS[task], int(step), size)
    shape = (ROWS, count // ROWS) if count % ROWS == 0 else (count,)
    return [drawn(distribution, peer, count) for peer in range(size)], (shape,)


def run(asked: Asked) -> None:
    """Run every codec on every kind of values."""
    with group_of_ranks("fanin") as (rank, size):
        group = dist.group.WORLD
        assert isinstance(group, FaninProcessGroup)
        for distribution in asked.values:
            inputs, shapes = inputs_of(distribution, asked.count, size)
            mean = np.mean(np.asarray(inputs, np.float64), axis=0)
            for text in asked.codecs:
                figures = measured(group, text, inputs[rank], shapes, mean, asked.steps)
                report({"codec": text, "distribution": distribution, "elements": len(mean), **figures})


def measured(
    group: FaninProcessGroup,
    text: str,
    own: Floats,
    shapes: tuple[tuple[int, ...], ...],
    mean: np.ndarray[tuple[int], np.dtype[np.float64]],
    steps: int,
) -> dict[str, object]:
    """Run one codec for `steps` steps on the same values; returns this rank's report."""
    count = len(own)
    encoder = make(text).encoder(Place(group.rank(), group.size(), shapes))
    applied = np.zeros(count)
    encode_s, decode_s, first, last, checksum = [], [], 0.0, 0.0, 0
    dist.barrier()
    before = before_last = group.counters()
    for step in range(steps):
        x = own.copy()
        before_last = group.counters()
        took = reduce_now(group, encoder, x, step)
        encode_s.append(took[0])
        decode_s.append(took[1])
        applied += x
        last = nmse(x, mean)
        first = first if step else last
        checksum = zlib.crc32(x.tobytes(), checksum)
    after = group.counters()
    return {
        "nmse": first,
        "nmse_of_last": last,
        "nmse_of_steps": nmse(applied / steps, mean),
        "encode_s": encode_s,
        "decode_s": decode_s,
        "bytes_out": (after["engine.bytes_out"] - before["engine.bytes_out"]) / steps,
        "bytes_in": (after["engine.bytes_in"] - before["engine.bytes_in"]) / steps,
        "last_bytes": sum(
            after[f"engine.{each}"] - before_last[f"engine.{each}"] for each in ("bytes_out", "bytes_in")
        ),
        "checksum": checksum,
    }


def nmse(x: np.ndarray[tuple[int], np.dtype[np.floating]], mean: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Sum of squared errors over the sum of squares of the exact mean."""
    return float(np.sum((x - mean) ** 2) / np.sum(mean**2))


if __name__ == "__main__":
    run(asked_of(Asked, __doc__))
