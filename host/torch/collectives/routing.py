"""The path of every reduction, by operator and element type, as one table.

Rules
-----
* Sums of what the switch can add go through the switch. Nothing that could go there quietly goes elsewhere.
* Small tensors (`Options.largest_exact`) go through the switch whatever their type and operator: each rank's elements
  travel separately, and every rank reduces them, floats exactly but for one rounding.
* Larger ones that the switch cannot add (64-bit integers, maxima, products, bits) go to the group's inner gloo group.
* Where neither knows the element type, the tensor is first reinterpreted as `wire_dtype` (`view`: the same bits) or
  converted to it without loss. Where nothing exact exists there is no route, and UnsupportedError says so.

`ROWS` is that table for people and for docs/torch.md (a test compares them); `route_of` is the same table for the code.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from fanin.errors import UnsupportedError
from fanin.numerics.reduction import Element, Operator

SUM, AVG, PREMUL_SUM = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM
MIN, MAX, PRODUCT = dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT
BAND, BOR, BXOR = dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR
RedOpType = dist.ReduceOp.RedOpType

ELEMENTS: dict[torch.dtype, Element] = {
    torch.float32: Element.FLOAT32,
    torch.float64: Element.FLOAT64,
    torch.float16: Element.FLOAT16,
    torch.bfloat16: Element.BFLOAT16,
    torch.int32: Element.INT32,
    torch.int16: Element.INT16,
    torch.int8: Element.INT8,
    torch.uint8: Element.UINT8,
}
"""Element types that the switch adds."""

QUANTIZED = (torch.float32, torch.float16, torch.bfloat16)
"""Element types of weights and gradients that codecs take, and whose words a device can make."""

EXACT_ELEMENTS = ELEMENTS | {torch.int64: Element.INT64}
"""Element types of exact reductions: the switch carries every rank's elements separately, for the ranks to reduce."""
OPERATORS = {
    SUM: Operator.SUM, MIN: Operator.MIN, MAX: Operator.MAX, PRODUCT: Operator.PRODUCT,
    BAND: Operator.BAND, BOR: Operator.BOR, BXOR: Operator.BXOR,
}  # fmt: skip
GLOO_OPERATORS = {operator: op for op, operator in OPERATORS.items()}


class Path(enum.Enum):
    """The part that does the work; the first word of a counter's name."""

    SWITCH = "switch"
    GLOO = "gloo"
    LOCAL = "local"
    """A group of one: nobody to talk to."""


@dataclass(frozen=True, slots=True)
class Route:
    """How one operator on one element type is carried out."""

    path: Path
    wire_dtype: torch.dtype
    """The element type that travels."""
    gloo_op: RedOpType = SUM
    """The operator that gloo is asked for, where gloo reduces."""
    view: bool = False
    """Whether the tensor's own bits are read as `wire_dtype` (complex as pairs, unsigned as signed), not converted."""
    average: bool = False
    """Whether the sum is divided by the number of ranks (by the switch path itself for floating point)."""
    premultiply: bool = False
    """Whether every element is multiplied by the operator's factor first."""
    element: Element | None = None
    """`wire_dtype`'s name at the switch, where the switch adds."""

    exact_element: Element | None = field(init=False)
    """`wire_dtype`'s name in exact reductions; None where there are none, or sums by the switch are exact already."""
    divide_after: bool = field(init=False)
    """Whether the average is made here, after the sum: integers (rounded toward zero) and what gloo sums."""

    def __post_init__(self) -> None:
        whole = not self.wire_dtype.is_floating_point
        exact_already = self.path is Path.SWITCH and whole
        object.__setattr__(self, "exact_element", None if exact_already else EXACT_ELEMENTS.get(self.wire_dtype))
        object.__setattr__(self, "divide_after", self.average and (self.path is Path.GLOO or whole))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: every op in `ops` on every dtype in `dtypes`."""

    ops: tuple[RedOpType, ...]
    dtypes: tuple[torch.dtype, ...]
    path: Path
    how: str
    wire_dtype: torch.dtype | None = None
    view: bool = False
    gloo_op: RedOpType | None = None


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ARITHMETIC = (MIN, MAX, PRODUCT)
_BITS = (BAND, BOR, BXOR)
_EXACT = (torch.int64, torch.int32, torch.int8, torch.uint8)

_SMALL = "small ones in float64, rounded once"

ROWS: tuple[Row, ...] = (
    Row((SUM, AVG, PREMUL_SUM), _FLOATS, Path.SWITCH, f"{_SMALL}; fixed point in the lanes of the group's options"),
    Row((SUM, AVG, PREMUL_SUM), (torch.complex64,), Path.SWITCH, "pairs of float32", torch.float32, view=True),
    Row((SUM, AVG, PREMUL_SUM), (torch.complex128,), Path.SWITCH, "pairs of float64", torch.float64, view=True),
    Row((SUM,), (torch.int32, torch.int16, torch.int8, torch.uint8), Path.SWITCH, "exact; wraps around as torch's"),
    Row((SUM,), (torch.uint16,), Path.SWITCH, "exact; the same bits as int16", torch.int16, view=True),
    Row((SUM,), (torch.uint32,), Path.SWITCH, "exact; the same bits as int32", torch.int32, view=True),
    Row(
        (AVG,), (torch.int16, torch.int8, torch.uint8, torch.uint16), Path.SWITCH,
        "exact sum in int32, then divided, rounded toward zero", torch.int32,
    ),
    Row((SUM,), (torch.int64,), Path.GLOO, "exact"),
    Row((SUM,), (torch.uint64,), Path.GLOO, "exact; the same bits as int64", torch.int64, view=True),
    Row((SUM,), (torch.bool,), Path.GLOO, "logical or", torch.uint8, view=True, gloo_op=MAX),
    Row(
        (AVG,), (torch.int64, torch.int32, torch.uint32), Path.GLOO,
        "exact sum in int64, then divided, rounded toward zero", torch.int64,
    ),
    Row(_ARITHMETIC, _FLOATS, Path.GLOO, "small ones in float64, rounded once, NaN if any is; else as gloo does"),
    Row(_ARITHMETIC, _EXACT, Path.GLOO, "as gloo does"),
    Row(_ARITHMETIC, (torch.int16, torch.uint16), Path.GLOO, "in int32", torch.int32),
    Row(_ARITHMETIC, (torch.uint32,), Path.GLOO, "in int64", torch.int64),
    Row((PRODUCT,), (torch.uint64,), Path.GLOO, "the same bits as int64", torch.int64, view=True),
    Row((MAX, BOR), (torch.bool,), Path.GLOO, "logical or", torch.uint8, view=True, gloo_op=MAX),
    Row((MIN, PRODUCT, BAND), (torch.bool,), Path.GLOO, "logical and", torch.uint8, view=True, gloo_op=MIN),
    Row((BXOR,), (torch.bool,), Path.GLOO, "exclusive or", torch.uint8, view=True, gloo_op=BXOR),
    Row(_BITS, _EXACT, Path.GLOO, "as gloo does"),
    Row(_BITS, (torch.int16, torch.uint16), Path.GLOO, "the same bits as uint8", torch.uint8, view=True),
    Row(_BITS, (torch.uint32,), Path.GLOO, "the same bits as int32", torch.int32, view=True),
    Row(_BITS, (torch.uint64,), Path.GLOO, "the same bits as int64", torch.int64, view=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One line of the table of collectives."""

    names: tuple[str, ...]
    path: str
    how: str


COLLECTIVES: tuple[CollectiveRow, ...] = (
    CollectiveRow(
        ("all_reduce", "all_reduce_coalesced"), "by operator", "in place; coalesced ones follow each other unawaited"
    ),
    CollectiveRow(("reduce",), "by operator", "only the root writes the result"),
    CollectiveRow(
        ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
        "by operator",
        "each rank writes its own part only",
    ),
    CollectiveRow(("barrier",), "switch", "a sum of one integer that nobody keeps"),
    CollectiveRow(
        ("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_gather_into_tensor_coalesced"),
        "switch",
        "any element type, bit by bit; parts may differ in size",
    ),
    CollectiveRow(("broadcast",), "switch", "any element type, bit by bit"),
    CollectiveRow(("gather", "scatter"), "gloo", "any element type; parts go from rank to rank directly"),
    CollectiveRow(("all_to_all", "all_to_all_single"), "gloo", "even and uneven; a list travels as one flat tensor"),
    CollectiveRow(("send", "recv", "isend", "irecv", "batch_isend_irecv"), "gloo", "with tags; recv from any source"),
    CollectiveRow(
        ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
        "gloo",
        "torch pickles into tensors and uses the collectives above",
    ),
)


def _route(row: Row, op: RedOpType, dtype: torch.dtype) -> Route:
    wire_dtype = row.wire_dtype or dtype
    return Route(
        path=row.path,
        wire_dtype=wire_dtype,
        gloo_op=row.gloo_op or (SUM if op in (AVG, PREMUL_SUM) else op),
        view=row.view,
        average=op == AVG,
        premultiply=op == PREMUL_SUM,
        element=ELEMENTS[wire_dtype] if row.path is Path.SWITCH else None,
    )


ROUTES: dict[tuple[RedOpType, torch.dtype], Route] = {
    (op, dtype): _route(row, op, dtype) for row in ROWS for op in row.ops for dtype in row.dtypes
}
"""The table for the code: at most one route for an operator and an element type."""
SUM_ROUTES, AVG_ROUTES = ({dtype: route for (op, dtype), route in ROUTES.items() if op == each} for each in (SUM, AVG))
"""Sums and averages, by element type: looking up an operator costs more than the rest of an all_reduce's Python."""
assert len(ROUTES) == sum(len(row.ops) * len(row.dtypes) for row in ROWS), "two rows claim the same operator and dtype"


def route_of(op: RedOpType, dtype: torch.dtype) -> Route:
    """The route of one reduction. UnsupportedError where no exact way exists."""
    route = ROUTES.get((op, dtype))
    if route is None:
        raise UnsupportedError(
            f"ReduceOp.{op.name} on {str(dtype).removeprefix('torch.')} has no exact path through fanin or gloo. "
            "Remedy: convert the tensor first (docs/torch.md has the table)"
        )
    return route


def markdown() -> str:
    """Both tables as they stand in docs/torch.md."""

    def code(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    lines = ["| operators | element types | path | how |", "|---|---|---|---|"]
    for row in ROWS:
        ops = code(tuple(op.name for op in row.ops))
        dtypes = code(tuple(str(dtype).removeprefix("torch.") for dtype in row.dtypes))
        path = "switch if small, else gloo" if row.path is Path.GLOO else row.path.value
        lines.append(f"| {ops} | {dtypes} | {path} | {row.how} |")
    lines += ["", "| collectives | path | how |", "|---|---|---|"]
    lines += [f"| {code(collective.names)} | {collective.path} | {collective.how} |" for collective in COLLECTIVES]
    return "\n".join(lines) + "\n"


def factor_of(op: Any) -> float:
    """PREMUL_SUM's factor, which torch holds as a number or as a tensor of one element; 1 for other operators."""
    if op.op != PREMUL_SUM:
        return 1.0
    _, factor = op.__getstate__()  # its pickled form, since torch 2.8 has no attribute for it
    if isinstance(factor, torch.Tensor) and factor.numel() != 1:
        raise UnsupportedError(
            f"PREMUL_SUM by a tensor of {factor.numel()} elements; multiply the tensor before"
            ". Remedy: multiply the tensor before"
        )
    return float(factor)
