"""The native codec behind the numpy codec's verbs, and arrays that are unkind to both."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from fanin import _native
from fanin.numerics.fixed_point import DTYPES, Array, Codec, Codes, Residual
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import Element

KERNELS = ("portable", "avx2", "avx512")
"""Implementations of the native kernels; those that this processor lacks are skipped by name."""
FLOATING = (Element.FLOAT32, Element.FLOAT64, Element.FLOAT16, Element.BFLOAT16)
INTEGERS = (Element.INT32, Element.INT16, Element.INT8, Element.UINT8)
GUARD_BYTES = 70
JUNK = 0xA5


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def misaligned(array: Array) -> npt.NDArray[np.uint8]:
    """A copy of the array's bytes at an odd address."""
    data = as_bytes(array)
    buffer = np.empty(len(data) + 1, np.uint8)
    start = 1 - buffer.ctypes.data % 2
    buffer[start : start + len(data)] = data
    return buffer[start : start + len(data)]


def junk(size_bytes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """A junk-filled buffer and the `size_bytes` in its middle, at an odd address, that may be written."""
    buffer = np.full(size_bytes + 2 * GUARD_BYTES + 1, JUNK, np.uint8)
    start = GUARD_BYTES + 1 - buffer.ctypes.data % 2
    return buffer, buffer[start : start + size_bytes]


def assert_guards(buffer: npt.NDArray[np.uint8], middle: npt.NDArray[np.uint8]) -> None:
    """Nothing outside the middle was written."""
    start = middle.ctypes.data - buffer.ctypes.data
    outside = np.concatenate([buffer[:start], buffer[start + len(middle) :]])
    assert (outside == JUNK).all(), "a kernel wrote outside its buffer"


@dataclass(frozen=True)
class NativeCodec:
    """fanin._native.Codec with the verbs of fanin.numerics.fixed_point.Codec; buffers misaligned, outputs guarded."""

    element: Element
    lanes: int = 32
    contributions: int = 1
    codec: _native.Codec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", _native.Codec(self.element, self.lanes, self.contributions))

    def codes(self, x: Array, block_elements: int, factor: float = 1.0, residual: Residual | None = None) -> Codes:
        return self.codec.codes(misaligned(x), block_elements, factor, residual)

    def quantize(
        self, x: Array, codes: Codes, block_elements: int, factor: float = 1.0, residual: Residual | None = None
    ) -> Words:
        buffer, words_be = junk(self.codec.words_for(len(x)) * 4)
        self.codec.quantize_into(misaligned(x), codes, block_elements, words_be, factor, residual)
        assert_guards(buffer, words_be)
        return words_be.copy().view(">u4").astype(np.uint32)

    def dequantize(
        self,
        words: Words,
        codes: Codes,
        block_elements: int,
        count: int,
        contributors: int,
        divisor: float = 1.0,
        skip: int = 0,
        keep: int | None = None,
    ) -> Array:
        size_bytes = self.element.bytes
        buffer, out = junk((count - skip if keep is None else keep) * size_bytes)
        words_be = misaligned(words.astype(">u4"))
        self.codec.dequantize_into(words_be, codes, block_elements, count, contributors, out, divisor, skip)
        assert_guards(buffer, out)
        return np.frombuffer(out.tobytes(), DTYPES[self.element])

    def residual_after(
        self, x: Array, codes: Codes, block_elements: int, factor: float = 1.0, residual: Residual | None = None
    ) -> Residual:
        return self.codec.residual_after(misaligned(x), codes, block_elements, factor, residual)


def assert_same_bits(actual: Array, expected: Array) -> None:
    """Equal to the bit: NaN equals itself, and the two zeros differ."""
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(as_bytes(actual), as_bytes(expected))


def random_array(element: Element, count: int, style: str, seed: int) -> Array:
    """`count` elements: any bits at all, or values of one magnitude, with zeros or not-finite values strewn in."""
    generator = np.random.default_rng(seed)
    dtype = np.dtype(DTYPES[element])
    bits = generator.integers(0, 256, count * dtype.itemsize, np.uint8)
    if style == "bits" or not element.floating:
        return bits.view(dtype)
    limits = {Element.FLOAT64: (-1074, 1023), Element.FLOAT16: (-24, 15)}.get(element, (-149, 127))
    power = int(generator.integers(*limits, endpoint=True))
    values = np.ldexp(generator.uniform(-1, 1, count), power)
    if style == "halves":  # many ties
        values = np.ldexp(generator.integers(-64, 65, count) / 2.0, max(power - 8, limits[0]))
    if style == "sparse":
        values[generator.random(count) < 0.9] = -0.0
    if style == "not finite" and count:
        values[generator.integers(count)] = generator.choice([np.nan, np.inf, -np.inf])
    return narrowed(values, element)


def narrowed(values: npt.NDArray[np.float64], element: Element) -> Array:
    """float64 values as elements (bfloat16 by truncation)."""
    with np.errstate(all="ignore"):
        if element is Element.BFLOAT16:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(DTYPES[element])


STYLES = ("bits", "uniform", "halves", "sparse", "not finite")


@dataclass(frozen=True)
class Case:
    """One chunk of several workers, with everything that a codec can be asked."""

    element: Element
    lanes: int
    contributions: int
    contributors: int
    block_elements: int
    count: int
    style: str
    factor: float
    divisor: float
    with_residual: bool
    seed: int

    def inputs(self) -> list[Array]:
        """The elements of each contributor."""
        workers = range(self.contributors)
        return [random_array(self.element, self.count, self.style, self.seed + worker) for worker in workers]

    def residuals(self, worker: int) -> Residual | None:
        """A worker's error feedback, where the case has one."""
        if not self.with_residual or self.element is Element.FLOAT64:
            return None
        style = "uniform" if self.style == "bits" else self.style.replace("not finite", "sparse")
        return np.asarray(random_array(Element.FLOAT32, self.count, style, self.seed + worker), np.float32)


@st.composite
def cases(draw: st.DrawFn, elements: tuple[Element, ...] = FLOATING) -> Case:
    """Any case that a codec accepts."""
    element = draw(st.sampled_from(elements))
    lanes = draw(st.sampled_from([32, 16, 8, 4]))
    effective = 32 if element is Element.FLOAT64 or not element.floating else lanes
    contributions = draw(st.integers(1, {32: 96, 16: 96, 8: 96, 4: 7}[lanes]))
    per_word = 32 // effective
    return Case(
        element=element,
        lanes=lanes,
        contributions=contributions,
        contributors=draw(st.integers(1, min(contributions, 4))),
        block_elements=per_word * draw(st.integers(1, 40)),
        count=draw(st.integers(0, 700)),
        style=draw(st.sampled_from(STYLES)),
        factor=draw(st.sampled_from([1.0, 1.0, 0.5, 1 / 3, -3.0, 1e-30, 1e30])) if element.floating else 1.0,
        divisor=draw(st.sampled_from([1.0, 1.0, 2.0, 3.0, 4.0, 7.0, -2.0, 1e30, 2.0**-126, 2.0**127, 1e-42])),
        with_residual=draw(st.booleans()) and element.floating,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


AnyCodec = Codec | NativeCodec
"""Either twin; the contract tests run over both."""


def reduce_chunk(codec: AnyCodec, inputs: list[Array], block_elements: int, divisor: float = 1.0) -> Array:
    """Every worker's result of these inputs: agree on codes, quantize, add, dequantize."""
    codes = np.max([codec.codes(x, block_elements) for x in inputs], axis=0)
    words = np.array([codec.quantize(x, codes, block_elements) for x in inputs]).sum(axis=0, dtype=np.uint32)
    return codec.dequantize(words, codes, block_elements, len(inputs[0]), len(inputs), divisor)
