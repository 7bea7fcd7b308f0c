"""One rank of the all-reduce benchmark: times every rival in turn, checks every result, reports in JSON lines."""

from __future__ import annotations

import importlib
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from fanin import plugins
from fanin.benchmarks import mpi
from fanin.benchmarks.allreduce import Asked
from fanin.benchmarks.processor import ProcessorMeter
from fanin.benchmarks.ranks import COLLECTIVE_TIMEOUT, asked_of, group_of_ranks, progress, report
from fanin.benchmarks.rivals import Rival

SAMPLE_TARGET_S = 0.1
"""Least duration of a sample: quick calls are repeated, so that the clock, the ranks' start and the few milliseconds in
which the system finds a core for each rank weigh little."""
MAX_CALLS = 400
WARM_UP_CALLS = 3


@dataclass(slots=True)
class Measured:
    """This rank's measurements of one rival. `seconds` are per call, one value per sample."""

    rival: Rival
    reduce: Callable[[Tensor], object]
    counters: Callable[[], dict[str, int | float]] = dict
    """Returns the backend's counters."""
    buffers: list[Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    max_error: float = 0.0
    checksums: list[int] = field(default_factory=list)
    """CRC-32 of every result; all ranks must have the same."""
    processor: ProcessorMeter = field(default_factory=ProcessorMeter)


def contribution(rank: int, count: int) -> Tensor:
    """A rank's contribution: float32 from the normal distribution, seeded by the rank."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def group_of(rival: Rival) -> dist.ProcessGroup:
    """Make a process group of all ranks over the rival's backend."""
    options = rival.options(dist.get_rank(), os.environ) if rival.backend == "fanin" else None
    module, _, backend = rival.backend.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        group: dist.ProcessGroup = dist.new_group(backend=backend, timeout=COLLECTIVE_TIMEOUT, pg_options=options)
    except Exception as error:  # of the module, which may do anything
        if not module:
            raise
        raise plugins.rival_refused(rival.backend, f"{type(error).__name__}: {error}") from error
    return group


class Bench:
    """This rank's contribution, the exact sum of all ranks', and the largest magnitude in any.

    Ranks agree on how to measure through the world group, which is over gloo.
    """

    def __init__(self, count: int) -> None:
        self.control = dist.group.WORLD
        self.rank = dist.get_rank()
        self.own = contribution(self.rank, count)
        self.exact = torch.zeros(count, dtype=torch.float64)
        self.largest = 0.0
        for rank in range(dist.get_world_size()):
            one = contribution(rank, count)
            self.exact += one
            self.largest = max(self.largest, one.abs().max().item())

    def measured(self, rival: Rival) -> Measured:
        """Make the rival's process group, warm it up, and fix how many calls a sample takes."""
        group = group_of(rival)
        counters = getattr(group, "counters", dict)
        measured = Measured(rival, lambda tensor: dist.all_reduce(tensor, group=group), counters)
        buffer = torch.empty_like(self.own)
        for _ in range(WARM_UP_CALLS):
            buffer.copy_(self.own)
            started = time.perf_counter()
            measured.reduce(buffer)
            took = time.perf_counter() - started
        calls = torch.tensor(min(MAX_CALLS, max(1, int(SAMPLE_TARGET_S / took))))
        dist.broadcast(calls, 0, group=self.control)
        measured.buffers = [torch.empty_like(self.own) for _ in range(int(calls))]
        return measured

    def sample(self, measured: Measured) -> None:
        """Time one sample and check all its results."""
        for buffer in measured.buffers:
            buffer.copy_(self.own)
        dist.barrier(group=self.control)
        measured.reduce(torch.zeros(1))  # aligns the ranks' start more closely than a barrier over another backend
        measured.processor.start()
        started = time.perf_counter()
        for buffer in measured.buffers:
            measured.reduce(buffer)
        measured.seconds.append((time.perf_counter() - started) / len(measured.buffers))
        measured.processor.stop()
        dist.barrier(group=self.control)  # a rank that is done must not take a core for checking while others measure
        for buffer in measured.buffers:
            error = (buffer.double() - self.exact).abs().max().item() / self.largest
            measured.max_error = max(measured.max_error, error if error == error else float("inf"))
            measured.checksums.append(zlib.crc32(buffer.numpy().tobytes()))


def run(asked: Asked) -> None:
    """Take rounds of samples: every rival once per sample, OpenMPI, whose ranks are other processes, once per round."""
    with group_of_ranks() as (rank, workers):
        bench = Bench(asked.count)
        measured = [bench.measured(rival) for rival in asked.rivals if rival.backend != "mpi"]
        runs: dict[Rival, mpi.Result] = {}
        for done in range(asked.rounds):
            for number in range(asked.samples_per_round):
                for one in measured:
                    bench.sample(one)
                samples = asked.samples_per_round
                progress(f"sample {done * samples + number + 1} of {asked.rounds * samples}")
            if rank == 0:
                for rival in asked.rivals:
                    if rival.backend == "mpi":
                        result = mpi.run(rival.transport, workers, asked.count, asked.samples_per_round)
                        runs[rival] = runs[rival].join(result) if rival in runs else result
            dist.barrier(group=bench.control)
        for one in measured:
            report(
                {
                    "rival": one.rival.label,
                    "seconds": one.seconds,
                    "max_error": one.max_error,
                    "checksums": one.checksums,
                    # packets sent again, also during warm-up
                    "retransmissions": one.counters().get("engine.retransmissions"),
                    "processor": one.processor.share,
                }
            )
        for rival, result in runs.items():
            report({"rival": rival.label, "seconds": result.seconds, "max_error": result.max_error, "checksums": []})


if __name__ == "__main__":
    run(asked_of(Asked, __doc__))
