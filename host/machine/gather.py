"""How an exact reduction (fanin/numerics/exact.py) lies in packets.

Rules of this file
------------------
* A packet has every rank's part of as many elements as fit, one part after another in the order of ranks. So each
  packet is a reduction of its own, stored when its result comes, and of any flow.
* Where a packet has less than one element's room for every rank (many ranks in a tree, or short packets) the reduction
  is `spread`: all ranks' words in one row, rank after rank, cut into packets. Its result is stored when the last packet
  is in, and all its packets travel in the first flow.
* In a job that goes on without workers it has lost, a word in front marks who has contributed: bit r, rank r. Nothing
  tells the zeros of a missing rank from a rank's zeros otherwise. A spread reduction holds whoever is in all packets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fanin.errors import ConfigurationError
from fanin.numerics.exact import EVERYBODY, elements_for, words_for
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import Element
from fanin.protocol.job import JobSpec

MAX_SPREAD_WORDS = 1 << 20
"""Words of a spread reduction, which every worker keeps until the last packet is in: 4 MiB."""


@dataclass(slots=True)
class Gather:
    """The packets of one exact reduction of `count` elements."""

    element: Element
    count: int
    spec: JobSpec
    place: int = 0
    """This worker's, among the ranks."""
    ranks: int = field(init=False)
    marks: int = field(init=False)
    """Words in front that say who has contributed: 0 or 1."""
    room: int = field(init=False)
    """Words behind them."""
    elements_per_packet: int = field(init=False)
    spread: bool = field(init=False)
    packets: int = field(init=False)
    present: int = field(init=False, default=EVERYBODY)
    """Spread: who was in all packets so far."""
    words: Words = field(init=False)
    """Spread: what has come."""

    def __post_init__(self) -> None:
        self.ranks = self.spec.all_workers
        self.marks = 0 if self.spec.synchronous else 1
        self.room = self.spec.words_per_packet - self.marks
        self.elements_per_packet = elements_for(self.element, self.room // self.ranks)
        self.spread = self.elements_per_packet == 0
        if not self.spread:
            self.packets = -(-self.count // self.elements_per_packet)
            return
        total = self.ranks * words_for(self.element, self.count)
        if total > MAX_SPREAD_WORDS:
            raise ConfigurationError(
                f"{self.count} elements of {self.ranks} ranks are too many to be reduced exactly in packets of "
                f"{self.spec.words_per_packet} words: take at most {MAX_SPREAD_WORDS * self.count // total}, "
                "or longer packets"
            )
        self.packets = -(-total // self.room)
        self.words = np.zeros(total, np.uint32)

    def word_count(self, packet: int) -> int:
        """Words in that packet."""
        if self.spread:
            return self.marks + min(self.room, len(self.words) - packet * self.room)
        count = min(self.elements_per_packet, self.count - packet * self.elements_per_packet)
        return self.marks + self.ranks * words_for(self.element, count)

    def contribution(self, packet: int, own: Words) -> Words:
        """The packet's words: `own`, of its elements, or of all where the reduction is spread, and zeros around."""
        words = np.zeros(self.word_count(packet), np.uint32)
        if self.marks:
            words[0] = 1 << self.place
        row = words[self.marks :]
        start = packet * self.room if self.spread else 0
        first = self.place * len(own)
        begin, end = max(start, first), min(start + len(row), first + len(own))
        if begin < end:
            row[begin - start : end - start] = own[begin - first : end - first]
        return words

    def marked(self, words: Words) -> int:
        """Who has contributed to a packet."""
        return int(words[0]) if self.marks else EVERYBODY

    def keep(self, packet: int, words: Words) -> None:
        """Spread: take in a packet's result."""
        row = words[self.marks :]
        self.words[packet * self.room : packet * self.room + len(row)] = row
        self.present &= self.marked(words)
