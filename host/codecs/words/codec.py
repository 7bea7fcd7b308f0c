"""Word codecs: how the elements of one reduction become words that a switch adds, and sums of words elements.

Rules
-----
* A codec lays the elements out in packets. Usually a packet has `packet_elements` consecutive ones (`Blocks`); a codec
  that is not `divisible` has a layout of its own, and shards leave its reductions whole.
* Packets may carry a scale code for each `block_elements` elements: those of a `scaled` codec do. The switch takes the
  maximum over the workers, and what is encoded is encoded under that maximum.
* Codecs know nothing of slots, rounds and retransmission: the same packet may be encoded several times, to the same
  bits, and is decoded once.
* Every codec has a native twin, native/codecs/codec_*.cpp, that agrees with it bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from fanin.numerics.fixed_point import Array, Codes, Residual
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import Element, Operator
from fanin.numerics.spoilers import Marks, Spoiler
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import LaneField


class WordCodec(ABC):
    """The codec of one reduction. Arrays are one-dimensional; words and codes are in host order."""

    name: ClassVar[str] = ""
    """Name of the codec in both engines; empty for abstract classes."""
    numbers: ClassVar[tuple[int, ...]]
    """Values of `Reduction.lanes` that ask for it: bits per lane, EXACT, or from FIRST_NAMED_CODEC on."""
    elements: ClassVar[frozenset[Element]]
    """Element types that it carries."""
    divisible: ClassVar[bool] = True
    """Whether a reduction may be cut between packets into reductions of their own, to the same bits."""

    number: int
    """Must be alike on all ranks, 0..255: part of the signature that is in every packet."""
    packets: int
    """Packets of the reduction, over all flows."""
    packet_elements: int
    """Elements that a packet holds; the last packet may hold fewer."""
    block_elements: int
    """Elements that share a scale code."""
    scaled: bool = False
    """Whether the ranks agree on scale codes."""
    lanes: LaneField | None = None
    """Lane field of contributions whose lanes the switch adds up one by one; None for other codecs."""
    in_one_flow: bool = False
    """Whether all packets must travel in the first flow, since they are decoded together."""

    @abstractmethod
    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """Lay out `count` elements in packets; ConfigurationError for what the codec cannot carry.

        `place`: number of this worker among all workers of the job.
        """

    @abstractmethod
    def span(self, packet: int) -> tuple[int, int]:
        """Return (first, count) of the elements that a packet is encoded from and decoded to."""

    @abstractmethod
    def word_count(self, packet: int) -> int:
        """Words in that packet."""

    def result_word_count(self, packet: int) -> int:
        """Words in that packet's result."""
        words = self.word_count(packet)
        return self.lanes.result_words(words) if self.lanes else words

    def codes(self, x: Array, factor: float, residual: Residual | None) -> Codes:
        """Return this worker's scale codes of a packet's elements, one per block; none unless the codec is scaled."""
        return np.empty(0, np.uint16)

    @abstractmethod
    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Encode x * factor + residual, the elements of one packet, as words under the agreed codes."""

    def collect(self, packet: int, words: Words) -> Words | None:
        """Take the sum of one packet, and return the input of `decode`; None while that needs more packets."""
        return words

    @abstractmethod
    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """Return the elements that a sum stands for, divided by `divisor`; 0: by the number of contributors."""

    def decode_narrowed(
        self, words: Words, count: int, codes: Codes, contributors: int, divisor: float, shift: int
    ) -> Array:
        """Decode a sum that the switch has narrowed: its lanes stand for 2^shift each. Only for codecs with `lanes`."""
        assert not shift, f"{self.name} sums have no shift"
        return self.decode(words, count, codes, contributors, divisor)

    def mark(  # noqa: B027 - most codecs have no marks
        self, words: Words, x: Array, codes: Codes, factor: float, residual: Residual | None
    ) -> None:
        """Mark in a packet's encoded words the blocks that this worker has spoiled (fanin/numerics/spoilers.py)."""

    def spoilers(self, packet: int, words: Words, codes: Codes, contributors: int) -> list[Spoiler]:
        """Return the workers that have spoiled elements of a packet; `words`: as `collect` has returned them."""
        return []

    def residual_after(self, x: Array, codes: Codes, factor: float, residual: Residual) -> Residual:
        """Return what encoding loses of x * factor + residual. Only for float32, float16 and bfloat16."""
        raise NotImplementedError("error feedback is for float32, float16 and bfloat16")


class Blocks(WordCodec):
    """A codec whose packets have consecutive elements, in blocks of whole words."""

    marks: Marks | None = None
    """Marks of blocks that are not finite; None for codecs without scale codes."""

    def _lay_out(self, count: int, block_elements: int, blocks: int) -> None:
        self.count = count
        self.block_elements = block_elements
        self.packet_elements = block_elements * blocks
        self.packets = -(-count // self.packet_elements)

    def span(self, packet: int) -> tuple[int, int]:
        """The packet's range of consecutive elements, as (first, count)."""
        start = packet * self.packet_elements
        return start, min(self.packet_elements, self.count - start)

    def mark(self, words: Words, x: Array, codes: Codes, factor: float, residual: Residual | None) -> None:
        """Mark the blocks whose agreed code is not finite."""
        if self.marks is not None:
            self.marks.mark(words, codes, x, factor, residual)

    def spoilers(self, packet: int, words: Words, codes: Codes, contributors: int) -> list[Spoiler]:
        """Return the workers that have marked blocks of the packet."""
        return [] if self.marks is None else self.marks.read(words, codes, *self.span(packet), contributors)
