"""Computes the result of a synchronous reduction, to the bit, without packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.numerics import exact
from fanin.numerics.fixed_point import DTYPES, Codec
from fanin.numerics.lanes import WORD_BITS, Words
from fanin.numerics.reduction import EXACT, WIDE_SUMS, Element, Operator
from fanin.numerics.wide_sums import WideCodec, accumulated, narrowed
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import LaneField

Array = npt.NDArray[Any]


def summed(words: Sequence[Words], lanes: LaneField | None, accumulator_bytes: int) -> tuple[Words, int]:
    """One switch's sum of the contributions to a round: the words, and the shift of their lanes."""
    if lanes is None:
        return np.asarray(np.sum(words, axis=0, dtype=np.uint32)), 0
    total = accumulated(words[0], lanes, accumulator_bytes)
    for each in words[1:]:
        total = total + accumulated(each, lanes, accumulator_bytes)
    return narrowed(total, lanes.down)


def expected(spec: JobSpec, inputs: Sequence[Array], element: Element, lanes: int = 32, **given: Any) -> Array:
    """The array that every worker must get: codes are agreed on and words added, chunk by chunk.

    `inputs` are the workers' arrays, all of one shape (n,); `given` may hold the reduction's factor, divisor, operator.
    """
    if lanes == EXACT:
        rows = [exact.encode(x, element, given.get("factor", 1.0)) for x in inputs]
        codec = exact.ExactCodec(element, given.get("operator", Operator.SUM), len(inputs))
        return codec.decode(np.concatenate(rows), len(inputs[0]), given.get("divisor", 1.0))
    if lanes in WIDE_SUMS and element in (Element.FLOAT32, Element.FLOAT16, Element.BFLOAT16):
        return _wide(spec, inputs, element, lanes, **given)
    fixed = Codec(element, lanes, spec.contributions)
    block = fixed.elements_per_packet(spec.words_per_packet // spec.codes_per_packet)
    per_chunk = block * spec.codes_per_packet
    factor, divisor = given.get("factor", 1.0), given.get("divisor", 1.0)
    chunks = [np.empty(0, DTYPES[element])]
    for start in range(0, len(inputs[0]), per_chunk):
        parts = [x[start : start + per_chunk] for x in inputs]
        codes = np.max([fixed.codes(part, block, factor) for part in parts], axis=0)
        total = sum(fixed.quantize(part, codes, block, factor) for part in parts)
        chunks.append(fixed.dequantize(np.asarray(total), codes, block, len(parts[0]), len(parts), divisor))
    return np.concatenate(chunks)


def _wide(spec: JobSpec, inputs: Sequence[Array], element: Element, lanes: int, **given: Any) -> Array:
    """The array that every worker must get from wide sums through one switch."""
    wide = WideCodec(element, lanes, spec.contributions)
    block = spec.words_per_packet // spec.codes_per_packet * (WORD_BITS // wide.lanes.down)
    factor, divisor = given.get("factor", 1.0), given.get("divisor", 1.0)
    chunks = [np.empty(0, DTYPES[element])]
    for start in range(0, len(inputs[0]), block * spec.codes_per_packet):
        parts = [x[start : start + block * spec.codes_per_packet] for x in inputs]
        codes = np.max([wide.fixed.codes(part, block, factor) for part in parts], axis=0)
        words = [wide.quantize(part, codes, block, factor, None) for part in parts]
        total, shift = summed(words, wide.lanes, spec.accumulator_bytes)
        chunks.append(wide.dequantize(total, codes, block, len(parts[0]), len(parts), divisor, shift))
    return np.concatenate(chunks)
