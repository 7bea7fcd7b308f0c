"""The result of a synchronous reduction, to the bit, computed without a packet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.numerics import exact
from fanin.numerics.fixed_point import DTYPES, Codec
from fanin.numerics.reduction import EXACT, Element, Operator
from fanin.protocol.job import JobSpec

Array = npt.NDArray[Any]


def expected(spec: JobSpec, inputs: Sequence[Array], element: Element, lanes: int = 32, **given: Any) -> Array:
    """What every worker must get: codes agreed, words added, one chunk after another.

    `inputs` are the workers' arrays, all of one shape (n,); `given` may hold the reduction's factor, divisor, operator.
    """
    if lanes == EXACT:
        rows = [exact.encode(x, element, given.get("factor", 1.0)) for x in inputs]
        codec = exact.ExactCodec(element, given.get("operator", Operator.SUM), len(inputs))
        return codec.decode(np.concatenate(rows), len(inputs[0]), given.get("divisor", 1.0))
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
