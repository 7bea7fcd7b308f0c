"""Three levels per element, -s, 0 and s, drawn at random without bias.

    per layer:  g = clip(x, -2.5 sigma, 2.5 sigma);   stage 1: s = maximum over workers of max |g|
    stage 2:    t_w in {-1, 0, 1}, t = sign(g) with probability |g| / s, else 0        sum of t_w: integers, exact
    y = s / N sum of t_w,   E[y] = mean of g

t is stochastic rounding with one level each side, floor(|g| / s + u), from a stream of each rank's own. There is no
error feedback: the noise is unbiased. Today's narrowest lanes are 4 bits (up to 7 workers) and 8 bits (up to 127).

Source: TernGrad (Wen et al., NeurIPS 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Stages, Sum, energy_of, integer_lanes
from fanin.host.codecs.philox import Purpose
from fanin.numerics.reduction import EXACT, Operator


@dataclass(frozen=True, slots=True)
class Ternary(Codec):
    """Send each element as -s, 0 or s, with an s per layer."""

    name: ClassVar[str] = "ternary"
    several_stages: ClassVar[bool] = True

    clip: float = 2.5
    """Standard deviations at which a layer's elements are clipped; above 0."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        if not self.clip > 0:
            raise ConfigurationError(f"clip = {self.clip}; must be above 0", "clip")

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder that keeps nothing between steps."""
        return _Encoder(self, place, integer_lanes(self.bits, place.size))


class _Encoder(Encoder):
    def __init__(self, codec: Ternary, place: Place, number: int) -> None:
        super().__init__(place, codec.seed)
        self._codec, self._number = codec, number
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in place.shapes]
        self._ends = np.cumsum([0, *sizes]).tolist()

    def reduce(self, x: Floats, step: int) -> Stages:
        if not len(x):
            return
        self.energy = energy_of(x)
        g: Floats = np.empty_like(x)
        largest: Floats = np.zeros(len(self._ends) - 1, np.float32)
        for layer, (first, end) in enumerate(zip(self._ends[:-1], self._ends[1:], strict=True)):
            if first == end:
                continue
            part = x[first:end]
            with np.errstate(invalid="ignore", over="ignore"):
                limit = np.float32(self._codec.clip) * np.sqrt(np.mean(np.square(part), dtype=np.float64))
            # Mean square about zero, not about the mean: else one element, or equal ones, would be clipped to 0.
            np.clip(part, -limit, limit, out=g[first:end]) if np.isfinite(limit) else np.copyto(g[first:end], part)
            largest[layer] = np.max(np.abs(g[first:end]))
        scales = Sum(largest, EXACT, average=False, operator=Operator.MAX)
        yield scales
        scale = np.repeat(scales.values, np.diff(self._ends))
        u = self.random.uniform(Purpose.ROUNDING, len(x), step, self.place.rank)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(np.isfinite(scale) & (scale > 0), np.abs(g) / scale, np.float32(0.0))
            steps = (np.floor(share + u) * np.sign(np.where(share > 0, g, 0.0))).astype(np.int8)
        own = steps.copy()
        total = Sum(steps.astype(np.int32) if self._number == 32 else steps, self._number, average=False)
        yield total
        with np.errstate(invalid="ignore"):
            self.lost = energy_of(x - own * scale)
            # Divided first: a sum of finite values may be beyond what float32 holds where their mean is not.
            np.multiply(total.values / np.float32(self.place.size), scale, out=x)
            x[~np.isfinite(scale)] = np.nan
