"""Every reducing collective: which route its tensors take, in what form they travel, and what comes back where.

A `Call` (handles/call.py) comes in once its arguments have been read; all_reduce alone checks them here, since most of
its calls pass a shorter test. What the switch sums leaves by `GroupResources.submit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from fanin.errors import UnsupportedError
from fanin.host.codecs.codec import Codec
from fanin.host.torch.collectives.arguments import Arguments
from fanin.host.torch.collectives.group_codec import GroupCodec
from fanin.host.torch.collectives.group_resources import GroupResources
from fanin.host.torch.collectives.routing import (
    AVG,
    AVG_ROUTES,
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
from fanin.host.torch.handles.call import Call, Tensors, dtype_bits, tag_of
from fanin.host.torch.handles.host_tensor import copy_back, on_host, plain
from fanin.host.torch.handles.work import FaninWork, LocalWork
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import EXACT, QUANTIZED_LANES, Element, Operator, sum_in_place

SPARSE_DTYPES = {
    dtype: dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
} | {torch.float16: torch.float32, torch.int16: torch.int32}
"""Element types of sparse tensors, and those that gloo adds them in."""

BARRIER = torch.zeros(1, dtype=torch.int32, device="cpu")
"""The tensor that every barrier adds and nobody reads."""
_BARRIER = (BARRIER.data_ptr(), 0, 1, Element.INT32, WORD_BITS, tag_of("barrier", average=False), 0, 0, 0, -1, 1.0)


class _InPlace:
    """Element types that the switch adds in their own memory: what they travel as, with their lanes and tags."""

    def __init__(self, routes: Mapping[torch.dtype, Route], lanes: int) -> None:
        """`routes`: of one operator, by element type. `lanes`: of the group."""
        in_place = {dtype: route for dtype, route in routes.items() if not route.view and not route.divide_after}
        tags = {
            dtype: tag_of("all_reduce", average=route.average, says=dtype_bits(dtype))
            for dtype, route in in_place.items()
        }
        self.large = {
            dtype: (route.element, lanes, tags[dtype]) for dtype, route in in_place.items() if route.element is not None
        }
        self.small = self.large | {
            dtype: (route.exact_element, EXACT, tags[dtype])
            for dtype, route in in_place.items()
            if route.exact_element is not None
        }
        """Small tensors travel exactly where they can, and else as in `large`."""


_NO_WAYS = _InPlace({}, WORD_BITS)


class ReduceCollectives:
    """The reducing collectives of one group."""

    def __init__(
        self, resources: GroupResources, counters: Counter[str], arguments: Arguments, codec: Codec | None = None
    ) -> None:
        """`codec`: of Options.codec, for large sums; None: lanes alone."""
        self._resources = resources
        self._submit = resources.submit
        self._fast_path = resources.fast_path
        self._counters = counters
        self._lanes = resources.options.lanes_number
        self._exact = resources.options.largest_exact(resources.size)
        """Sums of up to so many elements are exact."""
        self._rank = resources.rank
        self._size = resources.size
        self._completion = resources.completion
        self._arguments = arguments
        self._summed, self._averaged = _InPlace(SUM_ROUTES, self._lanes), _InPlace(AVG_ROUTES, self._lanes)
        self._codec = None if codec is None else GroupCodec(codec, resources)
        self._two_levels = resources.two_levels
        self._plain_sums = self._codec is None and self._two_levels is None
        """Whether large sums travel as small ones do: in the tensor's own memory, to the switch."""

    # --- the collectives ---

    def all_reduce(self, call: Call) -> FaninWork:
        """Reduce in place: by the switch at once where a short test allows it, else by `reduce` with its route."""
        tensor = call.source
        small = tensor.numel() <= self._exact
        if (small or self._plain_sums) and self._size > 1 and plain(tensor):
            ways = self._summed if call.op == SUM else self._averaged if call.op == AVG else _NO_WAYS
            travels_as = (ways.small if small else ways.large).get(tensor.dtype)
            if travels_as is not None:
                fast_path, (element, lanes, tag) = self._fast_path, travels_as
                average = ways is self._averaged
                if call.waits and fast_path is not None and fast_path.may_submit_and_wait:  # nearly all that wait
                    self._counters["switch.all_reduce"] += 1
                    self._counters["switch.bytes"] += tensor.nbytes
                    divisor = fast_path.divisor if average else 1.0
                    packed = sum_in_place(tensor.data_ptr(), tensor.numel(), element, lanes, tag, divisor)
                    return fast_path.submit_and_wait(call, packed)
                self._count(Path.SWITCH, call)
                says = dtype_bits(tensor.dtype)
                return self._submit(call.but(kept=tensor, element=element, lanes=lanes, average=average, says=says))
        if not self._arguments.of_one("all_reduce", tensor):
            return LocalWork(self._completion, call.outputs)
        if tensor.layout is not torch.strided:
            return self._sparse(call)
        if not small:
            if self._two_levels is not None and self._two_levels.takes(call):
                return self._two_levels.all_reduce(call)
            if self._codec is not None and self._codec.takes(call):
                self._count(Path.SWITCH, call)
                return self._submit(self._codec.encoded(call.but(says=dtype_bits(tensor.dtype))))
        return self.reduce(call, tensor)

    def all_reduce_in_lanes(self, call: Call) -> FaninWork:
        """A reduction in place with lanes (or EXACT) and error feedback of the caller's choice; no codec, one level."""
        if not self._arguments.of_one("all_reduce", call.source):
            return LocalWork(self._completion, call.outputs)
        return self.reduce(call, call.source)

    def average_together(self, calls: Sequence[Call]) -> FaninWork:
        """Averages in place of flat tensors on one device, each large enough to be quantized, as one collective."""
        for call in calls:
            self._count(Path.SWITCH, call)
        first, *others = (
            call.but(
                kept=call.source, element=ELEMENTS[call.source.dtype], average=True, says=dtype_bits(call.source.dtype)
            )
            for call in calls
        )
        outputs = [output for call in calls for output in call.outputs]
        return self._submit(first.but(together=others, outputs=outputs))

    def takes_together(self, call: Call) -> bool:
        """Whether `average_together` takes this average of a tensor on a device: one that is not small."""
        return self._size > 1 and call.source.numel() > self._exact

    def check(self, calls: Iterable[Call]) -> None:
        """Raise what any of several reductions would raise, before the first is started."""
        for call in calls:
            route_of(call.op.op, call.source.dtype)

    def residual_device(self, tensor: torch.Tensor, lanes: int | None) -> torch.device:
        """Device on which a residual of sums of that tensor must lie: the tensor's, if its words are made there."""
        number = self._lanes if lanes is None else lanes
        beside = (
            tensor.dtype in QUANTIZED and number in QUANTIZED_LANES and tensor.numel() > self._exact
            and self._resources.arithmetic_on(tensor.device) is not None
        )  # fmt: skip
        return tensor.device if beside else torch.device("cpu")

    def reduce_scatter(self, call: Call) -> FaninWork:
        """The output becomes this rank's part of the reduced source, all parts being equal."""
        (output,) = call.outputs
        return self.reduce(call, output, self._rank * output.numel())

    def reduce_scatter_list(self, call: Call, parts: Tensors) -> FaninWork:
        """The output becomes the reduced `parts[rank]`; parts may differ in size, alike on every rank."""
        (output,) = call.outputs
        whole = torch.cat([part.detach().reshape(-1) for part in parts])
        return self.reduce(call.but(source=whole), output, sum(part.numel() for part in parts[: self._rank]))

    def barrier(self, call: Call) -> FaninWork:
        """Done when every rank has come: a sum of BARRIER that nobody keeps."""
        if self._size == 1:
            return LocalWork(self._completion, [])
        self._count(Path.SWITCH, call)
        if call.waits and self._fast_path is not None and self._fast_path.may_submit_and_wait:
            return self._fast_path.submit_and_wait(call, _BARRIER)
        return self._submit(call.but(element=Element.INT32, lanes=WORD_BITS))

    def reduce(self, call: Call, output: torch.Tensor | None, first: int = 0) -> FaninWork:
        """Reduce the source; elements [first, first + output.numel()) go to `output` (None: none are kept)."""
        tensor = call.source
        route, factor = route_of(call.op.op, tensor.dtype), factor_of(call.op)
        if self._size == 1:
            return self._alone(call, output, factor)
        lanes = self._lanes if call.lanes is None else call.lanes
        element = route.element
        if route.exact_element is not None and (tensor.numel() <= self._exact or lanes == EXACT):
            element, lanes = route.exact_element, EXACT
        elif lanes == EXACT:
            lanes = WORD_BITS  # integers, exact as they are
        travelling = _travelling(tensor, route)
        if call.residual is not None:
            self._arguments.check_residual(call.collective, call.residual, travelling)
        self._count(Path.GLOO if element is None else Path.SWITCH, call)
        # Parts are counted in what travels: two numbers for a complex one, two bytes for the bits of an int16.
        first *= travelling.numel() // max(tensor.numel(), 1)
        if element is None:
            return self._by_gloo(call, travelling, output, first, route)
        if factor != 1.0 and element is Element.FLOAT64:
            travelling = travelling * factor  # the switch path multiplies in float32
            factor = 1.0
        kept, finish = self._destination(travelling, tensor, output, first, route)
        return self._submit(
            call.but(
                source=travelling, kept=kept, keep_first=first, element=element, lanes=lanes,
                operator=OPERATORS[route.gloo_op] if lanes == EXACT else Operator.SUM,
                average=route.average and not route.divide_after, factor=factor,
                scale_code=0 if lanes == EXACT else call.scale_code, finish=_both(finish, call.finish),
                says=call.says ^ dtype_bits(tensor.dtype),
            )
        )  # fmt: skip

    # --- the ways ---

    def _destination(
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
        result = seen if own_memory else travelling if output is tensor else torch.empty_like(seen)

        def finish() -> None:
            if route.divide_after:
                result.div_(self._size, rounding_mode="trunc")
            if not own_memory:
                _copy_result(result, output, route)

        return result, finish

    def _by_gloo(
        self, call: Call, travelling: torch.Tensor, output: torch.Tensor | None, first: int, route: Route
    ) -> FaninWork:
        tensor, host = call.source, on_host(travelling)
        in_place = output is tensor and host.data_ptr() == tensor.data_ptr()
        if not in_place and host.data_ptr() == tensor.data_ptr():
            host = host.clone()

        def finish() -> None:
            if route.divide_after:
                host.div_(self._size, rounding_mode=None if host.is_floating_point() else "trunc")
            if output is not None and not in_place:
                count = output.numel() * (host.numel() // max(tensor.numel(), 1))
                _copy_result(host.reshape(-1)[first : first + count], output, route)

        needed = None if in_place and not route.divide_after else finish
        return self._resources.inner.all_reduce(call.but(source=host, finish=needed), route.gloo_op)

    def _sparse(self, call: Call) -> FaninWork:
        """Sparse tensors are summed by gloo, which knows how to merge their indices."""
        tensor, op = call.source, call.op
        travels_as = SPARSE_DTYPES.get(tensor.dtype)
        if op.op not in (SUM, AVG) or travels_as is None:
            raise UnsupportedError(
                f"all_reduce: ReduceOp.{op.op.name} of a sparse tensor of {str(tensor.dtype).removeprefix('torch.')}; "
                "sparse tensors are summed and averaged, those of complex numbers, bool and unsigned integers aside. "
                "Remedy: to_dense()"
            )
        self._count(Path.GLOO, call)
        if self._size == 1:
            return LocalWork(self._completion, [tensor])
        total = tensor.detach().cpu().to(travels_as, copy=True)

        def finish() -> None:
            tensor.copy_(_divided(total, self._size) if op.op == AVG else total)  # a detached sparse tensor is a copy

        return self._resources.inner.all_reduce(call.but(source=total, finish=finish), SUM)

    def _alone(self, call: Call, output: torch.Tensor | None, factor: float) -> FaninWork:
        """A group of one: the result is the input."""
        tensor = call.source
        self._count(Path.LOCAL, call)
        if output is not None and (output is not tensor or factor != 1.0):
            copy_back(output, (tensor.detach() * factor if factor != 1.0 else tensor.detach()).reshape(output.shape))
        return LocalWork(self._completion, call.outputs)

    def _count(self, path: Path, call: Call) -> None:
        if path is Path.SWITCH and self._resources.sums_over_gloo:
            path = Path.GLOO
        self._counters[f"{path.value}.{call.collective}"] += 1
        if call.source.layout is torch.strided:
            self._counters[f"{path.value}.bytes"] += call.source.nbytes


def _both(first: Callable[[], None] | None, second: Callable[[], None] | None) -> Callable[[], None] | None:
    """One action that runs both, in this order; None where both are None."""
    if first is None or second is None:
        return first or second

    def run() -> None:
        first()
        second()

    return run


def _divided(total: torch.Tensor, count: int) -> torch.Tensor:
    """A sparse tensor divided by `count`; integers are rounded toward zero, as dense ones."""
    total = total.coalesce()
    rounding = None if total.dtype.is_floating_point else "trunc"
    values = total.values().div(count, rounding_mode=rounding)
    return torch.sparse_coo_tensor(total.indices(), values, total.shape, is_coalesced=True)


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


def _copy_result(result: torch.Tensor, output: torch.Tensor, route: Route) -> None:
    """Copy a result in the route's element type into the user's tensor."""
    if output.is_complex():
        result = torch.view_as_complex(result.reshape(*output.shape, 2))
    elif route.view and result.dtype != output.dtype:
        result = result.reshape(-1).view(output.dtype)
    copy_back(output, result.reshape(output.shape))


def _overlaps(output: torch.Tensor, source: torch.Tensor, first: int) -> bool:
    """Whether writing the output would spoil parts of the source that are still to be sent.

    The one harmless overlap is each element over itself: the output is the source's own part.
    """
    start, begin = output.data_ptr(), source.data_ptr()
    if start + output.nbytes <= begin or begin + source.nbytes <= start:
        return False
    return start != begin + first * source.element_size()
