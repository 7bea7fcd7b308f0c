"""Marks of the workers that have spoiled a block: a NaN or an infinity of theirs made its agreed code CODE_NOT_FINITE.

The words of such a block mean nothing: every worker writes NaN over it whatever they add up to, and senders fill them
with q = 0. So they carry marks, which a switch adds like any words. No switch needs to know of them: with software, P4
programs, leaves and shards alike, the packet that makes the block NaN also says who caused it.

Words that are added whole (lanes, float64). A block has n words, the job N workers in all, and this one place p:

    n >= N    word p += 1 + e                        e: the first element of the block that is not finite here
    n < N     word p div 32 += 2^(p mod 32)          if there is such a word; the element is not told

Lanes that are added one by one (wide sums), of U bits up and D down:

    lane p holds q = B_U instead of 0                if the block has such an element; the element is not told

A worker marks the block if its own code of it is CODE_NOT_FINITE, and leaves it as it is otherwise. The reader
subtracts what c contributions of zeros come to, and what is left is who has marked it: each word, or bit, has one
worker. A wide sum that shares its packet with finite blocks is narrowed with them, which may round a mark to 0: the
worker is not named then.

native/codecs/spoilers.hpp is the twin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fanin.numerics import lanes as lane_words
from fanin.numerics.fixed_point import CODE_NOT_FINITE, Array, Codec, Codes, Residual
from fanin.numerics.lanes import WORD_BITS, Words
from fanin.numerics.wide_sums import largest
from fanin.protocol.wire import LaneField


class Spoiler(NamedTuple):
    """A worker with an element that is not finite, one of [first, first + count) of what is summed."""

    place: int
    """Number of the worker among all workers of the job."""
    first: int
    count: int  # type: ignore[assignment]  # in the place of tuple.count, which nobody needs


class Marks:
    """Marks blocks for one worker, and reads the marks of all. Arrays are one-dimensional, words in host order."""

    def __init__(self, codec: Codec, block_elements: int, place: int, workers: int, lanes: LaneField | None = None):
        """`workers`: of all switches together. `lanes`: those of wide sums; None: words are added whole."""
        self._codec, self._block, self._place, self._workers, self._lanes = codec, block_elements, place, workers, lanes
        zeros = np.zeros(1, np.int32)
        self._blank = 0 if lanes else int(lane_words.pack(zeros, codec.lanes, codec.bound)[0])
        """A word of a contribution whose elements are all q = 0."""

    def mark(self, words: Words, codes: Codes, x: Array, factor: float, residual: Residual | None) -> None:
        """Mark in the `words` of a packet's elements the blocks that this worker has spoiled, by the agreed codes."""
        for number in np.flatnonzero(codes == CODE_NOT_FINITE).tolist():
            begin = number * self._block
            end = min(begin + self._block, len(x))
            owed = None if residual is None else residual[begin:end]
            own = np.flatnonzero(self._codec.codes(x[begin:end], 1, factor, owed) == CODE_NOT_FINITE)
            if len(own):
                self._mark(self._words_of(words, begin, end, self._lanes and self._lanes.up), end - begin, int(own[0]))

    def _mark(self, words: Words, elements: int, first: int) -> None:
        place = self._place
        if self._lanes is not None:
            per_word = WORD_BITS // self._lanes.up
            if place < elements:
                words[place // per_word] += np.uint32(
                    largest(self._lanes.up) << WORD_BITS - self._lanes.up * (place % per_word + 1)
                )
        elif len(words) >= self._workers:
            words[place] += np.uint32(1 + first)
        elif place // WORD_BITS < len(words):
            words[place // WORD_BITS] += np.uint32(1 << place % WORD_BITS)

    def read(self, words: Words, codes: Codes, start: int, count: int, contributors: int) -> list[Spoiler]:
        """Read the marks in the words of a packet's result; the packet has elements [start, start + count)."""
        found: list[Spoiler] = []
        if not contributors:
            return found
        for number in np.flatnonzero(codes == CODE_NOT_FINITE).tolist():
            begin = number * self._block
            end = min(begin + self._block, count)
            of_block = self._words_of(words, begin, end, self._lanes and self._lanes.down)
            found += self._read(of_block, start + begin, end - begin, contributors)
        return found

    def _read(self, words: Words, first: int, count: int, contributors: int) -> list[Spoiler]:
        if self._lanes is not None:
            down = self._lanes.down
            steps = lane_words.unpack(words, down, min(count, self._workers), largest(down), 1)
            return [Spoiler(place, first, count) for place in np.flatnonzero(steps).tolist()]
        marks = words - np.uint32(contributors * self._blank & 0xFFFFFFFF)
        if len(words) >= self._workers:
            told = marks[: self._workers].tolist()
            exactly = [(place, mark - 1) for place, mark in enumerate(told) if mark]
            return [
                Spoiler(place, first + at, 1) if at < count else Spoiler(place, first, count) for place, at in exactly
            ]
        places = [
            WORD_BITS * at + bit for at, mark in enumerate(marks.tolist()) for bit in range(32) if mark >> bit & 1
        ]
        return [Spoiler(place, first, count) for place in places if place < self._workers]

    def _words_of(self, words: Words, begin: int, end: int, lanes: int | None) -> Words:
        """The words of a packet that hold elements [begin, end), a block."""
        if lanes:
            return words[lane_words.words_for(begin, lanes) : lane_words.words_for(end, lanes)]
        return words[self._codec.words_for(begin) : self._codec.words_for(end)]
