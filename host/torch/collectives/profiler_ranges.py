"""Collectives as named ranges in traces of torch.profiler: `fanin:all_reduce`, as gloo's and NCCL's have theirs.

A range is the call of a collective; `fanin:all_reduce:wait` (handles/work.py) is a wait for its result, on the thread
that waits. With `record_shapes=True` a call's arguments are the tensors' dimensions and the facts that torch's
record_param_comms has of other backends, which has no binding to Python. Without a profiler, a call costs one question
more.

No range lasts from the call to the result: torch ends a range on another thread by memory of the profiler's session,
which may be over by then, and the process dies of it (seen with torch's own test suite, which profiles in each test).

The same wrapper is where the flight recorder hears of a collective (flight_recorder.py), in groups that have one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from fanin.host.torch.handles.work import FaninWork

PREFIX = "fanin:"
NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "all_reduce_lanes": "all_reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_lanes": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "all_gather_single": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_coalesced": "all_gather_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all_single": "all_to_all_single",
    "alltoall_base": "all_to_all_single",
    "alltoall": "all_to_all",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
"""Name of the range of each method: torch.distributed's name of the collective. A group may lack some methods."""

ONE_LIST = frozenset(
    ("allreduce", "allreduce_coalesced", "all_reduce_lanes", "reduce", "broadcast", "send", "recv", "recv_anysource")
)
"""Methods with one argument of tensors, which are both inputs and outputs; the others take outputs, and then inputs."""

Group = TypeVar("Group", bound=type)
_INSIDE = threading.local()
"""`group`: whose collective this thread is in, because calls through torch's dispatcher (layers.py) come twice."""


def named_ranges(group: Group) -> Group:
    """A class decorator: let every collective of the process group be a range while a profiler runs, and known to its
    flight recorder, where it has one (`flight`)."""
    for method, name in NAMES.items():
        if (call := getattr(group, method, None)) is not None:
            setattr(group, method, _ranged(call, name, paired=method not in ONE_LIST))
    return group


def _ranged(call: Callable[..., Any], name: str, *, paired: bool) -> Callable[..., Any]:
    @functools.wraps(call)
    def ranged(self: Any, *given: Any, **named: Any) -> Any:
        flight = self.flight
        if (flight is None and not profiler._is_profiler_enabled) or getattr(_INSIDE, "group", None) is self:
            return call(self, *given, **named)
        outer, _INSIDE.group = getattr(_INSIDE, "group", None), self
        try:
            if not profiler._is_profiler_enabled:
                return recorded(self, *given, **named)
            tensors = list(_tensors((*given, *named.values())))
            with _RecordFunctionFast(PREFIX + name, tensors, facts(self, name, tensors)):
                return call(self, *given, **named) if flight is None else recorded(self, *given, **named)
        finally:
            _INSIDE.group = outer

    def recorded(self: Any, *given: Any, **named: Any) -> Any:
        record = self.flight.begin(name, paired, (*given, *named.values()), self.default_timeout, named.get("lanes"))
        try:
            work = call(self, *given, **named)
        except BaseException as error:
            record.ended(error)
            raise
        if isinstance(work, FaninWork):
            record.begun(work)
        return work

    return ranged


def facts(group: Any, name: str, tensors: list[torch.Tensor]) -> dict[str, str | int]:
    """Facts of a collective by torch's names for them (record_param_comms), of the tensors that this rank gives."""
    return {
        "Collective name": name,
        "In msg nelems": sum(tensor.numel() for tensor in tensors),
        "dtype": ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})),
        "Process Group Name": group.group_name,
        "Group size": group.size(),
        "Rank": group.rank(),
    }


def _tensors(given: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """The tensors of the last argument that holds any: inputs come after outputs."""
    for each in reversed(given):
        if isinstance(each, torch.Tensor):
            yield each
            return
        if isinstance(each, list | tuple) and each:
            inner = each[0] if isinstance(each[0], list | tuple) else each
            if all(isinstance(tensor, torch.Tensor) for tensor in inner):
                yield from inner
                return
