"""One rank of the all-reduce benchmark: times every rival in turn, checks every result, reports in JSON lines."""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.benchmarks import mpi
from fanin.benchmarks.processor import ProcessorMeter
from fanin.benchmarks.rivals import Rival

SAMPLE_TARGET_S = 0.1
"""Quick calls are repeated to about this long, so that the clock, the start of the ranks and the few milliseconds in
which the system finds a core for each of them weigh little."""
MAX_CALLS = 400
WARM_UP_CALLS = 3
COLLECTIVE_TIMEOUT = timedelta(seconds=120)


@dataclass(slots=True)
class Measured:
    """This rank's measurements of one rival. `seconds` are per call, one value per sample."""

    rival: Rival
    reduce: Callable[[Tensor], object]
    counters: Callable[[], dict[str, int | float]] = dict
    """Read the backend's counters."""
    buffers: list[Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    max_error: float = 0.0
    checksums: list[int] = field(default_factory=list)
    """CRC-32 of every result: the ranks must agree."""
    processor: ProcessorMeter = field(default_factory=ProcessorMeter)


def contribution(rank: int, count: int) -> Tensor:
    """A rank's contribution: float32 from the normal distribution, seeded by the rank."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def group_of(rival: Rival) -> dist.ProcessGroup:
    """A process group of all ranks over it."""
    options = rival.options(dist.get_rank(), os.environ) if rival.backend == "fanin" else None
    group: dist.ProcessGroup = dist.new_group(backend=rival.backend, timeout=COLLECTIVE_TIMEOUT, pg_options=options)
    return group


class Bench:
    """This rank's contribution, the exact sum of all and the largest magnitude in it.

    The world group, over gloo, is what ranks agree through on how to measure.
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
        measured.reduce(torch.zeros(1))  # lines the ranks up more closely than a barrier over another backend
        measured.processor.start()
        started = time.perf_counter()
        for buffer in measured.buffers:
            measured.reduce(buffer)
        measured.seconds.append((time.perf_counter() - started) / len(measured.buffers))
        measured.processor.stop()
        dist.barrier(group=self.control)  # who is done first must not take the cores for checking while others measure
        for buffer in measured.buffers:
            error = (buffer.double() - self.exact).abs().max().item() / self.largest
            measured.max_error = max(measured.max_error, error if error == error else float("inf"))
            measured.checksums.append(zlib.crc32(buffer.numpy().tobytes()))


def run(rivals: list[Rival], count: int, rounds: int, samples_per_round: int) -> None:
    """Rounds of samples, every rival once per sample; OpenMPI, which has processes of its own, once per round."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    bench = Bench(count)
    measured = [bench.measured(rival) for rival in rivals if rival.backend != "mpi"]
    runs: dict[Rival, mpi.Result] = {}
    for done in range(rounds):
        for number in range(samples_per_round):
            for one in measured:
                bench.sample(one)
            if bench.rank == 0:
                words = f"sample {done * samples_per_round + number + 1} of {rounds * samples_per_round}"
                print(json.dumps({"progress": words}), flush=True)
        if bench.rank == 0:
            for rival in rivals:
                if rival.backend == "mpi":
                    result = mpi.run(rival.transport, dist.get_world_size(), count, samples_per_round)
                    runs[rival] = runs[rival].join(result) if rival in runs else result
        dist.barrier(group=bench.control)
    for one in measured:
        resent = one.counters().get("engine.retransmissions")
        report(one.rival, one.seconds, one.max_error, one.checksums, resent, one.processor.share)
    for rival, result in runs.items():
        report(rival, result.seconds, result.max_error, [])
    dist.barrier(group=bench.control)
    dist.destroy_process_group()


def report(
    rival: Rival,
    seconds: list[float],
    max_error: float,
    checksums: list[int],
    resent: float | None = None,
    processor: float | None = None,
) -> None:
    """One rival's figures as this rank saw them; `resent` are packets sent again, warming up included."""
    figures = {"seconds": seconds, "max_error": max_error, "checksums": checksums, "retransmissions": resent}
    figures["processor"] = processor
    print(json.dumps({"rival": rival.label, **figures}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivals", required=True, help="labels, separated by commas")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--samples-per-round", type=int, required=True)
    arguments = parser.parse_args()
    run(
        [Rival.parse(label) for label in arguments.rivals.split(",")],
        arguments.count,
        arguments.rounds,
        arguments.samples_per_round,
    )
