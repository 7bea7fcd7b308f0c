"""The ranks of one host in sums of two levels: NCCL for CUDA tensors, gloo for host memory.

Reduce-scatters and all-gathers have a group of their own each. A library wants the collectives of a group in one order
on all ranks, and an all-gather begins when its sum has come from the network, between any two reduce-scatters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from fanin.host.torch.gloo.gloo_devices import DEVICES
from fanin.host.torch.handles.failures import break_connections

ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Inside:
    """Reduce-scatters and all-gathers inside a host; `rank` and `size` count its ranks.

    `kind`: "nccl" or "gloo". NCCL's groups connect when they are first used, gloo's in the constructor; both raise
    torch's errors where a rank does not come.
    """

    def __init__(self, kind: str, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> None:
        self.kind, self.rank, self.size = kind, rank, size
        self.device_type = "cuda" if kind == "nccl" else "cpu"
        make: Callable[[c10d.Store], Any] = lambda part: _nccl(part, rank, size, timeout)  # noqa: E731
        if kind == "gloo":
            self._devices = DEVICES.open()  # held as long as its groups
            make = lambda part: self._devices.group(part, rank, size, timeout)  # noqa: E731
        self._scattering = make(c10d.PrefixStore("scatter", store))
        self._gathering = make(c10d.PrefixStore("gather", store))
        self._broken = False

    def reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor, timeout_s: float) -> Any:
        """Start: `part` becomes this rank's part of the ranks' sum of `whole`, which is `size` times as long."""
        options = c10d.ReduceScatterOptions()
        options.timeout = timedelta(seconds=timeout_s)
        return self._scattering._reduce_scatter_base(part, whole, options)

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor, timeout_s: float) -> Any:
        """Start: `whole` becomes all ranks' parts, one after the other."""
        options = c10d.AllgatherOptions()
        options.timeout = timedelta(seconds=timeout_s)
        return self._gathering._allgather_base(whole, part, options)

    def break_connections(self) -> None:
        """Make everything that waits raise, or end on the device. Idempotent, from any thread."""
        if self._broken:
            return
        self._broken = True
        for each in (self._scattering, self._gathering):
            if self.kind == "gloo":
                break_connections(each, self.rank, self.size)
            else:
                each.abort()

    def close(self) -> None:
        """End NCCL's groups in order; gloo's end with their last reference."""
        if self.kind == "nccl" and not self._broken:
            self._broken = True
            for each in (self._scattering, self._gathering):
                each.shutdown()


def _nccl(store: c10d.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """A group of NCCL's whose watchdog leaves errors to us.

    By default it ends the process where a peer is lost; here the fanin session reports that, with the rank's number.
    A value that the user has set stays.
    """
    nccl: Any = c10d.ProcessGroupNCCL  # absent from builds for the CPU
    options = nccl.Options()
    options._timeout = timeout
    chosen = os.environ.get(ERROR_HANDLING)
    os.environ[ERROR_HANDLING] = chosen or "0"  # read by the constructor
    try:
        return nccl(store, rank, size, options)
    finally:
        if chosen is None:
            del os.environ[ERROR_HANDLING]
