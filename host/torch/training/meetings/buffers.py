"""A model's buffers at a meeting, such as BatchNorm's running statistics: means of floats, maxima of counts.

Changes since the last meeting travel in 32-bit lanes, so a narrow codec never rounds them.
Masks of bools and complex numbers are left as they are.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.work import FaninWork
from fanin.host.torch.training.meetings.fragments import local
from fanin.numerics.reduction import EXACT

LANES = 32


class Buffers:
    """The buffers of one model, and the values that all ranks started from."""

    def __init__(self, model: nn.Module) -> None:
        buffers = [local(each) for each in model.buffers()]
        self._floats = [each for each in buffers if each.is_floating_point()]
        self._counts = [each for each in buffers if each.dtype in (torch.int64, torch.int32)]
        self._start = _flat(self._floats, torch.float32)

    @property
    def any(self) -> bool:
        """Whether there are buffers that meet."""
        return bool(self._floats or self._counts)

    def start(self, group: FaninProcessGroup, *, contributes: bool) -> BufferSums:
        """Submit this rank's changes since the start; zeros where it does not contribute, or they are not finite."""
        changes = self._start - _flat(self._floats, torch.float32)
        if not contributes or not bool(changes.isfinite().all()):
            changes.zero_()
        return BufferSums(self, group, changes, _flat(self._counts, torch.int64))

    def begin_anew(self) -> None:
        """Take the present values, which all ranks have, as those that they start from."""
        self._start = _flat(self._floats, torch.float32)

    def state(self) -> dict[str, torch.Tensor]:
        """A copy of the values that all ranks started from, and of the counts."""
        return {"start": self._start.clone(), "counts": _flat(self._counts, torch.int64)}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Start from what `state` returned."""
        self._start = state["start"].clone()
        self._write(self._floats, self._start)
        self._write(self._counts, state["counts"])

    def reset(self) -> None:
        """Set buffers of floats back to the values that all ranks started from; counts stay."""
        self._write(self._floats, self._start)

    def _take(self, mean: torch.Tensor, counts: torch.Tensor) -> None:
        self._start = self._start - mean
        self._write(self._floats, self._start)
        self._write(self._counts, counts)

    @staticmethod
    def _write(tensors: list[torch.Tensor], values: torch.Tensor) -> None:
        with torch.no_grad():
            for each, part in zip(tensors, values.split([each.numel() for each in tensors]), strict=True):
                each.copy_(part.view(each.shape))


class BufferSums:
    """Sums of one meeting's buffers, under way."""

    def __init__(self, buffers: Buffers, group: FaninProcessGroup, changes: torch.Tensor, counts: torch.Tensor) -> None:
        self._buffers, self._changes, self._counts = buffers, changes, counts
        self._works: list[FaninWork] = []
        if len(changes):
            self._works.append(group.all_reduce_lanes(changes, lanes=LANES, average=True))
        if len(counts):
            self._works.append(group.all_reduce_lanes(counts, lanes=EXACT, operator=dist.ReduceOp.MAX))

    def wait(self) -> None:
        """Wait until both sums have come."""
        for work in self._works:
            work.wait()

    def take(self, factor: float) -> None:
        """Set the buffers; `factor`: of the mean over all ranks to that over the contributors."""
        self._buffers._take(self._changes * factor, self._counts)


def _flat(tensors: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(sum(each.numel() for each in tensors), dtype=dtype, device="cpu")
    for part, each in zip(out.split([each.numel() for each in tensors]), tensors, strict=True):
        part.copy_(each.reshape(-1))
    return out
