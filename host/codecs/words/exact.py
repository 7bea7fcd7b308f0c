"""Exact reductions (fanin/numerics/exact.py): every rank's elements in words of their own, side by side in packets.

    words = own elements, as they are, at this rank's place, and zeros around        the switch's sum is everybody's
    y = the operator over all ranks' elements, in the order of ranks, in float64, rounded once

Rules of this file
------------------
* A packet has every rank's part of as many elements as fit, one part after another in the order of ranks. So each
  packet is a reduction of its own, is stored when its result comes, and may travel in any flow.
* Where a packet has less than one element's room for every rank (many ranks in a tree, or short packets) the reduction
  is `spread`: all ranks' words in one row, rank after rank, cut into packets. Its result is stored when the last packet
  is in, and all its packets travel in the first flow.
* In a job that is not synchronous (it may go on without lost workers), a word in front marks who has contributed: bit
  r for rank r. Otherwise a missing rank's zeros would look like zeros of its own. A spread reduction takes the elements
  of the ranks that are in all of its packets.

native/codecs/codec_exact.cpp is the twin.
"""

from __future__ import annotations

import numpy as np

from fanin.errors import ConfigurationError
from fanin.host.codecs.words.codec import WordCodec
from fanin.numerics import exact
from fanin.numerics.fixed_point import Array, Codes, Residual
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import EXACT, Element, Operator
from fanin.numerics.spoilers import Spoiler
from fanin.protocol.job import JobSpec

MAX_SPREAD_WORDS = 1 << 20
"""Words of a spread reduction, which every worker keeps until the last packet is in: 4 MiB."""
FIRST_OPERATOR = 128
"""Number in the signature for operator 0, and FIRST_OPERATOR + o for operator o: ranks that differ are told so."""


class Exact(WordCodec):
    """Word codec for any element type and operator; it takes as many times the words as there are ranks."""

    name = "exact"
    numbers = (EXACT,)
    elements = frozenset(Element)
    divisible = False

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """ConfigurationError for rounds that mix contributions, and for a spread reduction that is too large."""
        _check(spec)
        self._element, self._operator, self._count, self._place = element, operator, count, place
        self.number = FIRST_OPERATOR + operator
        self._ranks = spec.total_workers
        self._marks = 0 if spec.synchronous else 1
        """Words at the front of a packet that mark who has contributed: 0 or 1."""
        self._room = spec.words_per_packet - self._marks
        """Words of a packet behind the marks."""
        self.packet_elements = self.block_elements = exact.elements_for(element, self._room // self._ranks)
        self.in_one_flow = self._spread = self.packet_elements == 0
        if not self._spread:
            self.packets = -(-count // self.packet_elements)
            return
        total = self._ranks * exact.words_for(element, count)
        if total > MAX_SPREAD_WORDS:
            raise ConfigurationError(
                f"{count} elements of {self._ranks} ranks are too many to be reduced exactly in packets of "
                f"{spec.words_per_packet} words. Remedy: take at most {MAX_SPREAD_WORDS * count // total}, or longer "
                "packets"
            )
        self.packets = self._missing = -(-total // self._room)
        self._present = exact.EVERYBODY
        """Bitmap of the workers that were in all packets so far."""
        self._row: Words = np.zeros(total, np.uint32)
        """The words that have come, shape (words of all ranks,)."""

    def span(self, packet: int) -> tuple[int, int]:
        """Return (first, count) of the packet's elements; of all elements if the reduction is spread."""
        if self._spread:
            return 0, self._count
        start = packet * self.packet_elements
        return start, min(self.packet_elements, self._count - start)

    def word_count(self, packet: int) -> int:
        """Marks, and all ranks' words."""
        if self._spread:
            return self._marks + min(self._room, len(self._row) - packet * self._room)
        return self._marks + self._ranks * exact.words_for(self._element, self.span(packet)[1])

    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Return the packet with this rank's mark, its words in their place, and zeros elsewhere."""
        own = exact.encode(x, self._element, factor, residual)
        words = np.zeros(self.word_count(packet), np.uint32)
        if self._marks:
            words[0] = 1 << self._place
        row = words[self._marks :]
        start = packet * self._room if self._spread else 0
        first = self._place * len(own)
        begin, end = max(start, first), min(start + len(row), first + len(own))
        if begin < end:
            row[begin - start : end - start] = own[begin - first : end - first]
        return words

    def collect(self, packet: int, words: Words) -> Words | None:
        """A packet decodes by itself; a spread reduction with its last one."""
        if not self._spread:
            return words
        row = words[self._marks :]
        self._row[packet * self._room : packet * self._room + len(row)] = row
        self._present &= self._marked(words)
        self._missing -= 1
        if self._missing:
            return None
        return np.concatenate([np.full(self._marks, self._present, np.uint32), self._row])

    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """All present ranks' elements, reduced in the order of ranks."""
        present = self._marked(words)
        by = divisor or max(present.bit_count() if self._marks else contributors, 1)
        codec = exact.ExactCodec(self._element, self._operator, self._ranks)
        return codec.decode(words[self._marks :], count, by, present)

    def spoilers(self, packet: int, words: Words, codes: Codes, contributors: int) -> list[Spoiler]:
        """Ranks whose elements are not finite, each with the first; of sums alone: a maximum may hold infinities."""
        if self._operator is not Operator.SUM or not self._element.floating:
            return []
        start, count = self.span(packet)
        codec = exact.ExactCodec(self._element, self._operator, self._ranks)
        found = codec.first_not_finite(words[self._marks :], count, self._marked(words))
        return [Spoiler(place, start + first, 1) for place, first in found]

    def residual_after(self, x: Array, codes: Codes, factor: float, residual: Residual) -> Residual:
        """Loss by rounding to the element type."""
        return exact.residual_after(x, self._element, factor, residual)

    def _marked(self, words: Words) -> int:
        """Bitmap of the workers that have contributed to a packet."""
        return int(words[0]) if self._marks else exact.EVERYBODY


def _check(spec: JobSpec) -> None:
    if spec.max_staleness:
        raise ConfigurationError(
            "an exact reduction through a job with staleness > 0: rounds would mix two of a rank. Remedy: staleness 0"
        )
    if spec.total_workers != spec.workers and not spec.places:
        raise ConfigurationError("an exact reduction in a tree needs the places of its workers", "JobSpec.places")
