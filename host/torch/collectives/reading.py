"""The reading of torch's arguments: a collective's options, its tensors and lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import UnsupportedError
from fanin.host.torch.handles.call import SUM, Call, Tensors
from fanin.host.torch.handles.host_tensor import concrete
from fanin.host.torch.handles.timeouts import ZERO, Timeout, seconds_of

_OPERATOR, _ROOT = 1, 2
KINDS = {
    c10d.AllreduceOptions: _OPERATOR, c10d.AllreduceCoalescedOptions: _OPERATOR, c10d.ReduceScatterOptions: _OPERATOR,
    c10d.ReduceOptions: _OPERATOR | _ROOT,
    c10d.BroadcastOptions: _ROOT, c10d.GatherOptions: _ROOT, c10d.ScatterOptions: _ROOT,
    c10d.AllgatherOptions: 0, c10d.AllToAllOptions: 0, c10d.BarrierOptions: 0,
}  # fmt: skip
"""torch's kinds of options objects, and which fields they have beside a timeout."""


def read_call(
    collective: str, source: torch.Tensor, outputs: Tensors, opts: Any, default: Timeout, waits: bool = False,
    timeout: timedelta | None = None, root: int = 0, op: Any = SUM,
) -> Call:  # fmt: skip
    """The call that torch's arguments mean.

    `opts`: an options object of torch's, or what may stand in its place: an operator, a root, a timeout, nothing.
    `default`: the timeout where none was given. `waits`: False where the caller cannot wait for the call at once.
    """
    has = KINDS.get(type(opts))
    if has is not None:
        timeout, waits = opts.timeout, waits and not getattr(opts, "asyncOp", True)
        if has & _OPERATOR:
            op = opts.reduceOp
        if has & _ROOT:
            root = opts.rootRank
    else:
        waits = False
        if isinstance(opts, int):
            root = opts or root
        elif isinstance(opts, timedelta):
            timeout = opts
        elif opts is not None:
            op = opts
    if type(op) is not dist.ReduceOp:  # a member of torch's enum (ReduceOp.SUM) passes for one, without its attributes
        op = dist.ReduceOp(op)
    limit = default if timeout is None or timeout < ZERO else seconds_of(timeout)
    return Call(collective, source, outputs, op, limit, waits, root)


def timeout_in(opts: Any, default: Timeout) -> Timeout:
    """The timeout of an options object; `default` where it has none or is None."""
    timeout: timedelta | None = getattr(opts, "timeout", None)
    return default if timeout is None or timeout < ZERO else seconds_of(timeout)


def single(tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return concrete(tensors)
    if len(tensors) != 1:
        raise UnsupportedError(
            f"{len(tensors)} tensors in one collective; fanin takes one per rank. Remedy: a collective for each tensor"
        )
    return concrete(tensors[0])


def all_of(tensors: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
    """The tensors of a list, each concrete; none for None."""
    return [concrete(tensor) for tensor in tensors or ()]


def list_of(tensors: Any) -> list[torch.Tensor]:
    """The list of tensors that torch's C++ passes; a bare tensor becomes a list of one."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def lists_of(tensors: Any) -> list[list[torch.Tensor]]:
    """The list of lists that torch's C++ passes; a bare list of tensors becomes a list of one list."""
    return [list(tensors)] if tensors and isinstance(tensors[0], torch.Tensor) else list(tensors or ())


def options_of(kind: Any, opts: Any, timeout: timedelta | None, root: int, op: Any = None) -> Any:
    """`opts` if it is an options object; else one of `kind` with the bare arguments (`opts` may be the root)."""
    if opts is not None and not isinstance(opts, int):
        return opts
    options = kind()
    options.rootRank = opts or root
    if timeout is not None:
        options.timeout = timeout
    if op is not None:
        options.reduceOp = op if type(op) is dist.ReduceOp else dist.ReduceOp(op)
    return options
