"""One collective of a group as it was called, and in the form in which it travels.

The process group makes a `Call` of what torch gives it (collectives/reading.py). Its arguments are checked once, its
route is looked up once, and the route's decisions are added to it. A call for the switch becomes the engine's record,
a `Reduction`, which names memory by address.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.distributed as dist

from fanin.host.torch.handles.timeouts import Timeout, at_present
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import Element, Operator, Reduction, lanes_number

if TYPE_CHECKING:
    from fanin.host.codecs.philox import Draws

Tensors = Sequence[torch.Tensor]
SUM = dist.ReduceOp(dist.ReduceOp.SUM)

NUMBERS = {
    "all_reduce": 1, "reduce": 2, "reduce_scatter": 3, "barrier": 4,
    "broadcast": 5, "all_gather": 6, "all_gather_into_tensor": 6,
}  # fmt: skip
"""Numbers of the collectives that go through a switch; part of every signature."""


def tag_of(name: str, average: bool, says: int = 0) -> int:
    """A number that must be alike on all ranks: of the collective that the sum is for, whether it is averaged, and
    24 bits of whatever else they must agree in."""
    return (says & 0xFFFFFF) << 8 | NUMBERS[name] * 2 + average


@functools.cache
def dtype_bits(dtype: torch.dtype) -> int:
    """24 bits that stand for an element type in `Call.says`: types of one size travel alike, and are not the same."""
    return zlib.crc32(str(dtype).encode()) & 0xFFFFFF


TERMS = "fanin_terms"
"""Attribute of a tensor whose all-reduces have terms of their own."""


class Terms(NamedTuple):
    """How the all-reduces of one tensor are to travel, whoever calls them."""

    lanes: int | None
    residual: torch.Tensor | None


def number_of(lanes: int | str | None) -> int | None:
    """The word codec's number of lanes in any of the forms that callers give; None: those of the group."""
    return lanes_number(lanes) if isinstance(lanes, str) else lanes


def set_lanes(tensor: torch.Tensor, lanes: int | str | None, residual: torch.Tensor | None = None) -> None:
    """Have all-reduces of this tensor object go through these lanes, with error feedback where a residual is given.

    For all-reduces that torch itself calls, as HSDP's over the replicas: what a hook wants travels with the tensor.
    `lanes`: as in `Options.lanes`; None: those of the group, and with no residual either the tensor is as before.
    `residual`: contiguous float32 with as many elements, read and updated, where `FaninProcessGroup.residual_device`
    says. Raises ConfigurationError for lanes in words that mean none.
    """
    number = number_of(lanes)
    setattr(tensor, TERMS, None if number is None and residual is None else Terms(number, residual))


class Call:
    """One collective at this rank. Ranks are group ranks. Frozen: mypy lets nobody assign.

    Fields from `lanes` on are the caller's wishes and the route's decisions, of which most calls have few: only those
    that are given are stored. A dataclass that is frozen at run time takes 2 us to make, and a small sum 15.
    """

    collective: Final[str]
    """The name, in counters and errors."""
    source: Final[torch.Tensor]
    """This rank's tensor: its contribution, or what it receives in scatter, recv and broadcast."""
    outputs: Final[Tensors]
    """The tensors that the collective writes: the result of its future."""
    op: Final[Any]
    """torch's operator, as an object."""
    timeout: Final[Timeout]
    waits: Final[bool]
    """Whether the caller waits for it before it does anything else."""
    root: Final[int]
    """The root, or the peer of send and recv."""
    lanes: Final[int | None] = None
    """Word codec of the sum (`Reduction.lanes`); None: that of the group's options."""
    residual: Final[torch.Tensor | None] = None
    """Error feedback: as many float32 as the source has elements, on the host or, of a CUDA tensor, beside it."""
    scale_code: Final[int] = 0
    """Scale code of the sum, as `Reduction.scale_code`."""
    adds: Final[bool] = False
    """On a device: the residual is not part of the contribution, whose loss is added to it (Arithmetic.quantize)."""
    draws: Final[Draws | None] = None
    """On a device: numbers by which the contribution is rounded at random."""
    finish: Final[Callable[[], None] | None] = None
    """Action on the result once it has come."""
    kept: Final[torch.Tensor | None] = None
    """Receives elements [keep_first, keep_first + kept.numel()) of the result. Contiguous; None when this rank keeps
    nothing. May be the source's own memory at keep_first."""
    keep_first: Final[int] = 0
    element: Final[Element] = Element.FLOAT32
    """Element type that travels: the source's, which is dense by then."""
    operator: Final[Operator] = Operator.SUM
    """The switch's operator: another one only where `lanes` is EXACT."""
    average: Final[bool] = False
    factor: Final[float] = 1.0
    total: Final[int] = -1
    """Number of elements in all, if each has an owner (lanes = COPIED); else -1. The source has this rank's own, from
    `own_first` on."""
    own_first: Final[int] = 0
    together: Final[Sequence[Call]] = ()
    """On a device: further averages in place of large tensors, which travel as one with this one (device/together.py).
    """
    says: Final[int] = 0
    """Other facts that ranks must agree in (tag_of)."""

    def __init__(
        self, collective: str, source: torch.Tensor, outputs: Tensors = (), op: Any = SUM, timeout_s: Timeout = 0.0,
        waits: bool = False, root: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        self.collective, self.source, self.outputs, self.op = collective, source, outputs, op
        self.timeout, self.waits, self.root = timeout_s, waits, root
        if more:
            self.__dict__.update(more)

    def but(self, **changes: Any) -> Call:
        """A copy of the call with other values of these fields."""
        call = object.__new__(Call)
        call.__dict__ = {**self.__dict__, **changes}
        return call

    @property
    def timeout_s(self) -> float:
        """The timeout, in seconds, of a wait that begins now."""
        return at_present(self.timeout)

    @property
    def device(self) -> torch.device:
        """Device of the memory that is summed."""
        return self.source.device if self.kept is None else self.kept.device

    @property
    def empty(self) -> bool:
        """Whether there is nothing to carry."""
        return self.source.numel() == 0 and self.total <= 0

    @property
    def kept_count(self) -> int:
        """Elements of the result that this rank keeps."""
        return 0 if self.kept is None else self.kept.numel()

    def reduction(self, divisor: float) -> Reduction:
        """The record for a session. `divisor`: what averages are divided by; 0: the number of contributions."""
        source, kept, total = self.source, self.kept, self.total
        return Reduction(
            source=source.data_ptr(),
            destination=0 if kept is None else kept.data_ptr(),
            count=source.numel() if total < 0 else total,
            element=self.element,
            lanes=WORD_BITS if self.lanes is None else self.lanes,
            operator=self.operator,
            divisor=divisor if self.average else 1.0,
            factor=self.factor,
            residual=0 if self.residual is None else self.residual.data_ptr(),
            scale_code=self.scale_code,
            keep_first=self.keep_first,
            keep_count=self.kept_count,
            own_first=self.own_first,
            own_count=-1 if total < 0 else source.numel(),
            tag=tag_of(self.collective, self.average, self.says),
            owner=self,
        )
