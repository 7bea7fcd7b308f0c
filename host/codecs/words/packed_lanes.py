"""Lanes that were packed elsewhere, as on a GPU, and their sums as they come from the switch.

    elements of a packet, int32     in: | words of the contribution | read by nobody |
                                    out: | words of the sum | shift | 0 | 0 | 0 |

Words and shift are those of `WideSums` for the same packet, so a sum that is quantized and decoded elsewhere has the
same bits. Scale codes travel in a reduction of their own (host/torch/device). A reduction returns as many elements as
it takes, so a packet's contribution lies in the place of its sum; with U bits up it fills U / D of that place.

The shift takes SHIFT_WORDS words, so that the words of every packet are aligned as those of the first are. A last
packet of n elements has n - SHIFT_WORDS words of the sum. native/codecs/codec_packed_lanes.cpp is the twin.
"""

from __future__ import annotations

import numpy as np

from fanin.host.codecs.words.codec import Blocks
from fanin.host.codecs.words.wide_sums import require_accumulators
from fanin.numerics.fixed_point import Array, Codes, Residual
from fanin.numerics.lanes import Words, pack
from fanin.numerics.reduction import PACKED_LANES, Element, Operator
from fanin.numerics.wide_sums import lanes_for, largest
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import LaneField

SHIFT_WORDS = 4
"""Elements of a packet behind the words of its sum: its shift and zeros."""
_WIDTHS = {number: widths for widths, number in PACKED_LANES.items()}


def zeros_word(bits: int) -> int:
    """Return a word of wide sums whose lanes of `bits` bits all stand for 0."""
    return int(pack(np.zeros(1, np.int32), bits, largest(bits))[0])


class PackedLanes(Blocks):
    """Words of wide sums, whose elements somebody else quantizes and decodes."""

    name = "packed_lanes"
    numbers = tuple(PACKED_LANES.values())
    elements = frozenset({Element.INT32})
    lanes: LaneField

    def __init__(self, element: Element, lanes: int, count: int, spec: JobSpec, operator: Operator, place: int) -> None:
        """ConfigurationError where the switch adds whole words, or lanes hold the sum of fewer contributions."""
        require_accumulators(spec, _WIDTHS[lanes])
        self.number = lanes
        self.lanes = lanes_for(_WIDTHS[lanes], spec.contributions)
        self._lay_out(count, spec.words_per_packet + SHIFT_WORDS, 1)

    def word_count(self, packet: int) -> int:
        """Words of the packet's contribution, at least one."""
        return max(1, -(-_words_of(self.span(packet)[1]) * self.lanes.up // self.lanes.down))

    def encode(self, packet: int, x: Array, codes: Codes, factor: float, residual: Residual | None) -> Words:
        """Return the words of the contribution as they are."""
        return x[: self.word_count(packet)].view(np.uint32).copy()

    def decode(self, words: Words, count: int, codes: Codes, contributors: int, divisor: float) -> Array:
        """Decode a sum that was not narrowed, so its shift is 0."""
        return self.decode_narrowed(words, count, codes, contributors, divisor, 0)

    def decode_narrowed(
        self, words: Words, count: int, codes: Codes, contributors: int, divisor: float, shift: int
    ) -> Array:
        """Return the words and the shift, never divided; where nobody contributed, words whose lanes stand for 0."""
        summed = _words_of(count)
        result = np.zeros(count, np.uint32)
        result[:summed] = words[:summed] if contributors else zeros_word(self.lanes.down)
        result[summed] = shift
        return result.view(np.int32)


def _words_of(count: int) -> int:
    """Return how many of a packet's `count` elements are words of the sum."""
    return max(0, count - SHIFT_WORDS)
