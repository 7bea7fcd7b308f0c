"""Block floating point in packed lanes of 32, 16, 8 or 4 bits: the codec of most gradients.

    q = rint(x' * steps per unit), |q| <= B        x' = x * factor + residual; the unit is the block's agreed scale code
    y = sum of q / divisor * units per step

docs/numerics.md derives it; fanin/numerics/fixed_point.py has the arithmetic, and
native/codecs/codec_lanes.cpp is the twin.
"""

from __future__ import annotations

from fanin.host.codecs.words.codec import Blocks
from fanin.numerics.fixed_point import Array, Codec, Codes, Residual
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import LANES, Element, Operator
from fanin.numerics.spoilers import Marks
from fanin.protocol.job import JobSpec


class Lanes(Blocks):
    """Word codec of float32, float16 and bfloat16, with a scale code for every block of a packet."""

    name = "lanes"
    numbers = LANES
    elements = frozenset({Element.FLOAT32, Element.FLOAT16, Element.BFLOAT16})
    scaled = True

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """ConfigurationError where lanes hold no level of so many contributions."""
        self.fixed = Codec(element, lanes, spec.contributions)
        self.number = self.fixed.lanes
        block = self.fixed.elements_per_packet(spec.words_per_packet // spec.codes_per_packet)
        self._lay_out(count, block, spec.codes_per_packet)
        self.marks = Marks(self.fixed, self.block_elements, place, spec.total_workers)

    def word_count(self, packet: int) -> int:
        """Words of the packet's lanes."""
        return self.fixed.words_for(self.span(packet)[1])

    def codes(self, x: Array, factor: float, residual: Residual | None) -> Codes:
        """Return each block's scale code: its largest magnitude, rounded up."""
        return self.fixed.codes(x, self.block_elements, factor, residual)

    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Quantize to the nearest step, ties to even, and pack the lanes."""
        return self.fixed.quantize(x, codes, self.block_elements, factor, residual)

    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """Return the sums of the lanes, divided, times the value of a step."""
        return self.fixed.dequantize(
            words, codes, self.block_elements, count, contributors, divisor or max(contributors, 1)
        )

    def residual_after(self, x: Array, codes: Codes, factor: float, residual: Residual) -> Residual:
        """Loss by rounding; a block that is not finite keeps its residual."""
        return self.fixed.residual_after(x, codes, self.block_elements, factor, residual)
