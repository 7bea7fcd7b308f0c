"""Every reducing collective: which route its tensors take, in what form they travel, and what comes back where.

What the switch sums becomes a `Request` here (handles/request.py), and leaves by `GroupResources.submit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from fanin.errors import UnsupportedError
from fanin.host.torch.collectives.arguments import Arguments
from fanin.host.torch.collectives.group_codec import GroupCodec
from fanin.host.torch.collectives.group_resources import GroupResources
from fanin.host.torch.collectives.routing import (
    AVG,
    ELEMENTS,
    OPERATORS,
    QUANTIZED,
    SUM,
    SUM_ROUTES,
    Path,
    Route,
    factor_of,
    route_of,
)
from fanin.host.torch.collectives.two_levels import TwoLevels
from fanin.host.torch.device.encoder import Contribution
from fanin.host.torch.handles.host_tensor import copy_back, on_host, plain
from fanin.host.torch.handles.request import Request, tag_of
from fanin.host.torch.handles.work import FaninWork, LocalWork, Tensors
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import EXACT, LANES, Element, Operator, lanes_number, sum_in_place

SPARSE_DTYPES = {
    dtype: dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
} | {torch.float16: torch.float32, torch.int16: torch.int32}
"""Element types of sparse tensors, and those that gloo adds them in."""

_BARRIER = torch.zeros(1, dtype=torch.int32, device="cpu")
"""The tensor that every barrier adds and nobody reads."""
_SUM_TAG, _BARRIER_TAG = tag_of("all_reduce", average=False), tag_of("barrier", average=False)


class ReduceCollectives:
    """The reducing collectives of one group. Ranks are group ranks, timeouts seconds."""

    def __init__(self, resources: GroupResources, counters: Counter[str], arguments: Arguments) -> None:
        self._resources = resources
        self._submit = resources.submit
        self._quick = resources.quick
        self._counters = counters
        self._lanes = resources.options.lanes_number
        self._exact = resources.options.largest_exact(resources.size)
        """Sums of up to so many elements are exact."""
        self._rank = resources.rank
        self._size = resources.size
        self._completion = resources.completion
        self._arguments = arguments
        self._summed = {
            dtype: (route.element, self._lanes)
            for dtype, route in SUM_ROUTES.items()
            if route.element is not None and not route.view
        }
        """Element types that the switch adds as they are, and their lanes."""
        self._summed_exactly = self._summed | {
            dtype: (route.exact_element, EXACT)
            for dtype, route in SUM_ROUTES.items()
            if route.exact_element is not None and not route.view
        }
        """The same for tensors that are small."""
        codec = resources.options.codec
        self._codec = None if codec is None or resources.size == 1 else GroupCodec(codec, resources)
        self._two_levels = resources.two_levels

    # --- the collectives ---

    def all_reduce(self, tensor: torch.Tensor, tensors: Tensors, op: Any, timeout_s: float) -> FaninWork:
        """Reduce in place; `tensors` is [tensor], as the caller gave it."""
        if (levels := self._levels_for(tensor, op)) is not None:
            if not self._arguments.of_one("all_reduce", tensor):
                return LocalWork(self._completion, tensors)
            return levels.all_reduce(tensor, tensors, op, timeout_s)
        if self._codec is not None and self._codec.takes(tensor, op):
            if not self._arguments.of_one("all_reduce", tensor):
                return LocalWork(self._completion, tensors)
            self._count(Path.SWITCH, "all_reduce", tensor)
            return self._submit(self._codec.request(tensor, tensors, op, timeout_s))
        if op == SUM and (travels_as := self._travels_as(tensor)) is not None:
            element, lanes = travels_as
            self._count(Path.SWITCH, "all_reduce", tensor)
            return self._submit(
                Request(
                    name="all_reduce",
                    source=tensor,
                    kept=tensor,
                    element=element,
                    lanes=lanes,
                    outputs=tensors,
                    timeout_s=timeout_s,
                )
            )
        if not self._arguments.of_one("all_reduce", tensor):
            return LocalWork(self._completion, tensors)
        if tensor.layout is not torch.strided:
            return self._sparse(tensor, op, timeout_s)
        return self._reduce("all_reduce", tensor, tensor, 0, op, timeout_s)

    def sum_at_once(self, tensor: torch.Tensor, op: Any, timeout_s: Callable[[], float]) -> FaninWork | None:
        """An all-reduce that is done when this returns; None, and nothing is done, where it must be a request.

        For callers that would wait at once, as of exchanges and barriers. As requests these sums took 1.5 to
        1.6 times as long at 1 and 4 KiB (4 workers on 2 cores, medians of 400 interleaved runs of 20 sums): processes
        that alternate on a core find every line of Python cold.
        """
        quick = self._quick
        if quick is None or op != SUM or (self._codec is not None and self._codec.takes(tensor, op)):
            return None
        travels_as = self._travels_as(tensor)
        if travels_as is None or not quick.free or self._levels_for(tensor, op) is not None:
            return None
        self._counters["switch.all_reduce"] += 1
        self._counters["switch.bytes"] += tensor.nbytes
        brief = sum_in_place(tensor.data_ptr(), tensor.numel(), *travels_as, _SUM_TAG)
        return quick.at_once("all_reduce", brief, tensor, timeout_s)

    def _levels_for(self, tensor: torch.Tensor, op: Any) -> TwoLevels | None:
        """Levels that sum the tensor (Options.inside); None for a small one, or one of a kind that they do not take."""
        levels = self._two_levels
        if levels is None or tensor.numel() <= self._exact or not levels.takes(tensor, op):
            return None
        return levels

    def _travels_as(self, tensor: torch.Tensor) -> tuple[Element, int] | None:
        """Element type and lanes of a sum in the tensor's own memory; None where that cannot be."""
        if self._size == 1 or not plain(tensor):
            return None
        return (self._summed_exactly if tensor.numel() <= self._exact else self._summed).get(tensor.dtype)

    def check(self, tensors: Tensors, op: Any) -> None:
        """Raise what reducing any of several tensors would raise, before the first is started."""
        for tensor in tensors:
            route_of(op.op, tensor.dtype)

    def all_reduce_lanes(
        self, tensor: torch.Tensor, timeout_s: float, *, lanes: int | str | None, average: bool,
        residual: torch.Tensor | None, operator: Any = SUM, scale_code: int = 0,
    ) -> FaninWork:  # fmt: skip
        """A sum, average or other reduction with lanes (or EXACT) and error feedback of the caller's choice (hooks)."""
        op = dist.ReduceOp(dist.ReduceOp.AVG if average else operator)
        return self.all_reduce_narrowed(tensor, op, timeout_s, lanes=lanes, residual=residual, scale_code=scale_code)

    def all_reduce_narrowed(
        self, tensor: torch.Tensor, op: Any, timeout_s: float, *, lanes: int | str | None,
        residual: torch.Tensor | None, scale_code: int = 0,
    ) -> FaninWork:  # fmt: skip
        """The same with torch's own operator."""
        if not self._arguments.of_one("all_reduce", tensor):
            return LocalWork(self._completion, [tensor])
        return self._reduce(
            "all_reduce",
            tensor,
            tensor,
            0,
            op,
            timeout_s,
            lanes=_number(lanes),
            residual=residual,
            scale_code=scale_code,
        )

    def average_encoded(self, asked: Contribution, timeout_s: float) -> FaninWork:
        """The mean of what an encoder on a device has made of a bucket, and what it does with the mean."""
        values = asked.values
        element = ELEMENTS[values.dtype]
        self._count(Path.SWITCH, "all_reduce", values)
        return self._submit(
            Request(
                name="all_reduce",
                source=values,
                kept=values,
                element=element,
                lanes=EXACT if values.numel() <= self._exact else asked.lanes,
                average=True,
                residual=asked.residual,
                adds=asked.adds,
                outputs=[asked.output],
                timeout_s=timeout_s,
                finish=asked.finish,
            )
        )

    def residual_device(self, tensor: torch.Tensor, lanes: int | str | None) -> torch.device:
        """Device on which a residual of sums of that tensor must lie: the tensor's, if its words are made there."""
        number = self._lanes if lanes is None else _number(lanes)
        beside = (
            tensor.dtype in QUANTIZED and number in LANES and tensor.numel() > self._exact
            and self._resources.arithmetic_on(tensor.device) is not None
        )  # fmt: skip
        return tensor.device if beside else torch.device("cpu")

    def reduce(self, tensor: torch.Tensor, root: int, op: Any, timeout_s: float) -> FaninWork:
        """The root's tensor becomes the result; the others keep theirs."""
        kept = tensor if self._rank == root else None
        return self._reduce("reduce", tensor, kept, 0, op, timeout_s)

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: Any, timeout_s: float, *, lanes: int | str | None = None,
        residual: torch.Tensor | None = None,
    ) -> FaninWork:  # fmt: skip
        """`output` becomes this rank's part of the reduced `tensor`, all parts being equal."""
        first = self._rank * output.numel()
        return self._reduce(
            "reduce_scatter", tensor, output, first, op, timeout_s, lanes=_number(lanes), residual=residual
        )

    def reduce_scatter_list(self, output: torch.Tensor, parts: Tensors, op: Any, timeout_s: float) -> FaninWork:
        """`output` becomes the reduced `parts[rank]`; parts may differ in size, alike on every rank."""
        first = sum(part.numel() for part in parts[: self._rank])
        flat = torch.cat([part.detach().reshape(-1) for part in parts])
        return self._reduce("reduce_scatter", flat, output, first, op, timeout_s)

    def barrier(self, timeout_s: float, at_once: bool = False) -> FaninWork:
        """Done when every rank has come; `at_once`: when this returns, if that can be."""
        if self._size == 1:
            return LocalWork(self._completion, [])
        self._count(Path.SWITCH, "barrier", _BARRIER)
        if at_once and self._quick is not None and self._quick.free:
            source = _BARRIER.data_ptr()
            brief = (source, 0, _BARRIER.numel(), Element.INT32, WORD_BITS, _BARRIER_TAG, 0, 0, 0, -1)
            return self._quick.at_once("barrier", brief, _BARRIER, lambda: timeout_s)
        return self._submit(
            Request(name="barrier", source=_BARRIER, kept=None, element=Element.INT32, timeout_s=timeout_s)
        )

    # --- the ways ---

    def _reduce(
        self,
        name: str,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        first: int,
        op: Any,
        timeout_s: float,
        lanes: int | None = None,
        residual: torch.Tensor | None = None,
        scale_code: int = 0,
    ) -> FaninWork:
        """Reduce `tensor`; elements [first, first + output.numel()) go to `output` (None: nobody's here)."""
        route = route_of(op.op, tensor.dtype)
        factor = factor_of(op)
        if self._size == 1:
            return self._alone(name, tensor, output, factor)
        lanes = self._lanes if lanes is None else lanes
        element = route.element
        if route.exact_element is not None and (tensor.numel() <= self._exact or lanes == EXACT):
            element, lanes = route.exact_element, EXACT
        elif lanes == EXACT:
            lanes = WORD_BITS  # integers, exact as they are
        travelling = _travelling(tensor, route)
        if residual is not None:
            self._arguments.check_residual(name, residual, travelling)
        self._count(Path.GLOO if element is None else Path.SWITCH, name, tensor)
        # Parts are counted in what travels: two numbers for a complex one, two bytes for the bits of an int16.
        first *= travelling.numel() // max(tensor.numel(), 1)
        if element is None:
            return self._by_gloo(name, travelling, tensor, output, first, route, timeout_s)
        if factor != 1.0 and element is Element.FLOAT64:
            travelling = travelling * factor  # the switch path multiplies in float32
            factor = 1.0
        kept, finish = self._landing(travelling, tensor, output, first, route)
        request = Request(
            name=name,
            source=travelling,
            kept=kept,
            keep_first=first,
            element=element,
            lanes=lanes,
            operator=OPERATORS[route.gloo_op] if lanes == EXACT else Operator.SUM,
            average=route.average and not route.divide_after,
            factor=factor,
            residual=residual,
            scale_code=0 if lanes == EXACT else scale_code,
            outputs=[] if output is None else [output],
            timeout_s=timeout_s,
            finish=finish,
        )  # fmt: skip
        return self._submit(request)

    def _landing(
        self, travelling: torch.Tensor, tensor: torch.Tensor, output: torch.Tensor | None, first: int, route: Route
    ) -> tuple[torch.Tensor | None, Callable[[], None] | None]:
        """The memory for the switch's result, and the action that then brings it to `output`."""
        if output is None:
            return None, None
        seen = _travelling(output, route) if output is not tensor else travelling
        own_memory = seen.data_ptr() == output.data_ptr()
        if own_memory and output is not tensor and _overlaps(seen, travelling, first):
            own_memory = False
        if own_memory and not route.divide_after:
            return seen, None
        landed = seen if own_memory else travelling if output is tensor else torch.empty_like(seen)

        def finish() -> None:
            if route.divide_after:
                landed.div_(self._size, rounding_mode="trunc")
            if not own_memory:
                _arrive(landed, output, route)

        return landed, finish

    def _by_gloo(
        self,
        name: str,
        travelling: torch.Tensor,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        first: int,
        route: Route,
        timeout_s: float,
    ) -> FaninWork:
        host = on_host(travelling)
        in_place = output is tensor and host.data_ptr() == tensor.data_ptr()
        if not in_place and host.data_ptr() == tensor.data_ptr():
            host = host.clone()

        def finish() -> None:
            if route.divide_after:
                host.div_(self._size, rounding_mode=None if host.is_floating_point() else "trunc")
            if output is not None and not in_place:
                count = output.numel() * (host.numel() // max(tensor.numel(), 1))
                _arrive(host.reshape(-1)[first : first + count], output, route)

        outputs = [] if output is None else [output]
        needed = None if in_place and not route.divide_after else finish
        return self._resources.inner.all_reduce(
            host, route.gloo_op, timeout_s, name=name, outputs=outputs, finish=needed
        )

    def _sparse(self, tensor: torch.Tensor, op: Any, timeout_s: float) -> FaninWork:
        """Sparse tensors are summed by gloo, which knows how to merge their indices."""
        travels_as = SPARSE_DTYPES.get(tensor.dtype)
        if op.op not in (SUM, AVG) or travels_as is None:
            raise UnsupportedError(
                f"all_reduce: ReduceOp.{op.op.name} of a sparse tensor of {str(tensor.dtype).removeprefix('torch.')}; "
                "sparse tensors are summed and averaged, those of complex numbers, bool and unsigned integers aside. "
                "Remedy: to_dense()"
            )
        self._count(Path.GLOO, "all_reduce", tensor)
        if self._size == 1:
            return LocalWork(self._completion, [tensor])
        total = tensor.detach().cpu().to(travels_as, copy=True)

        def finish() -> None:
            tensor.copy_(_divided(total, self._size) if op.op == AVG else total)  # a detached sparse tensor is a copy

        return self._resources.inner.all_reduce(
            total, SUM, timeout_s, name="all_reduce", outputs=[tensor], finish=finish
        )

    def _alone(self, name: str, tensor: torch.Tensor, output: torch.Tensor | None, factor: float) -> FaninWork:
        """A group of one: the result is the input."""
        self._count(Path.LOCAL, name, tensor)
        if output is not None and (output is not tensor or factor != 1.0):
            copy_back(output, (tensor.detach() * factor if factor != 1.0 else tensor.detach()).reshape(output.shape))
        return LocalWork(self._completion, [] if output is None else [output])

    def _count(self, path: Path, name: str, tensor: torch.Tensor) -> None:
        if path is Path.SWITCH and self._resources.sums_over_gloo:
            path = Path.GLOO
        self._counters[f"{path.value}.{name}"] += 1
        if tensor.layout is torch.strided:
            self._counters[f"{path.value}.bytes"] += tensor.nbytes


def _divided(total: torch.Tensor, count: int) -> torch.Tensor:
    """A sparse tensor by a number; integers are rounded toward zero, as dense ones."""
    total = total.coalesce()
    rounding = None if total.dtype.is_floating_point else "trunc"
    values = total.values().div(count, rounding_mode=rounding)
    return torch.sparse_coo_tensor(total.indices(), values, total.shape, is_coalesced=True)


def _number(lanes: int | str | None) -> int | None:
    return lanes_number(lanes) if isinstance(lanes, str) else lanes


def _travelling(tensor: torch.Tensor, route: Route) -> torch.Tensor:
    """The tensor dense, contiguous and in the route's element type: its own memory where that is possible."""
    dense = tensor.detach()
    if dense.is_conj() or dense.is_neg():
        dense = dense.resolve_conj().resolve_neg()
    dense = dense.contiguous()
    if dense.is_complex():
        return torch.view_as_real(dense)
    if dense.dtype == route.wire_dtype:
        return dense
    return dense.reshape(-1).view(route.wire_dtype) if route.view else dense.to(route.wire_dtype)


def _arrive(landed: torch.Tensor, output: torch.Tensor, route: Route) -> None:
    """Copy a result in the route's element type into the user's tensor."""
    if output.is_complex():
        landed = torch.view_as_complex(landed.reshape(*output.shape, 2))
    elif route.view and landed.dtype != output.dtype:
        landed = landed.reshape(-1).view(output.dtype)
    copy_back(output, landed.reshape(output.shape))


def _overlaps(output: torch.Tensor, source: torch.Tensor, first: int) -> bool:
    """Whether writing the output would spoil parts of the source that are still to be sent.

    The one harmless overlap is each element over itself: the output is the source's own part.
    """
    start, begin = output.data_ptr(), source.data_ptr()
    if start + output.nbytes <= begin or begin + source.nbytes <= start:
        return False
    return start != begin + first * source.element_size()
