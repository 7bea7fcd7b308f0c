"""One reduction of a group as every collective asks for it, and what carries it out.

A `Request` names dense host or CUDA memory, already in an element type that the switch adds. All collectives that sum
make one and give it to `GroupResources.submit`: the group's `SwitchReducer`, or its `Fallback`, which may go on over
gloo without the switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from fanin.host.torch.handles.work import Tensors
from fanin.numerics.reduction import Element, Operator, Reduction

_COLLECTIVES = {
    "all_reduce": 1, "reduce": 2, "reduce_scatter": 3, "barrier": 4,
    "broadcast": 5, "all_gather": 6,
}  # fmt: skip


def tag_of(name: str, average: bool, says: int = 0) -> int:
    """A number that must be alike on all ranks: of the collective that the sum is for, whether it is averaged, and
    24 bits of whatever else they must agree in."""
    return (says & 0xFFFFFF) << 8 | _COLLECTIVES[name] * 2 + average


@dataclass(slots=True, kw_only=True)
class Request:
    """One reduction. `source` has every element; `kept` receives elements [keep_first, keep_first + kept.numel()).

    Where elements have an owner (lanes = COPIED), `source` has this rank's own: `count` elements there are in all, from
    `own_first` on those of `source`.
    """

    name: str
    """A key of _COLLECTIVES."""
    source: torch.Tensor
    kept: torch.Tensor | None
    """Contiguous; None when this rank keeps nothing. May be the source's own memory at keep_first."""
    keep_first: int = 0
    count: int = -1
    own_first: int = 0
    says: int = 0
    """Other facts that ranks must agree in (tag_of)."""
    element: Element
    lanes: int = 32
    operator: Operator = Operator.SUM
    """Another one only where `lanes` is EXACT."""
    average: bool = False
    factor: float = 1.0
    residual: torch.Tensor | None = None
    """Error feedback: as many float32 as the source has elements, on the host or, of a CUDA tensor, beside it."""
    adds: bool = False
    """On a device: the residual is no part of the contribution, and gets its loss added (Arithmetic.quantize)."""
    scale_code: int = 0
    """Scale code of the reduction, as Reduction.scale_code."""
    outputs: Tensors = field(default_factory=list)
    """Result of the work's future."""
    timeout_s: float
    finish: Callable[[], None] | None = None

    @property
    def device(self) -> torch.device:
        """Device of the memory that is summed."""
        return self.source.device if self.kept is None else self.kept.device

    @property
    def kept_count(self) -> int:
        """Elements of the result that this rank keeps."""
        return 0 if self.kept is None else self.kept.numel()

    def reduction(self, divisor: float) -> Reduction:
        """The same for a session. `divisor`: what averages are divided by; 0: the number of contributions."""
        source, kept = self.source, self.kept
        return Reduction(
            source=source.data_ptr(),
            destination=0 if kept is None else kept.data_ptr(),
            count=source.numel() if self.count < 0 else self.count,
            element=self.element,
            lanes=self.lanes,
            operator=self.operator,
            divisor=divisor if self.average else 1.0,
            factor=self.factor,
            residual=0 if self.residual is None else self.residual.data_ptr(),
            scale_code=self.scale_code,
            keep_first=self.keep_first,
            keep_count=self.kept_count,
            own_first=self.own_first,
            own_count=-1 if self.count < 0 else source.numel(),
            tag=tag_of(self.name, self.average, self.says),
            owner=self,
        )
