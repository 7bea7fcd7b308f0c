"""Exact reductions: every rank's elements travel separately, and every rank reduces them all, in the order of ranks.

A switch adds words. Where each rank has words of its own, and zeros in the other ranks', the sum of all contributions
is all ranks' elements side by side: a gather made of sums, for which the switch needs nothing new. N ranks take N times
the words, so it is for small tensors (docs/numerics.md, "Small sums are exact").

This is the readable oracle, in numpy; native/kernels/kernel_exact.hpp is the fast twin and agrees with it bit for bit:

* Elements stand on the wire as big-endian bits, the first one first; a rank's last word is padded with zeros.
* Floats are reduced in float64, one rank after another, beginning with the first one's element (so that -0 + -0 is -0),
  divided in float64 and rounded once to the element type. A NaN is always the same quiet one.
* MIN and MAX are minimum and maximum of IEEE 754-2019: a NaN anywhere is NaN, and -0 is less than +0.
* Integers wrap around; bits are bits.
* With a factor or a residual a rank's element is x * factor + residual in float64, rounded to the element type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.numerics.fixed_point import DTYPES, Array, Residual, from_bfloat16
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import Element, Operator
from fanin.protocol.wire import WORD_BYTES

EVERYBODY = 0xFFFFFFFF
"""Value of `present` by which every rank has contributed."""
MARKED_RANKS = 32
"""Number of ranks that `present` has bits for; further ranks always count as present."""
QUIET_NAN = {
    Element.FLOAT32: 0x7FC00000,
    Element.FLOAT64: 0x7FF8 << 48,
    Element.FLOAT16: 0x7E00,
    Element.BFLOAT16: 0x7FC0,
}
"""The bits of every NaN that comes out."""
ROOM = 2.0**-11
"""Factor by which float64 are scaled if their sum overflows but not their mean: at most 1,024 contributions."""


def words_for(element: Element, count: int) -> int:
    """Words of one rank's `count` elements."""
    return -(-count * element.bytes // WORD_BYTES)


def elements_for(element: Element, words: int) -> int:
    """Elements that fill `words` of one rank."""
    return words * WORD_BYTES // element.bytes


def wide(x: Array, element: Element) -> npt.NDArray[np.float64]:
    """Floating point elements as float64, exactly."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return (from_bfloat16(x) if element is Element.BFLOAT16 else x).astype(np.float64)


def narrow(values: npt.NDArray[np.float64], element: Element) -> Array:
    """float64 rounded once, to nearest and ties to even, to the element type."""
    with np.errstate(all="ignore"):
        if element is Element.BFLOAT16:
            odd = _rounded_to_odd(values).view(np.uint32)
            result: Array = ((odd + np.uint32(0x7FFF) + (odd >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(
                np.uint16
            )
        else:
            result = np.array(values.astype(DTYPES[element]))
    result.view(f"u{element.bytes}")[np.isnan(values)] = QUIET_NAN[element]
    return result


def _rounded_to_odd(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round float64 to float32 with a last bit of 1 if anything was lost: rounding that to 16 bits is then exact."""
    near = values.astype(np.float32)
    bits = near.view(np.uint32)
    beyond = np.abs(near.astype(np.float64)) > np.abs(values)
    lost = near.astype(np.float64) != values
    return np.where(lost, bits - beyond.astype(np.uint32) | np.uint32(1), bits).view(np.float32)


def encode(x: Array, element: Element, factor: float = 1.0, residual: Residual | None = None) -> Words:
    """The words of one rank's elements, shape (words_for(element, len(x)),)."""
    own = _contribution(x, element, factor, residual)
    data = own.astype(own.dtype.newbyteorder(">")).tobytes()
    padded = data.ljust(words_for(element, len(x)) * WORD_BYTES, b"\0")
    return np.frombuffer(padded, ">u4").astype(np.uint32)


def residual_after(x: Array, element: Element, factor: float, residual: Residual) -> Residual:
    """Loss by rounding to the element type; an element that is not finite keeps its residual."""
    with np.errstate(all="ignore"):
        exact = wide(x, element) * factor + residual
        sent = wide(narrow(exact, element), element)
        return np.where(np.isfinite(sent), (exact - sent).astype(np.float32), residual)


def _contribution(x: Array, element: Element, factor: float, residual: Residual | None) -> Array:
    if factor == 1.0 and residual is None:
        return x
    with np.errstate(all="ignore"):
        exact = wide(x, element) * factor
        return narrow(exact if residual is None else exact + residual, element)


@dataclass(frozen=True, slots=True)
class ExactCodec:
    """How the words of all ranks become the result."""

    element: Element
    operator: Operator
    ranks: int

    def decode(self, words: Words, count: int, divisor: float = 1.0, present: int = EVERYBODY) -> Array:
        """Reduce `count` elements of each rank, in the order of ranks; zeros if no rank is present.

        `present` has a bit for each of the first 32 ranks: whether its words count.
        """
        element = self.element
        parts = list(self._parts(words, count, present).values())
        if not parts:
            return np.zeros(count, DTYPES[element])
        if not element.floating:
            return _integers(parts, self.operator)
        return narrow(_floats([wide(part, element) for part in parts], self.operator, divisor), element)

    def first_not_finite(self, words: Words, count: int, present: int = EVERYBODY) -> list[tuple[int, int]]:
        """Ranks with floats that are NaN or infinite, each with the first of them."""
        finite = {
            rank: np.isfinite(wide(part, self.element)) for rank, part in self._parts(words, count, present).items()
        }
        return [(rank, int(np.argmin(each))) for rank, each in finite.items() if not each.all()]

    def _parts(self, words: Words, count: int, present: int) -> dict[int, Array]:
        """Elements of each rank that counts, by rank."""
        dtype, data = np.dtype(DTYPES[self.element]), words.astype(">u4").tobytes()
        size_bytes = words_for(self.element, count) * WORD_BYTES
        ranks = [rank for rank in range(self.ranks) if rank >= MARKED_RANKS or present >> rank & 1]
        wire = dtype.newbyteorder(">")
        return {rank: np.frombuffer(data, wire, count, rank * size_bytes).astype(dtype) for rank in ranks}


def _floats(parts: list[Array], operator: Operator, divisor: float) -> npt.NDArray[np.float64]:
    with np.errstate(all="ignore"):
        total = _folded(parts, operator)
        if operator is not Operator.SUM or divisor == 1.0:
            return total
        finite = np.all(np.isfinite(parts), axis=0)
        with_room = _folded([part * ROOM for part in parts], operator) / divisor / ROOM
        return np.where(np.isinf(total) & finite, with_room, total / divisor)


def _folded(parts: list[Array], operator: Operator) -> npt.NDArray[np.float64]:
    result = parts[0]
    for part in parts[1:]:
        match operator:
            case Operator.SUM:
                result = result + part
            case Operator.PRODUCT:
                result = result * part
            case Operator.MIN:
                result = _lesser(result, part)
            case _:
                result = -_lesser(-result, -part)
    return result


def _lesser(a: Array, b: Array) -> Array:
    nan = np.isnan(a) | np.isnan(b)
    first = (a < b) | ((a == b) & np.signbit(a))
    return np.where(nan, np.nan, np.where(first, a, b))


def _integers(parts: list[Array], operator: Operator) -> Array:
    functions: dict[Operator, Any] = {
        Operator.SUM: np.add,
        Operator.MIN: np.minimum,
        Operator.MAX: np.maximum,
        Operator.PRODUCT: np.multiply,
        Operator.BAND: np.bitwise_and,
        Operator.BOR: np.bitwise_or,
        Operator.BXOR: np.bitwise_xor,
    }
    result = parts[0]
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            result = functions[operator](result, part)
    return result
