"""One rank of `fanin bench cost`: measures what a call costs its host, for every rival in turn; rank 0 reports for all.

On real hosts: `torchrun --nnodes 2 ... -m fanin.benchmarks.cost_worker --rivals gloo,fanin-32,fanin-8 --bytes 26214400
--samples 5 --calls 10`, with a rank per host.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.benchmarks.allreduce_worker import contribution, group_of
from fanin.benchmarks.cost import Asked
from fanin.benchmarks.process_times import spent
from fanin.benchmarks.ranks import asked_of, group_of_ranks, progress, report
from fanin.benchmarks.rivals import FLOAT_BYTES, Rival

WARM_UP_CALLS = 3


class Meter:
    """Measures one rival on this rank."""

    def __init__(self, rival: Rival, own: Tensor) -> None:
        self.rival, self.own = rival, own
        self.group = group_of(rival)
        self.buffer = torch.empty_like(own)
        self.samples: list[tuple[float, float, float]] = []
        """By sample: user, system and wall seconds per call."""
        for _ in range(WARM_UP_CALLS):
            self._begin()

    def _begin(self) -> None:
        self.buffer.copy_(self.own)
        dist.all_reduce(self.buffer, group=self.group)

    def error(self, exact: Tensor, largest: float) -> float:
        """Error of one sum, relative to the largest contribution; infinite if the sum is not finite."""
        self._begin()
        error = float((self.buffer.double() - exact).abs().max()) / largest
        return error if error == error else float("inf")

    def sample(self, calls: int) -> None:
        """Time `calls` calls in place, without a pause, after one call that warms the caches."""
        self._begin()
        dist.barrier()
        before, started = spent(), time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(self.buffer, group=self.group)
        wall_s = time.perf_counter() - started
        dist.barrier()  # a shard works for the other hosts until all are done
        user_s, system_s = spent().since(before)
        self.samples.append((user_s / calls, system_s / calls, wall_s / calls))


def run(asked: Asked) -> None:
    """Take every rival's turn in each sample, and report."""
    with group_of_ranks() as (rank, ranks):
        given = [contribution(each, asked.bytes // FLOAT_BYTES) for each in range(ranks)]
        largest = max(float(each.abs().max()) for each in given)
        exact = torch.stack(given).double().sum(0)
        meters = [Meter(rival, given[rank]) for rival in asked.rivals]
        for number in range(asked.samples):
            for meter in meters:
                meter.sample(asked.calls)
            progress(f"sample {number + 1} of {asked.samples}")
        for meter in meters:
            figures = {"samples": meter.samples, "max_error": meter.error(exact, largest)}
            of_all: list[dict[str, object]] = [{}] * ranks
            dist.all_gather_object(of_all, figures)
            if rank == 0:
                report({"rival": meter.rival.label, "ranks": of_all})


if __name__ == "__main__":
    run(asked_of(Asked, __doc__))
