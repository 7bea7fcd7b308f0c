"""One rank of the benchmark of collectives: times each collective over every rival in turn, and checks the results."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from fanin.benchmarks.allreduce_worker import MAX_CALLS, contribution, group_of
from fanin.benchmarks.collectives import Asked
from fanin.benchmarks.processor import ProcessorMeter
from fanin.benchmarks.ranks import asked_of, group_of_ranks, progress, report
from fanin.benchmarks.rivals import Rival
from fanin.benchmarks.usable import device_of_rank, usable_groups
from fanin.host.codecs import make_weights
from fanin.host.codecs.philox import Randomness
from fanin.host.torch.training.pieced_gather import PiecedGather
from fanin.host.torch.training.shard_groups import Segment

ROOT = 0
WARM_UP_CALLS = 2
SAMPLE_TARGET_S = 0.25
"""Least duration of a sample, which has several calls also of a large tensor, as a step of sharded training has."""
WEIGHTS = "8"
"""Encoding of the weights that an all_gather moves if lanes have 8 bits, as `shard_codecs` encodes them."""


class Given:
    """Inputs of all ranks, and expected results. `size`: bytes of float32, a multiple of 4 times the ranks."""

    def __init__(self, size: int, device: torch.device) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.total = torch.zeros(size // 4, dtype=torch.float64, device=device)
        parts = []
        for each in range(ranks):
            tensor = contribution(each, size // 4).to(device)
            self.total += tensor
            parts.append(tensor.chunk(ranks)[each].clone())
            if each == ROOT:
                self.root = tensor
            if each == rank:
                self.own = tensor
        self.part, self.gathered = parts[rank], torch.cat(parts)


class Trial:
    """Measures one collective over one rival."""

    def __init__(self, collective: str, rival: Rival, group: dist.ProcessGroup, given: Given) -> None:
        self.collective, self.rival, self.group = collective, rival, group
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.given, self.own, self.part = given, given.own, given.part
        self.whole, self.kept = torch.empty_like(self.own), torch.empty_like(self.part)
        narrow = rival.backend == "fanin" and rival.lanes != 32
        self.weights = make_weights(WEIGHTS) if collective == "all_gather" and narrow else None
        self.layout = [Segment(0, len(self.part), torch.float32, quantized=True)]
        self.call: Callable[[], object] = getattr(self, f"_{collective}")
        self.seconds: list[float] = []
        self.max_error = 0.0
        self.processor = ProcessorMeter()
        self.calls = self._calls()

    def _broadcast(self) -> None:
        dist.broadcast(self.whole, ROOT, group=self.group)

    def _all_reduce(self) -> None:
        dist.all_reduce(self.whole, group=self.group)

    def _reduce(self) -> None:
        dist.reduce(self.whole, ROOT, group=self.group)

    def _all_gather(self) -> None:
        if self.weights is None:
            dist.all_gather_into_tensor(self.whole, self.part, group=self.group)
            return
        gather = PiecedGather(self.weights, self.layout)
        gather.start(self.part, self.group, Randomness(0, 0), 0, self.rank)
        gather.finish(self.whole)

    @property
    def moved_bytes(self) -> int:
        """Bytes of all weights as they are encoded, or of float32."""
        if self.weights is None:
            return self.whole.nbytes
        return self.ranks * PiecedGather(self.weights, self.layout).payload_bytes

    def _reduce_scatter(self) -> None:
        dist.reduce_scatter_tensor(self.kept, self.own, group=self.group)

    def _prepare(self) -> None:
        """Restore the memory that the call overwrites."""
        if self.collective in ("all_reduce", "reduce") or (self.collective == "broadcast" and self.rank == ROOT):
            self.whole.copy_(self.own)

    def _timed(self) -> float:
        self._prepare()
        self._synchronize()
        dist.barrier()
        started = time.perf_counter()
        self.call()
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> None:
        """Wait for the device: on CUDA a call returns before its result is computed."""
        if self.own.is_cuda:
            torch.cuda.synchronize(self.own.device)

    def _calls(self) -> int:
        """Number of calls in a sample, which rank 0 chooses by the time of its last call."""
        took = [self._timed() for _ in range(WARM_UP_CALLS)][-1]
        calls = torch.tensor(min(MAX_CALLS, max(1, int(SAMPLE_TARGET_S / took))))
        dist.broadcast(calls, 0)
        return int(calls)

    def sample(self) -> None:
        """Time some calls, each after a barrier over gloo, and check the last one's result.

        The first call is not timed: after another rival's turn and the check of its result, caches and links are in a
        state that no step of training meets.
        """
        self._timed()
        self.processor.start()
        self.seconds.append(sum(self._timed() for _ in range(self.calls)) / self.calls)
        self.processor.stop()
        dist.barrier()  # a rank that is done must not take a core for checking while others measure
        self.max_error = max(self.max_error, self._error())

    def _error(self) -> float:
        """Error of this rank's result, relative to the largest contribution of any rank; infinite if the result is not
        finite.
        """
        if self.collective == "reduce" and self.rank != ROOT:
            return 0.0
        found, expected = {
            "all_reduce": (self.whole, self.given.total),
            "broadcast": (self.whole, self.given.root),
            "all_gather": (self.whole, self.given.gathered),
            "reduce": (self.whole, self.given.total),
            "reduce_scatter": (self.kept, self.given.total.chunk(self.ranks)[self.rank]),
        }[self.collective]
        error = float((found - expected).abs().max()) / float(expected.abs().max())
        return error if error == error else float("inf")


def trials(groups: dict[Rival, dist.ProcessGroup], collective: str, size: int, given: Given, samples: int) -> None:
    """Take all rivals' samples of one collective and size in turn, and report each."""
    measured = [Trial(collective, rival, group, given) for rival, group in groups.items()]
    for number in range(samples):
        for one in measured:
            one.sample()
        progress(f"{collective} of {size:,} bytes: sample {number + 1} of {samples}")
    for one in measured:
        report(
            {
                "collective": collective,
                "bytes": size,
                "rival": one.rival.label,
                "seconds": one.seconds,
                "max_error": one.max_error,
                "moved_bytes": one.moved_bytes,
                "processor": one.processor.share,
            }
        )


def run(asked: Asked) -> None:
    """Measure and report the requested collectives."""
    with group_of_ranks():
        device = device_of_rank(asked.device)
        groups = usable_groups({rival: functools.partial(group_of, rival) for rival in asked.rivals}, device)
        for size in asked.sizes:
            given = Given(size, device)
            for collective in asked.collectives:
                trials(groups, collective, size, given, asked.samples)


if __name__ == "__main__":
    run(asked_of(Asked, __doc__))
