"""float64 over three words of 32 bits, each 2^k times as fine as the one before, under an agreed power of two.

    hi = rint(x' * 2^s),  mid = rint((x' * 2^s - hi) * 2^k),  lo = rint(((x' * 2^s - hi) * 2^k - mid) * 2^k)
    y  = (hi_sum + (mid_sum + lo_sum * 2^-k) * 2^-k) / divisor * 2^-s

docs/numerics.md derives it ("float64"); native/codecs/codec_lanes.cpp is the twin.
"""

from __future__ import annotations

from fanin.host.codecs.words.lane_words import Lanes
from fanin.numerics.fixed_point import Array, Codes, Residual
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import Element, Operator
from fanin.protocol.job import JobSpec


class Wide(Lanes):
    """Word codec of float64, whatever the width of lanes that is asked for."""

    name = "wide"
    elements = frozenset({Element.FLOAT64})

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """ConfigurationError where 32 bits hold no level of so many contributions."""
        super().__init__(element, WORD_BITS, count, spec, operator, place)

    def residual_after(self, x: Array, codes: Codes, factor: float, residual: Residual) -> Residual:
        """float64 takes no residual."""
        raise NotImplementedError("error feedback is for float32, float16 and bfloat16")
