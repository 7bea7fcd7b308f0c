"""Wide sums: lanes without head room, which the switch adds up one by one, and narrows when the round closes.

    q     = rint(x' * steps per unit), |q| <= B_U      B_L = 2^(L-1) - 1; a lane of U bits holds q + B_U
    sum   = the sum of q over the contributions        in an accumulator per lane
    m     = the packet's largest |sum|
    shift = the least s with rint(m / 2^s) <= B_D
    r     = rint(sum / 2^shift)                        a lane of D bits holds r + B_D
    y     = r / divisor * (units per step * 2^shift)

Packed lanes (fanin/numerics/lanes.py) reserve room for the sum, so N workers leave (2^L - 1) / (2 N) levels. Here a
lane has all its levels whatever N is, and what narrowing loses depends on the sums alone: on no order of arrival.

Rules of this file
------------------
* U is 2, 4 or 8 and D is 4 or 8, U at most. Rounding is to nearest, ties to even.
* An accumulator has JobSpec.accumulator_bytes and wraps around, which honest lanes of up to MAX_CONTRIBUTIONS never do.
  Lanes and shifts that nobody honest sends have a meaning as well: a lane holds what it holds, less B; a shift stops at
  MAX_SHIFT, and r is clamped to [-B_D, B_D].
* A leaf's narrowed sum goes up to its parent with its shift: the parent adds r * 2^shift.

native/kernels/kernel_loops.hpp is the fast twin and agrees with it bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.numerics import lanes as lane_words
from fanin.numerics.fixed_point import Array, Codec, Codes, Residual
from fanin.numerics.lanes import WORD_BITS, Words
from fanin.numerics.reduction import WIDE_SUMS, Element
from fanin.protocol.wire import MAX_SHIFT, LaneField

MAX_CONTRIBUTIONS = 1 << 14
"""Most contributions in one round: rint(MAX_CONTRIBUTIONS * B_U / 2^MAX_SHIFT) fits any D."""

Sums = npt.NDArray[Any]
"""Accumulators of consecutive lanes, int16 or int32, shape (lanes,)."""


def largest(bits: int) -> int:
    """B: the largest magnitude in a lane of that many bits."""
    return (1 << bits - 1) - 1


def lanes_for(widths: tuple[int, int], contributions: int) -> LaneField:
    """Lanes of (U, D) bits. ConfigurationError for more contributions than a result's shift covers."""
    up, down = widths
    if contributions > MAX_CONTRIBUTIONS:
        raise ConfigurationError(
            f"{up}/{down}-bit lanes cannot hold the sum of {contributions} contributions, but of "
            f"{MAX_CONTRIBUTIONS}. Remedy: take lanes = 32"
        )
    return LaneField(up, down)


def accumulated(words: Words, lanes: LaneField, accumulator_bytes: int) -> Sums:
    """The numbers that one contribution adds to the accumulators, shape (32 / up * words,)."""
    count = len(words) * WORD_BITS // lanes.up
    steps = lane_words.unpack(words, lanes.up, count, largest(lanes.up), 1)
    return (steps << lanes.shift).astype(np.int16 if accumulator_bytes == 2 else np.int32)


def narrowed(sums: Sums, down: int) -> tuple[Words, int]:
    """The words of a result, and the shift of its lanes."""
    wide, bound = sums.astype(np.int64), largest(down)
    most = int(np.abs(wide).max(initial=0))
    shift = next(s for s in range(MAX_SHIFT + 1) if s == MAX_SHIFT or _rounded(most, s) <= bound)
    steps = np.clip(_rounded(wide, shift), -bound, bound)
    return lane_words.pack(steps.astype(np.int32), down, bound), shift


def _rounded(value: Any, shift: int) -> Any:
    """value / 2^shift, to nearest, ties to even."""
    if not shift:
        return value
    half = (1 << shift) >> 1
    quotient = value >> shift
    return quotient + ((value & ((1 << shift) - 1)) + (quotient & 1) > half)


class WideCodec:
    """How floats become the words of one contribution, and narrowed sums floats again."""

    def __init__(self, element: Element, number: int, contributions: int) -> None:
        """`number` is one of WIDE_SUMS. ConfigurationError for more contributions than a result's shift covers."""
        self.lanes = lanes_for(WIDE_SUMS[number], contributions)
        self.fixed = Codec(element, 8, levels=largest(self.lanes.up))
        """Codec of steps and scale codes, with B_U levels; its lanes are not used."""

    def quantize(self, x: Array, codes: Codes, block: int, factor: float, residual: Residual | None) -> Words:
        """The words of one contribution; lanes that pad the last one hold q = 0."""
        steps = self.fixed.steps(x, codes, block, factor, residual)
        return lane_words.pack(steps, self.lanes.up, largest(self.lanes.up))

    def dequantize(
        self, words: Words, codes: Codes, block: int, count: int, contributors: int, divisor: float, shift: int
    ) -> Array:
        """The `count` elements that a narrowed sum stands for; zeros where nobody contributed."""
        offset = largest(self.lanes.down) if contributors else 0
        steps = lane_words.unpack(words, self.lanes.down, count, offset, 1).astype(np.float32)
        return self.fixed.values(steps, codes, block, divisor, unit=2.0**shift)
