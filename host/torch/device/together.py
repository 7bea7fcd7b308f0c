"""Several averages in place that travel as one: a bucket whose codec encodes it in pieces, each with blocks of its own.

    codes   | of part 0 | of part 1 | ...     one agreement for all of them
    words   | of part 0 | of part 1 | ...     cut into slots wherever a slot ends

One by one, each part would need an agreement on codes of its own, for which its words wait, and would leave a slot that
is hardly used, since a part's words fill whole slots but for a few blocks.

Rules
-----
* Every part has the bits that it has alone: its blocks, codes and words are its own, and words are added one by one.
* Parts begin at ALIGNED bytes in both buffers, as tensors do: kernels are compiled for that.
* The buffer of sums is as long as that of words, and slots come back in order. So a block is decoded behind the slot
  with its last word.
* Of wide sums, every part begins with a packet and every slot has whole ones, since a packet has one shift.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fanin.host.torch.device.arithmetic import Plan
from fanin.host.torch.device.launcher import ALIGNED
from fanin.host.torch.device.sight import Blocks
from fanin.host.torch.handles.call import Call
from fanin.protocol.wire import CODE_BYTES, WORD_BYTES

CODED = 0x400000
"""Bit of a signature for words that were made on a device, so that no sum of integers has the same signature."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the averages, and where its codes and words begin in the buffers of all."""

    call: Call
    plan: Plan
    first_code: int
    first_word: int

    @property
    def count(self) -> int:
        """Number of elements of the tensor."""
        return self.call.source.numel()

    @property
    def source(self) -> torch.Tensor:
        """The elements to be summed, flat."""
        return self.call.source.detach().reshape(-1)

    @property
    def residual(self) -> torch.Tensor | None:
        """The residual that is added, flat."""
        return None if self.call.residual is None else self.call.residual.detach().reshape(-1)

    def codes(self, every: torch.Tensor) -> torch.Tensor:
        """This part of the codes of all."""
        return every[self.first_code : self.first_code + self.plan.blocks(self.count)]

    def words(self, every: torch.Tensor) -> torch.Tensor:
        """This part of the words of all."""
        return every[self.first_word : self.first_word + self.plan.words(self.count)]

    def blocks_before(self, word: int) -> int:
        """Number of this part's blocks whose words all come before that word of the buffer."""
        own = word - self.first_word
        if own >= self.plan.words(self.count):
            return self.plan.blocks(self.count)
        return max(own, 0) // self.plan.words(self.plan.unit_elements) * self.plan.unit_blocks


@dataclass(frozen=True, slots=True)
class Decoding:
    """A run of a part's blocks whose sums have come together."""

    part: Part
    first_block: int
    words: slice
    """Place of the sums in the buffer of all."""
    elements: slice
    """Place of the values in the part's tensor."""


class Together:
    """The layout of several averages; the same on every rank."""

    def __init__(self, calls: Sequence[Call], plans: Sequence[Plan]) -> None:
        """`plans`: of each of the calls, whose words travel alike."""
        (self.travels_as,) = {plan.travels_as for plan in plans}
        """Word codec of all (`Plan.travels_as`)."""
        (self._packet_words,) = {plan.packet_words for plan in plans}
        self.parts: list[Part] = []
        code = word = 0
        for call, plan in zip(calls, plans, strict=True):
            code, word = aligned(code, CODE_BYTES), aligned(word, WORD_BYTES)
            part = Part(call, plan, code, word)
            self.parts.append(part)
            code, word = code + plan.blocks(part.count), word + plan.words(part.count)
        self.codes, self.words = code, word
        """Lengths of the buffers."""

    def words_within(self, most: int) -> int:
        """Words that go into a slot with room for `most`: of wide sums, those of whole packets."""
        return most - most % (self._packet_words or 1)

    @property
    def has_gaps(self) -> bool:
        """Whether some of what travels belongs to no part."""
        return self.codes > sum(each.plan.blocks(each.count) for each in self.parts) or self.words > sum(
            each.plan.words(each.count) for each in self.parts
        )

    @property
    def blocks(self) -> list[Blocks]:
        """The codes of each part, and the elements that they are of, which are counted through all parts."""
        firsts = itertools.accumulate((each.count for each in self.parts), initial=0)
        return [
            Blocks(each.first_code, first, each.count, each.plan.block_elements)
            for each, first in zip(self.parts, firsts, strict=False)
        ]

    def decodings(self, first: int, last: int) -> Iterator[Decoding]:
        """Blocks that can be decoded once words [first, last) have come and those before `first` are there."""
        for part in self.parts:
            begin, end = part.blocks_before(first), part.blocks_before(last)
            if end > begin:
                block, words = part.plan.block_elements, part.plan.words
                elements = slice(begin * block, min(end * block, part.count))
                place = slice(part.first_word + words(elements.start), part.first_word + words(elements.stop))
                yield Decoding(part, begin, place, elements)


def aligned(place: int, item_bytes: int) -> int:
    """The next place that is a multiple of ALIGNED bytes."""
    step = ALIGNED // item_bytes
    return -(-place // step) * step


def tag_of_all(calls: Sequence[Call], plans: Sequence[Plan]) -> int:
    """Tag of everything that ranks must agree in: the collective, its lanes, element types and counts."""
    said = 0
    for call, plan in zip(calls, plans, strict=True):
        text = f"{plan.element} {plan.up} {plan.down} {plan.block_elements} {call.source.numel()}"
        if call.draws is not None:
            text += " at random"
        said = zlib.crc32(text.encode(), said)
    return ((said & 0x3FFFFF | CODED) << 8 | calls[0].reduction(1.0).tag & 0xFF) & 0xFFFFFFFF


def each_of(actions: Sequence[Callable[[], None]]) -> None:
    """Call one after the other."""
    for action in actions:
        action()
