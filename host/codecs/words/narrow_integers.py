"""Small integers in packed lanes of 16, 8 or 4 bits, for codecs that send indices rather than values.

    lane = clip(x, -B, B) + B,  B = (2^L - 1) // (2 M)        y = the lane's sum - contributors * B

Exact for |x| <= B, and clipped beyond: whoever makes the indices keeps them within B (`largest_step` of
fanin/numerics/lanes.py). No scale is agreed on, so a reduction takes one round trip fewer than floats do. The twin is
native/codecs/codec_narrow_integers.cpp.
"""

from __future__ import annotations

import numpy as np

from fanin.host.codecs.words.codec import Blocks
from fanin.numerics.fixed_point import DTYPES, Array, Codes, Residual
from fanin.numerics.lanes import WORD_BITS, Words, largest_step, pack, unpack, words_for
from fanin.numerics.reduction import FIRST_NAMED_CODEC, Element, Operator
from fanin.protocol.job import JobSpec

NARROW = FIRST_NAMED_CODEC
"""`Reduction(lanes=NARROW + 8)`: integers in lanes of 8 bits."""


class NarrowIntegers(Blocks):
    """int32, int16 and int8 of small magnitude."""

    name = "narrow_integers"
    numbers = (NARROW + 16, NARROW + 8, NARROW + 4)
    elements = frozenset({Element.INT32, Element.INT16, Element.INT8})

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """ConfigurationError where lanes hold no level of so many contributions."""
        self.number = lanes
        self._bits = lanes - NARROW
        self._bound = largest_step(self._bits, spec.contributions)
        self._dtype = DTYPES[element]
        block = spec.words_per_packet // spec.codes_per_packet * (WORD_BITS // self._bits)
        self._lay_out(count, block, spec.codes_per_packet)

    def word_count(self, packet: int) -> int:
        """Words of the packet's lanes."""
        return words_for(self.span(packet)[1], self._bits)

    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Clip to -B..B, add B, so that lanes are not negative, and pack them."""
        return pack(np.clip(x, -self._bound, self._bound).astype(np.int32), self._bits, self._bound)

    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """Return the sums of the lanes, truncated to the element type; they are never divided."""
        return unpack(words, self._bits, count, self._bound, contributors).astype(self._dtype)
