"""Block floating point in lanes without head room, which the switch adds one by one and narrows afterwards.

    q = rint(x' * steps per unit), |q| <= 2^(U-1) - 1      U bits up; x' = x * factor + residual
    r = rint(sum of q / 2^shift), |r| <= 2^(D-1) - 1       D bits down, by the switch
    y = r / divisor * units per step * 2^shift

fanin/numerics/wide_sums.py has the arithmetic, native/codecs/codec_wide_sums.cpp is the twin. The switch must have an
accumulator for each lane (JobSpec.accumulators). The residual is what a worker's own rounding lost; what narrowing
loses is in no residual, since no worker sees the sum that was narrowed.
"""

from __future__ import annotations

from fanin.errors import ConfigurationError
from fanin.host.codecs.words.codec import Blocks
from fanin.numerics.fixed_point import Array, Codes, Residual
from fanin.numerics.lanes import WORD_BITS, Words, words_for
from fanin.numerics.reduction import WIDE_SUMS, Element, Operator
from fanin.numerics.spoilers import Marks
from fanin.numerics.wide_sums import WideCodec
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import LaneField


class WideSums(Blocks):
    """float32, float16 and bfloat16, with a scale code for every block of a packet and one shift for its sum."""

    name = "wide_sums"
    numbers = tuple(WIDE_SUMS)
    elements = frozenset({Element.FLOAT32, Element.FLOAT16, Element.BFLOAT16})
    scaled = True
    lanes: LaneField

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """ConfigurationError where the switch adds whole words."""
        require_accumulators(spec, WIDE_SUMS[lanes])
        self.number = lanes
        self.wide = WideCodec(element, lanes, spec.contributions)
        self.lanes = self.wide.lanes
        block = spec.words_per_packet // spec.codes_per_packet * (WORD_BITS // self.lanes.down)
        self._lay_out(count, block, spec.codes_per_packet)
        self.marks = Marks(self.wide.fixed, self.block_elements, place, spec.total_workers, self.lanes)

    def word_count(self, packet: int) -> int:
        """Words of the packet's lanes on the way up."""
        return words_for(self.span(packet)[1], self.lanes.up)

    def codes(self, x: Array, factor: float, residual: Residual | None) -> Codes:
        """Return each block's scale code: its largest magnitude, rounded up."""
        return self.wide.fixed.codes(x, self.block_elements, factor, residual)

    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Quantize to the nearest step, ties to even, and pack the lanes."""
        return self.wide.quantize(x, codes, self.block_elements, factor, residual)

    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """Decode a sum that needed no narrowing."""
        return self.decode_narrowed(words, count, codes, contributors, divisor, 0)

    def decode_narrowed(
        self, words: Words, count: int, codes: Codes, contributors: int, divisor: float, shift: int
    ) -> Array:
        """Return the sums of the lanes, divided, times the value of a step."""
        by = divisor or max(contributors, 1)
        return self.wide.dequantize(words, codes, self.block_elements, count, contributors, by, shift)

    def residual_after(self, x: Array, codes: Codes, factor: float, residual: Residual) -> Residual:
        """Loss by rounding; a block that is not finite keeps its residual."""
        return self.wide.fixed.residual_after(x, codes, self.block_elements, factor, residual)


def require_accumulators(spec: JobSpec, widths: tuple[int, int]) -> None:
    """ConfigurationError where the job's switch adds whole words, not lanes of so many bits up and down."""
    if not spec.accumulators:
        up, down = widths
        raise ConfigurationError(
            f"lanes = {up}/{down}: this job's switch adds whole words and keeps no accumulators for lanes. "
            "Remedy: take packed lanes (lanes = 32, 16, 8 or 4), or a software switch of this version"
        )
