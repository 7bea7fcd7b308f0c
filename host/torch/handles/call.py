"""One collective of a group as it was called, and in the form in which it travels.

The process group makes a `Call` of what torch gives it (collectives/reading.py). Its arguments are checked once, its
route is looked up once, and what the route decides is added to it. What a switch sums goes on as the engine's record, a
`Reduction`, which names memory by address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import Brief, Element, Operator, Reduction, lanes_number

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
    tensor.fanin_terms = None if number is None and residual is None else Terms(number, residual)  # type: ignore[attr-defined]


def terms_of(tensor: torch.Tensor) -> Terms | None:
    """Terms that were set for the tensor."""
    terms: Terms | None = getattr(tensor, "fanin_terms", None)
    return terms


class Call(NamedTuple):
    """One collective at this rank. A tuple, since it is made for every collective, and is frozen at no cost.

    Ranks are group ranks, `timeout_s` is in seconds. Fields from `kept` on are the route's; collectives that know them
    from the start give them at once.
    """

    collective: str
    """The name, in counters and errors."""
    source: torch.Tensor
    """This rank's tensor: its contribution, or what it receives in scatter, recv and broadcast."""
    outputs: Tensors = ()
    """The tensors that the collective writes: the result of its future."""
    op: Any = SUM
    """torch's operator."""
    timeout_s: float = 0.0
    waits: bool = False
    """Whether the caller waits for it before it does anything else."""
    root: int = 0
    """The root, or the peer of send and recv."""
    lanes: int | None = None
    """Word codec of the sum (`Reduction.lanes`); None: that of the group's options."""
    residual: torch.Tensor | None = None
    """Error feedback: as many float32 as the source has elements, on the host or, of a CUDA tensor, beside it."""
    scale_code: int = 0
    """Scale code of the sum, as `Reduction.scale_code`."""
    adds: bool = False
    """On a device: the residual is no part of the contribution, and gets its loss added (Arithmetic.quantize)."""
    finish: Callable[[], None] | None = None
    """Action on the result once it has come."""
    kept: torch.Tensor | None = None
    """Receives elements [keep_first, keep_first + kept.numel()) of the result. Contiguous; None when this rank keeps
    nothing. May be the source's own memory at keep_first."""
    keep_first: int = 0
    element: Element = Element.FLOAT32
    """Element type that travels: the source's, which is dense by then."""
    operator: Operator = Operator.SUM
    """The switch's operator: another one only where `lanes` is EXACT."""
    average: bool = False
    factor: float = 1.0
    total: int = -1
    """Where elements have an owner (lanes = COPIED): how many there are in all. The source has this rank's own, from
    `own_first` on."""
    own_first: int = 0
    says: int = 0
    """Other facts that ranks must agree in (tag_of)."""

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

    def brief(self) -> Brief | None:
        """The record for a session that waits at once; None for what its few words cannot say."""
        if self.average or self.factor != 1.0 or self.residual is not None or self.scale_code or self.operator:
            return None
        source, total = self.source, self.total
        return (
            source.data_ptr(), 0 if self.kept is None else self.kept.data_ptr(), source.numel() if total < 0 else total,
            self.element, WORD_BITS if self.lanes is None else self.lanes,
            tag_of(self.collective, average=False, says=self.says), self.keep_first, self.kept_count,
            self.own_first, -1 if total < 0 else source.numel(),
        )  # fmt: skip

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
