"""What a synchronous reduction must come to, to the bit, computed without a packet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.fixed_point import DTYPES, Codec
from fanin.job import JobSpec
from fanin.reduction import Element

Array = npt.NDArray[Any]


def expected(spec: JobSpec, inputs: Sequence[Array], element: Element, lanes: int = 32, **given: Any) -> Array:
    """What every worker must get: codes agreed, words added, one chunk after another.

    `inputs` are the workers' arrays, all of one shape (n,); `given` may hold the reduction's factor and divisor.
    """
    codec = Codec(element, lanes, spec.contributions)
    block = codec.elements_per_packet(spec.words_per_packet // spec.codes_per_packet)
    per_chunk = block * spec.codes_per_packet
    factor, divisor = given.get("factor", 1.0), given.get("divisor", 1.0)
    chunks = [np.empty(0, DTYPES[element])]
    for start in range(0, len(inputs[0]), per_chunk):
        parts = [x[start : start + per_chunk] for x in inputs]
        codes = np.max([codec.codes(part, block, factor) for part in parts], axis=0)
        words = sum(codec.quantize(part, codes, block, factor) for part in parts)
        chunks.append(codec.dequantize(np.asarray(words), codes, block, len(parts[0]), len(parts), divisor))
    return np.concatenate(chunks)
