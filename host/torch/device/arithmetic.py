"""The arithmetic of a reduction where the tensor lies: scale codes, words of one contribution, values of a sum.

    codes     own scale codes of x' = x * factor + residual            one per block; their maximum is agreed upon
    level     the largest of them for every block                      where rounding is at random
    quantize  words of x' under the agreed codes                       the residual becomes what that lost
    (words are added up elsewhere, as int32 or lane by lane)
    dequantize  values of the summed words

A rotated codec has two more steps (host/codecs/rotated.py):

    rotate       sent + cut = H D x + owed, clipped per row            before `codes`
    rotate_back  x = D H mean                                          after `dequantize`

Rules
-----
* Every implementation yields the bits of fanin/numerics/fixed_point.py and host/codecs/rotation.py: replicas may mix
  them. `NumpyArithmetic` (numpy_arithmetic.py) calls those functions, `TritonArithmetic` (triton_arithmetic.py)
  launches kernels on a GPU.
* Nothing is allocated and nothing is waited for: an implementation enqueues on the current stream, or is done.
* Buffers are flat and contiguous. Any of them may be a slice that begins at a block: how a tensor is cut into pieces
  does not change a bit.
* Words are int32 in host order, as an integer reduction of any engine takes them: the first element of a word is the
  most significant. Those of wide sums lie packet by packet, as host/codecs/words/packed_lanes.py wants them.
* Codes are int16: the scale code less 2^15, so that a maximum of signed integers is one of codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from fanin.host.codecs.philox import Draws
from fanin.host.codecs.words import codec_for
from fanin.host.codecs.words.lane_words import Lanes
from fanin.host.codecs.words.packed_lanes import SHIFT_WORDS
from fanin.host.codecs.words.wide_sums import WideSums
from fanin.numerics import wide_sums
from fanin.numerics.fixed_point import CODE_NOT_FINITE
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import PACKED_LANES, Element
from fanin.protocol.job import JobSpec

CODE_BIAS = 1 << 15
"""Subtracted from a scale code to get its form in a buffer, an int16."""

NOT_FINITE = CODE_NOT_FINITE - CODE_BIAS
"""Code of a block with NaN or infinities, in its form in a buffer."""
UNSPOILED = -CODE_BIAS
"""Mark of a rank that has spoiled nothing; a rank also writes it for all other ranks. Less than any other mark."""
MARKS = 2
"""Number of marks of each rank: the low and the high 15 bits of a code's number."""

ELEMENTS = (Element.FLOAT32, Element.BFLOAT16, Element.FLOAT16)
"""Element types that are quantized on the device where they lie."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One reduction's arithmetic; the same on every rank but for `factor`."""

    element: Element
    """Type of the elements of x and of the result: one of ELEMENTS."""
    up: int
    """Bits of a lane in a contribution: 32, 16, 8, 4 or 2."""
    down: int
    """Bits of a lane in a sum: `up`, but for wide sums."""
    bound: int
    """B: the largest |q| of one contribution."""
    block_elements: int
    """Elements that share a scale code: whole words, up and down."""
    packet_blocks: int
    """Blocks of a packet, which has one shift in wide sums."""
    offset: int
    """The content of a lane whose sum is 0: contributors * B of packed lanes, B_D of wide sums, 0 of 32 bits."""
    divisor: float = 1.0
    """The result is divided by it."""
    factor: float = 1.0
    """x is multiplied by it before it is quantized."""
    packet_words: int = 0
    """Words from one packet of wide sums to the next: those of its sum, the shift, and what aligns the next one. A
    packet's contribution lies at its begin. 0: packed lanes, whose words follow each other."""

    @property
    def exponent(self) -> int:
        """floor(log2 B): lanes of 32 bits have steps of a power of two."""
        return self.bound.bit_length() - 1

    def blocks(self, count: int) -> int:
        """Scale codes of `count` elements."""
        return -(-count // self.block_elements)

    def words(self, count: int) -> int:
        """Words of one contribution of `count` elements, and of their sum; of wide sums whole packets."""
        if self.packet_words:
            return -(-count // self.unit_elements) * self.packet_words
        return -(-count * self.up // WORD_BITS)

    @property
    def unit_blocks(self) -> int:
        """Blocks whose sums are decoded together: those of a packet, which have one shift, or one."""
        return self.packet_blocks if self.packet_words else 1

    @property
    def unit_elements(self) -> int:
        """Elements whose sums are decoded together: those of `unit_blocks` blocks."""
        return self.unit_blocks * self.block_elements

    @property
    def shift_at(self) -> int:
        """Place of the shift in a packet of wide sums: behind the words of the sum."""
        return self.unit_elements * self.down // WORD_BITS

    @property
    def travels_as(self) -> int:
        """Word codec (`Reduction.lanes`) that the words travel by."""
        return PACKED_LANES[self.up, self.down] if self.packet_words else WORD_BITS


@dataclass(frozen=True, slots=True)
class Rotation:
    """A bucket's rotation (host/codecs/rotation.py): `count` elements in rows of `block`."""

    count: int
    block: int
    """A power of four, 1..1,024."""
    clip: float
    """Bound of clipping, in root mean squares of a row; infinite where nothing is clipped."""

    @property
    def rows(self) -> int:
        """Rows, the last one filled up with zeros."""
        return -(-self.count // self.block)

    @property
    def padded(self) -> int:
        """Elements of whole rows."""
        return self.rows * self.block


Buffer = TypeVar("Buffer", contravariant=True)
"""An array of numpy, or a tensor of torch. Those of BFLOAT16 elements are uint16 in numpy."""


class Arithmetic(Protocol[Buffer]):
    """Buffers: x, out: `count` elements of the plan's type; residual: (count,) float32; codes: (blocks,) int16, less
    CODE_BIAS; words: int32; all flat, contiguous, and in the memory where the arithmetic is done.
    """

    def codes(self, plan: Plan, x: Buffer, residual: Buffer | None, codes: Buffer) -> None:
        """Write the scale codes of x * factor + residual to `codes`, shape (plan.blocks(count),)."""

    def mark(self, codes: Buffer, marks: Buffer, rank: int) -> None:
        """Write the marks of ranks that have spoiled the sum: int16, MARKS of each rank.

        Those of `rank`, this rank, are the number of its first code that is NOT_FINITE, 15 bits in each, or UNSPOILED
        if there is none; those of all other ranks are UNSPOILED.
        """

    def level(self, codes: Buffer) -> None:
        """Set every code to the largest of the codes."""

    def quantize(
        self,
        plan: Plan,
        x: Buffer,
        residual: Buffer | None,
        codes: Buffer,
        words: Buffer,
        *,
        adds: bool = False,
        draws: Draws | None = None,
    ) -> None:
        """Write the words under the agreed codes to `words`, shape (plan.words(count),), and the loss to `residual`.

        A block that is not finite keeps its residual. Lanes behind the last element stand for 0, to the end of a word,
        and of wide sums to that of the packet. `adds`: the residual is not part of the input, and the loss is added to
        it: x is what a rotated codec sends, and the residual what it has cut. `draws`: steps are rounded up or down at
        random (host/codecs/lanes_codec.py), under codes that are all the same, without a factor; a block of zeros
        keeps its residual then, too.
        """

    def dequantize(
        self,
        plan: Plan,
        words: Buffer,
        codes: Buffer,
        out: Buffer,
        *,
        skip: int = 0,
        failed: Buffer | None = None,
    ) -> None:
        """Write the values that summed words stand for to `out`; its first one is element `skip` of the first block.

        words and codes begin at the same block, of wide sums at the same packet, and reach at least to the last
        element of `out`. `failed`: (1,) int32: where it is not 0 when the values are written, they are all NaN.
        """

    def rotate(
        self,
        rotation: Rotation,
        x: Buffer,
        signs: Buffer,
        owed: Buffer | None,
        sent: Buffer,
        cut: Buffer,
        squares: Buffer,
    ) -> None:
        """sent + cut = H D x + owed, `sent` clipped; `squares`, shape (rows,): of each row before that.

        x: (count,), of any of ELEMENTS; signs: (ceil(count / 32),) int32 (philox.sign_words); owed, sent, cut:
        (padded,) float32. Of a row that is not finite `cut` is 0.
        """

    def rotate_back(
        self,
        rotation: Rotation,
        mean: Buffer,
        signs: Buffer,
        x: Buffer,
        owed: Buffer | None,
        cut: Buffer | None,
        squares: Buffer | None,
    ) -> None:
        """x = D H mean; mean: (padded,) float32, which may be overwritten; x: (count,), of any of ELEMENTS.

        With `cut`: rows whose `squares` are not finite owe again what they owed: `owed`, or nothing without it.
        """


def plan_of(
    element: Element,
    lanes: int,
    count: int,
    spec: JobSpec,
    *,
    contributors: int,
    divisor: float = 1.0,
    factor: float = 1.0,
) -> Plan | None:
    """The plan of a sum of `count` elements in lanes (`Reduction.lanes`) in that job; None: for the host alone.

    Blocks are those of the engines' packets, so codes and values have the bits of the host's path. `contributors`: how
    many contributions every sum holds. ConfigurationError: these lanes cannot carry so many workers.
    """
    if element not in ELEMENTS:
        return None
    codec = codec_for(element, lanes, count, spec)
    if isinstance(codec, WideSums):
        up, down = codec.lanes.up, codec.lanes.down
        bound, offset = wide_sums.largest(up), wide_sums.largest(down)
        packet_words = spec.words_per_packet + SHIFT_WORDS
    elif isinstance(codec, Lanes):
        up = down = codec.fixed.lanes
        bound = codec.fixed.bound
        offset = 0 if up == WORD_BITS else contributors * bound
        packet_words = 0
    else:
        return None
    return Plan(
        element=element,
        up=up,
        down=down,
        bound=bound,
        block_elements=codec.block_elements,
        packet_blocks=codec.packet_elements // codec.block_elements,
        offset=offset,
        divisor=divisor,
        factor=factor,
        packet_words=packet_words,
    )
