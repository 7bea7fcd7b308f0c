"""Collectives with gradients, as model parallelism needs them: select a rank's own rows, gather, and sum."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup


def gather_rows(rows: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
    """All ranks' rows, one below the other; `lengths`: number of rows of each rank, shorter ones are padded."""
    padded = rows.new_zeros(len(lengths), max(lengths), *rows.shape[1:])
    if max(lengths) > 0:
        own = nn.functional.pad(rows.detach(), (0, 0, 0, max(lengths) - len(rows)))
        dist.all_gather_into_tensor(padded.flatten(0, 1), own, group=group)
    return torch.cat([part[:length] for part, length in zip(padded, lengths, strict=True)])


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        own: Tensor = rows.split(lengths)[group.rank()]
        return own.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gather_rows(gradients[0], ctx.lengths, ctx.group), None, None


class _Everyones(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: list[int], group: ProcessGroup, summands: bool) -> Tensor:
        ctx.lengths, ctx.group, ctx.summands = lengths, group, summands
        return gather_rows(rows, lengths, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        whole = gradients[0].clone()
        if ctx.summands:
            dist.all_reduce(whole, group=ctx.group)
        return whole.split(ctx.lengths)[ctx.group.rank()], None, None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: ProcessGroup, backwards: bool) -> Tensor:
        ctx.group, ctx.backwards = group, backwards
        rows = rows.clone()
        if not backwards:
            dist.all_reduce(rows, group=group)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0].clone()
        if ctx.backwards:
            dist.all_reduce(gradient, group=ctx.group)
        return gradient, None, None


def own_rows(rows: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
    """This rank's part of rows that all ranks have; backwards, every rank gets the gathered gradients of all parts."""
    made: Tensor = _Own.apply(rows, lengths, group)  # type: ignore[no-untyped-call]
    return made


def everyones(rows: Tensor, lengths: list[int], group: ProcessGroup, *, summands: bool = False) -> Tensor:
    """All ranks' rows; backwards, the gradient of this rank's rows or, with `summands`, its sum over the ranks."""
    made: Tensor = _Everyones.apply(rows, lengths, group, summands)  # type: ignore[no-untyped-call]
    return made


def summed(rows: Tensor, group: ProcessGroup, *, backwards: bool = False) -> Tensor:
    """Sum over the group; backwards, gradients pass unchanged. With `backwards` the sum is over gradients instead."""
    made: Tensor = _Summed.apply(rows, group, backwards)  # type: ignore[no-untyped-call]
    return made
