"""Integers, one per word: the switch's own addition, exact modulo the element's size.

    word = x, sign- or zero-extended to 32 bits        y = the sum of words, truncated to the element

native/codecs/codec_integers.cpp is the twin.
"""

from __future__ import annotations

import numpy as np

from fanin.host.codecs.words.codec import Blocks
from fanin.numerics.fixed_point import DTYPES, Array, Codes, Residual
from fanin.numerics.lanes import WORD_BITS, Words
from fanin.numerics.reduction import LANES, Element, Operator
from fanin.protocol.job import JobSpec


class Integers(Blocks):
    """int32, int16, int8 and uint8, whatever the width of lanes that is asked for."""

    name = "integers"
    numbers = LANES
    elements = frozenset({Element.INT32, Element.INT16, Element.INT8, Element.UINT8})

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """Any number of workers is legal: sums wrap around."""
        self.number = WORD_BITS
        self._dtype = DTYPES[element]
        self._lay_out(count, spec.words_per_packet // spec.codes_per_packet, spec.codes_per_packet)

    def word_count(self, packet: int) -> int:
        """Number of words: one per element."""
        return self.span(packet)[1]

    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Extend each element to a word."""
        return x.astype(np.int32).view(np.uint32)

    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """Truncate each word to the element type; the sum is never divided."""
        return words[:count].astype(self._dtype)
