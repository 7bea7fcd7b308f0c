"""Lanes alone, with error feedback: what fanin does to every gradient, as a codec among the others.

    q = rint((x + e) steps),  e' = (x + e) - q / steps         steps: agreed for each packet (docs/numerics.md)

Stochastic rounding, without bias, in one more stage and with one scale for the whole bucket:

    stage 1:  code: of the maximum over workers of the largest |x + e|, rounded up as every scale code is
    stage 2:  q = floor((x + e) steps + u)     u: from the counter (seed, bucket, step, rank, index): can be replayed

The engines then send q / steps under that scale code; their rounding to nearest changes nothing, since each q is an
integer. Where the switch narrows wide sums, it still rounds to nearest.

Error feedback: Seide et al., INTERSPEECH 2014; Karimireddy et al., ICML 2019. Stochastic rounding: QSGD (Alistarh et
al., NeurIPS 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import (
    Codec,
    DevicePlan,
    Encoder,
    Floats,
    Place,
    ResidualEncoder,
    Stages,
    Sum,
    energy_of,
    levels,
    stretches,
)
from fanin.host.codecs.philox import Purpose
from fanin.numerics import fixed_point
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import EXACT, Element, Operator


@dataclass(frozen=True, slots=True)
class Lanes(Codec):
    """Lanes for float32, with error feedback."""

    name: ClassVar[str] = "lanes"
    piecewise: ClassVar[bool] = True

    feedback: bool = True
    """Whether what a step cut off is added to the next one."""

    stochastic: bool = False
    """Whether rounding is stochastic, hence without bias, instead of to nearest. Not for lanes of 32 bits."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        if self.stochastic and self.bits == WORD_BITS:
            raise ConfigurationError("lanes of 32 bits are not rounded stochastically. Remedy: take 16 bits or fewer")

    @property
    def single_stage(self) -> bool:
        """Whether rounding is to nearest: stochastic rounding takes a stage before, for the scale."""
        return not self.stochastic

    def device_plan(self, size: int) -> DevicePlan | None:
        """Return the plan of one sum without a rotation."""
        return DevicePlan(self.bits, self.feedback, rotated=False, stochastic=self.stochastic)

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder with one residual per element, or none without feedback."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


class _Encoder(ResidualEncoder):
    def __init__(self, codec: Lanes, place: Place) -> None:
        super().__init__(place, codec.seed, place.count, feedback=codec.feedback)
        self._codec = codec

    def reduce(self, x: Floats, step: int) -> Stages:
        if self._codec.stochastic:
            yield from self._stochastic(x, step)
            return
        owed = self._owed if self._codec.feedback else np.zeros(len(x), np.float32)
        self.energy = sum(energy_of(x[here] + owed[here]) for here in stretches(len(x), 1))
        yield Sum(x, self._codec.bits, residual=owed)
        self.lost = energy_of(owed)

    def _stochastic(self, x: Floats, step: int) -> Stages:
        if not len(x):
            return
        with np.errstate(invalid="ignore", over="ignore"):
            whole = x + self._owed if self._codec.feedback else x.copy()
        self.energy, self.lost = energy_of(whole), 0.0
        largest = Sum(np.abs(whole).max(keepdims=True), EXACT, average=False, operator=Operator.MAX)
        yield largest
        if not np.isfinite(largest.values[0]):
            x[:] = np.nan  # all elements share the scale, which is not finite
            return
        if largest.values[0] == 0:
            x[:] = 0.0
            return
        code = int(fixed_point.Codec(Element.FLOAT32, 16).codes(largest.values, 1)[0])
        most = levels(self._codec.bits, self.place.size)
        u = self.random.uniform(Purpose.ROUNDING, len(x), step, self.place.rank)
        _, sent = steps_at_random(whole, fixed_point.bound_of(code), most, u)
        lost = whole - sent
        self.lost = energy_of(lost)
        if self._codec.feedback:
            self._owed = lost
        total = Sum(sent, self._codec.bits, scale_code=code)
        yield total
        x[:] = total.values


def steps_at_random(whole: Floats, bound: float, most: int, u: Floats) -> tuple[npt.NDArray[np.float64], Floats]:
    """Round values to steps, up or down by u in [0, 1); return the steps and the values that these stand for.

    All have one shape. `bound`: value of `most` steps, at which values are clipped.
    """
    # In float64, where a quotient and u add up without another rounding that would favour a side.
    q = np.clip(np.floor(whole.astype(np.float64) * (most / bound) + u), -most, most)
    return q, (q * (bound / most)).astype(np.float32)
