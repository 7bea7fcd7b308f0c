"""A DDP communication hook for stale synchronous parallel training (SSP; Ho et al., 2013; docs/staleness.md).

    state = StaleSynchronousState(StaleOptions(staleness=2))
    model.register_comm_hook(state, stale_synchronous_hook)
    ...                                   # train, the same number of iterations on every rank
    state.flush(optimizer)                # the replicas are bit-identical from here on

Each iteration contributes the gradient to one round and gets that round's result: what has landed in it, from any
worker, at most S iterations late. Every gradient lands exactly once, divided by the number of workers; every replica
gets the same results in the same order.
"""

import sys

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes.
import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from fanin.errors import ConfigurationError
from fanin.host.stale.account import Account
from fanin.host.stale.runner import Result
from fanin.host.torch.handles.dynamo import keep_out
from fanin.host.torch.training.buckets_only import require_bucket
from fanin.host.torch.training.stale import StaleJob, StaleOptions, StaleTerms, fanin_group

WARM_UP_ITERATIONS = 2
"""Synchronous iterations first: DDP makes its final buckets after one, and the next shows how large gradients are."""


class StaleSynchronousState:
    """State of `stale_synchronous_hook`. `group`: a fanin group; None for the world's."""

    def __init__(self, options: StaleOptions | None = None, *, group: c10d.ProcessGroup | None = None) -> None:
        self.options = options or StaleOptions()
        self.group = fanin_group(group)
        self.iteration = 0
        self._largest = 0.0
        self._buffers: list[torch.Tensor] = []
        """Buffers of this iteration so far, in order of buckets."""
        self._futures: list[Future[torch.Tensor]] = []
        self._sizes: list[int] = []
        """Number of elements of each bucket."""
        self._parameters: list[torch.Tensor] = []
        """Parameters in the order in which their gradients lie in the buckets."""
        self._job: StaleJob | None = None
        self._sum = np.zeros(0, np.float32)
        """Sum of the results since the last iteration's."""
        self._landed = False
        """Whether any result since the last iteration's holds a contribution."""
        self._flushed = False

    @property
    def account(self) -> Account | None:
        """Account of this rank; None during the warm-up."""
        return self._job.account if self._job is not None else None

    @property
    def description(self) -> str:
        """The stale job in words: at which switches, which engine, packets and slots. Empty before the first step."""
        return self._job.session.description if self._job is not None else ""

    @property
    def choices(self) -> list[int]:
        """Values that `tune` has set so far, at rank 0."""
        return self._job.choices if self._job is not None else []

    def warm_up(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Average a bucket synchronously, and learn the layout."""
        if bucket.index() == 0:
            self._sizes, self._parameters, self._largest = [], [], 0.0
        self._sizes.append(bucket.buffer().numel())
        self._parameters += bucket.parameters()
        self._largest = max(self._largest, float(bucket.buffer().abs().max()))
        self.iteration += bucket.is_last()
        work = self.group.all_reduce_lanes(bucket.buffer(), average=True)
        return work.get_future().then(lambda reduced: reduced.value()[0])

    def contribute(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Keep a bucket; with the last one, contribute all of them and wait for the round's result."""
        self._buffers.append(bucket.buffer())
        future: Future[torch.Tensor] = Future()
        self._futures.append(future)
        if bucket.is_last():
            self._exchange()
        return future

    def flush(self, optimizer: torch.optim.Optimizer) -> list[Account]:
        """Apply what is still under way, as one more step of `optimizer`: every replica then has the same weights.

        Every rank calls it after the same number of iterations; training may go on afterwards. Returns the accounts of
        all ranks, which balance.
        Raises UnbalancedError, CollectiveTimeoutError, the session's failure.
        """
        if self._job is None or self._flushed:
            return []
        accounts = self._job.flush()
        if self._landed:
            gradients = torch.from_numpy(self._take()).split([p.numel() for p in self._parameters])
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                # Nothing has landed for a parameter that no rank uses, so weight decay must leave it as it is.
                landed = bool(gradient.count_nonzero())
                parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if landed else None
            optimizer.step()
        optimizer.zero_grad()
        self._job.close()
        self._flushed = True
        return accounts

    def resume(self) -> None:
        """Begin anew after a flush, as for a checkpoint: with a warm-up, and a stale job of its own."""
        if self._flushed:
            self._job, self._flushed, self.iteration = None, False, 0

    def _exchange(self) -> None:
        if self._job is None:
            self._job = self._open()
        if [buffer.numel() for buffer in self._buffers] != self._sizes:
            raise ConfigurationError(
                "DDP changed its buckets after the warm-up. Remedy: keep the same parameters in use in every iteration"
            )
        runner = self._job.runner
        self._job.stepped()
        runner.hand_in(self._write, runner.rounds.base)
        runner.wait_for_results()
        self._job.resumed()
        self.iteration += 1
        results = torch.from_numpy(self._take()).split(self._sizes)
        futures, self._futures, buffers, self._buffers = self._futures, [], self._buffers, []
        for future, buffer, result in zip(futures, buffers, results, strict=True):
            buffer.copy_(result)
            future.set_result(buffer)

    def _open(self) -> StaleJob:
        self._sum = np.zeros(sum(self._sizes), np.float32)
        terms = StaleTerms(
            policy="wait",
            options=self.options,
            elements=sum(self._sizes),
            end=None,
            on_result=self._collect,
            weigh=self._share,
        )
        return StaleJob.found(self.group, terms, largest=self._largest / dist.get_world_size(self.group))

    def _share(self, age: int) -> float:
        """The weight of a gradient, by the members present; its sender decides, so replicas agree on it."""
        assert self._job is not None
        return 1.0 / len(self._job.session.members)

    def _write(self, out: npt.NDArray[np.float32]) -> None:
        for part, buffer in zip(torch.from_numpy(out).split(self._sizes), self._buffers, strict=True):
            part.copy_(buffer)

    def _collect(self, result: Result) -> None:
        """Add a round's result; on the runner's thread, while the thread that trains waits."""
        self._sum += result.gradient
        self._landed = self._landed or not result.empty

    def _take(self) -> npt.NDArray[np.float32]:
        """The sum that has landed since the last call: the mean over all workers, since each sends its share."""
        taken = self._sum.copy()
        self._sum[:] = 0.0
        self._landed = False
        return taken


def stale_synchronous_hook(state: StaleSynchronousState, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
    """Exchange a bucket with bounded staleness: `model.register_comm_hook(state, stale_synchronous_hook)`."""
    require_bucket("stale_synchronous_hook", bucket)
    state.resume()
    if state.iteration < WARM_UP_ITERATIONS:
        return state.warm_up(bucket)
    return state.contribute(bucket)


keep_out(sys.modules[__name__])
