"""Bytes as they are, each contributed by the one rank that owns it: the codec of gathers and broadcasts.

    word = four bytes, the first the least significant, zeros where another rank owns them    y = the sum's bytes

At most one contribution to a byte is not zero, so no addition carries, and each byte comes back as it was sent.
Elements of any type travel as their bytes. native/codecs/codec_copied.cpp is the twin.
"""

from __future__ import annotations

import numpy as np

from fanin.host.codecs.words.codec import Blocks
from fanin.numerics.fixed_point import Array, Codes, Residual
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import COPIED, Element, Operator
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import WORD_BYTES


class Copied(Blocks):
    """Word codec of bytes that are moved and not added."""

    name = "copied"
    numbers = (COPIED,)
    elements = frozenset({Element.UINT8})

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """Any number of workers is legal."""
        self.number = COPIED
        self._lay_out(count, spec.words_per_packet * WORD_BYTES, 1)

    def word_count(self, packet: int) -> int:
        """Words of the packet, four bytes each; the last word of the reduction is filled up with zeros."""
        return -(-self.span(packet)[1] // WORD_BYTES)

    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Pack the bytes into words, four in each."""
        return np.pad(x, (0, -len(x) % WORD_BYTES)).view("<u4").astype(np.uint32)

    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """Unpack the words into bytes, which are never divided."""
        return words.astype("<u4").view(np.uint8)[:count]
