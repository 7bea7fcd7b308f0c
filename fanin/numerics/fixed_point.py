"""Block floating point: floats to integers that a switch can add, and sums of them back. docs/numerics.md derives it.

This is the readable oracle, in numpy; native/kernels/kernel_body.hpp is the fast twin and agrees with it bit for bit.
Both compute, in this order, each line with one rounding to nearest, ties to even:

    x'   = x * factor + residual                              (each step only where it is asked for)
    code = the block's largest |x'|, rounded up to 11 exponent and 5 mantissa bits; all workers agree on the maximum
    q    = rint(x' * steps per unit), clamped to [-limit, limit]
    sum  = what the switch adds up: integers, exact whatever the order of arrival
    y    = sum / divisor, then * units per step, then to the element type

float32, float16 and bfloat16 are computed in float32, float64 in float64. Multiplying by the scale takes two steps, one
of them at least a power of two, so that no exponent over- or underflows on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.numerics import lanes as lane_words
from fanin.numerics.lanes import WORD_BITS, Words
from fanin.numerics.reduction import Element

CODE_ZERO = 0
"""Every element of the block is zero."""
CODE_NOT_FINITE = 0xFFFF
"""One element of the block is NaN or infinite: the block becomes NaN at every worker."""
CODE_MANTISSA_BITS = 5
CODE_BIAS = 1023
CODE_SHIFT = 52 - CODE_MANTISSA_BITS
"""A code is the top of the float64 representation of its bound, below the sign."""

WIDE_WORDS = 3
"""Words that a float64 takes."""

Array = npt.NDArray[Any]
Codes = npt.NDArray[np.uint16]
"""Scale codes of consecutive blocks, shape (blocks,)."""
Residual = npt.NDArray[np.float32]

DTYPES: dict[Element, type[np.generic]] = {
    Element.FLOAT32: np.float32, Element.FLOAT64: np.float64, Element.FLOAT16: np.float16, Element.BFLOAT16: np.uint16,
    Element.INT32: np.int32, Element.INT16: np.int16, Element.INT8: np.int8, Element.UINT8: np.uint8,
    Element.INT64: np.int64,
}  # fmt: skip
"""Numpy types of elements; bfloat16, which numpy does not know, as its bits."""


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 `bits`, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the bfloat16 nearest to each of `values`, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def bound_of(code: int) -> float:
    """The largest magnitude of a block with that finite scale code, rounded up."""
    return float(np.array([code << CODE_SHIFT], np.int64).view(np.float64)[0])


@dataclass(frozen=True, slots=True)
class _Scale:
    """Meaning of scale codes, per element, shape (n,): the factors to steps and back, and the largest |q|."""

    to_steps: tuple[Array, Array]
    to_value: tuple[Array, Array]
    limit: Array


@dataclass(frozen=True, slots=True)
class Codec:
    """How elements of one type become words that `contributions` workers' worth of can be added without overflow.

    Arrays are one-dimensional; bfloat16 is uint16. A block is `block_elements` consecutive elements that share a scale
    code. Integers have no codes (empty arrays) and take no factor, divisor or residual.
    """

    element: Element
    lanes: int = 32
    """Bits per lane that are asked for: 32, 16, 8 or 4; float64 and integers always take 32."""
    contributions: int = 1
    """M = N (S_max + 1): the most contributions in one sum."""
    levels: int = 0
    """B for lanes that are not added within their words, as in wide sums; 0: `contributions` decide B."""
    bound: int = field(init=False)
    """B, derived: the largest |q| of one contribution."""

    def __post_init__(self) -> None:
        bound = lane_words.largest_step(self.lanes, self.contributions)
        if not self.element.floating or self.element is Element.FLOAT64:
            object.__setattr__(self, "lanes", WORD_BITS)
            bound = lane_words.largest_step(WORD_BITS, self.contributions)
        elif self.levels:
            bound = self.levels
        object.__setattr__(self, "bound", bound)

    @property
    def exponent(self) -> int:
        """k = floor(log2 B): 32-bit lanes use steps of a power of two."""
        return self.bound.bit_length() - 1

    def words_for(self, count: int) -> int:
        """Words that `count` elements take."""
        return WIDE_WORDS * count if self.element is Element.FLOAT64 else lane_words.words_for(count, self.lanes)

    def elements_per_packet(self, words: int) -> int:
        """Elements that fill `words`."""
        return words // WIDE_WORDS if self.element is Element.FLOAT64 else words * (WORD_BITS // self.lanes)

    def codes(self, x: Array, block_elements: int, factor: float = 1.0, residual: Residual | None = None) -> Codes:
        """This worker's scale codes of x, shape (ceil(len(x) / block_elements),)."""
        if not self.element.floating:
            return np.empty(0, np.uint16)
        blocks = -(-len(x) // block_elements)
        with np.errstate(all="ignore"):
            magnitudes = np.zeros(blocks * block_elements)
            magnitudes[: len(x)] = np.abs(self._prepared(x, factor, residual))
            largest = magnitudes.reshape(blocks, block_elements).max(axis=1, initial=0.0)  # NaN wins
        one = 1 << CODE_MANTISSA_BITS
        code = (largest.view(np.int64) + ((1 << CODE_SHIFT) - 1)) >> CODE_SHIFT
        code = np.maximum(code, one)  # a float64 subnormal counts as the least normal
        if self.lanes == WORD_BITS:
            code = (code + one - 1) // one * one
        code[largest == 0] = CODE_ZERO
        code[~np.isfinite(largest)] = CODE_NOT_FINITE
        return np.asarray(code, np.uint16)

    def quantize(
        self, x: Array, codes: Codes, block_elements: int, factor: float = 1.0, residual: Residual | None = None
    ) -> Words:
        """The words of x under the agreed codes, shape (words_for(len(x)),)."""
        if not self.element.floating:
            return x.astype(np.int32).view(np.uint32)
        values, scale = self._prepared(x, factor, residual), self._scale(codes, block_elements, len(x))
        if self.element is Element.FLOAT64:
            return self._quantize_wide(values, scale)
        return lane_words.pack(self._steps(values, scale), self.lanes, self.bound)

    def steps(
        self, x: Array, codes: Codes, block_elements: int, factor: float = 1.0, residual: Residual | None = None
    ) -> npt.NDArray[np.int32]:
        """q of every element under the agreed codes, shape (len(x),); for float32, float16 and bfloat16."""
        return self._steps(self._prepared(x, factor, residual), self._scale(codes, block_elements, len(x)))

    def _quantize_wide(self, values: Array, scale: _Scale) -> Words:
        """float64: the steps in one word, what is left in units of 2^-k in the next, and of 2^-2k in the one after."""
        with np.errstate(all="ignore"):
            exact = _clamped(values * scale.to_steps[0] * scale.to_steps[1], scale.limit)
        words = []
        for _ in range(WIDE_WORDS):
            words.append(np.rint(exact))
            exact = (exact - words[-1]) * 2.0**self.exponent
        return np.stack(words, axis=1).astype(np.int32).view(np.uint32).reshape(-1)

    def dequantize(
        self, words: Words, codes: Codes, block_elements: int, count: int, contributors: int, divisor: float = 1.0
    ) -> Array:
        """The `count` elements that the sum of `contributors` contributions stands for, divided by `divisor`."""
        if not self.element.floating:
            return words[:count].astype(DTYPES[self.element])
        steps: Array
        if self.element is Element.FLOAT64:
            parts = words[: WIDE_WORDS * count].view(np.int32).reshape(-1, WIDE_WORDS).astype(np.float64)
            unit = 2.0**-self.exponent
            steps = parts[:, 0] + (parts[:, 1] + parts[:, 2] * unit) * unit
        else:
            steps = lane_words.unpack(words, self.lanes, count, self.bound, contributors).astype(np.float32)
        return self.values(steps, codes, block_elements, divisor)

    def values(self, steps: Array, codes: Codes, block_elements: int, divisor: float, unit: float = 1.0) -> Array:
        """The elements that sums of q stand for, in units of `unit` (a power of two), shape (len(steps),)."""
        dtype, count = DTYPES[self.element], len(steps)
        scale = self._scale(codes, block_elements, count)
        with np.errstate(all="ignore"):
            first = scale.to_value[0] * scale.to_value[0].dtype.type(unit)
            values: Array = steps / steps.dtype.type(divisor) * first * scale.to_value[1]
            code = np.repeat(codes, block_elements)[:count]
            values[code == CODE_ZERO] = 0.0
            values[code == CODE_NOT_FINITE] = np.nan
            return to_bfloat16(values) if self.element is Element.BFLOAT16 else values.astype(dtype)

    def residual_after(
        self, x: Array, codes: Codes, block_elements: int, factor: float = 1.0, residual: Residual | None = None
    ) -> Residual:
        """Return x * factor + residual less its quantized value; a block that is not finite keeps its residual."""
        values, scale = self._prepared(x, factor, residual), self._scale(codes, block_elements, len(x))
        before = np.zeros(len(x), np.float32) if residual is None else residual
        with np.errstate(all="ignore"):
            after = values - self._steps(values, scale).astype(np.float32) * scale.to_value[0] * scale.to_value[1]
        kept = np.repeat(codes, block_elements)[: len(x)] == CODE_NOT_FINITE
        return np.where(kept, before, after)

    def _prepared(self, x: Array, factor: float, residual: Residual | None) -> Array:
        """x * factor + residual, in float64 for float64 and in float32 for everything else."""
        wide = self.element is Element.FLOAT64
        values: Array = from_bfloat16(x) if self.element is Element.BFLOAT16 else x
        with np.errstate(all="ignore"):
            values = values.astype(np.float64 if wide else np.float32, copy=False)
            if factor != 1.0:
                values = values * (np.float64(factor) if wide else np.float32(factor))
            return values if residual is None else values + residual

    @staticmethod
    def _steps(values: Array, scale: _Scale) -> npt.NDArray[np.int32]:
        with np.errstate(all="ignore"):
            return np.rint(_clamped(values * scale.to_steps[0] * scale.to_steps[1], scale.limit)).astype(np.int32)

    def _scale(self, codes: Codes, block_elements: int, count: int) -> _Scale:
        """The scale of each of `count` elements. A block that is zero or not finite has limit 0, hence only q = 0."""
        assert len(codes) * block_elements >= count, f"{len(codes)} codes of {block_elements} elements for {count}"
        code = codes.astype(np.int64)
        empty = (code == CODE_ZERO) | (code == CODE_NOT_FINITE)
        if self.lanes == WORD_BITS:
            to_steps, to_value, limit = self._power_of_two_scale(code)
        else:
            to_steps, to_value, limit = self._narrow_scale(code)
        parts = [np.repeat(np.where(empty, 0, part), block_elements)[:count] for part in (*to_steps, *to_value, limit)]
        dtype = np.float64 if self.element is Element.FLOAT64 else np.float32
        one, two, three, four, five = (part.astype(dtype) for part in parts)
        return _Scale((one, two), (three, four), five)

    def _power_of_two_scale(self, code: Array) -> tuple[tuple[Array, Array], tuple[Array, Array], Array]:
        """32-bit lanes: q = x * 2^s with s = k - p, where 2^p >= the bound, split into two halves."""
        one = 1 << CODE_MANTISSA_BITS
        lowest, highest = (-1022, 1024) if self.element is Element.FLOAT64 else (-149, 128)
        power = np.clip((code + one - 1) // one - CODE_BIAS, lowest, highest)
        shift = self.exponent - power
        return _halves(shift), _halves(-shift), np.full(len(code), 2.0**self.exponent)

    def _narrow_scale(self, code: Array) -> tuple[tuple[Array, Array], tuple[Array, Array], Array]:
        """Narrow lanes: q = x * B / bound with bound = m 2^p, the exponent taken out so that B / m is rounded alone."""
        power = np.clip((code >> CODE_MANTISSA_BITS) - CODE_BIAS, -149, 128)
        mantissa = 1.0 + (code & ((1 << CODE_MANTISSA_BITS) - 1)) / (1 << CODE_MANTISSA_BITS)
        down, up = np.clip(-power, -126, 127), np.clip(power, -126, 127)
        to_steps = _power(down), (self.bound / mantissa).astype(np.float32) * _power(-power - down)
        to_value = (mantissa / self.bound).astype(np.float32) * _power(power - up), _power(up)
        return to_steps, to_value, np.full(len(code), float(self.bound))


def _clamped(steps: Array, limit: Array) -> Array:
    """`steps` within [-limit, limit]; NaN, which only a changed input can be here, becomes the limit."""
    below = np.where(steps < limit, steps, limit)
    return np.where(below > -limit, below, -limit)


def _power(exponent: Array) -> Array:
    return np.ldexp(1.0, exponent)


def _halves(shift: Array) -> tuple[Array, Array]:
    return _power(shift >> 1), _power(shift - (shift >> 1))
