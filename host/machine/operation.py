"""One reduction in progress: its memory, its numbers, and the chunks and items that it is cut into.

Rules of this file
------------------
* A chunk is what one packet carries, which the codec (host/codecs/words) decides. Flow f of F has the packets
  f, f + F, f + 2F, ... of the array; `chunk` below counts those of this flow.
* A chunk of a scaled codec is encoded with scale codes that all workers have agreed on, so its codes travel `lead`
  items ahead of its words; the codes of the first chunks travel alone. Other codecs need none.
* With n chunks and a pool of P slots, item t (of `items`) is:

  | codec      | lead      | items    | codes of chunk  | words of chunk        |
  |------------|-----------|----------|-----------------|-----------------------|
  | scaled     | min(P, n) | n + lead | t, where t < n  | t - lead, where >= 0  |
  | not scaled | 0         | n        | none            | t                     |

  A reduction with a scale code of its own (jobs with staleness) has the items of one that is not scaled.
* One that fits into a packet with the age of a forecast (host/machine/scale_forecast.py) `forecasts`: it has a single
  item, that carries codes and words in its first round, and takes a second one, of words, where the forecast was wrong.

* Who contributes and who keeps is a rule of the reduction, and shows packet by packet:

  | the packet's elements                        | this worker         | its result is                               |
  |----------------------------------------------|---------------------|---------------------------------------------|
  | have owners, and none of them is its own     | passes              |                                             |
  | have owners, and some are its own            | sends those, and    |                                             |
  |                                              | zeros for the rest  |                                             |
  | have no owners                               | sends its own       |                                             |
  | some are kept, and not all of these its own  |                     | codes and words                             |
  | none are kept, or only its own               |                     | bare: codes, and no words (`keeps` is False) |

  Words of a packet with a block that is not finite are kept by all, so that all ranks learn who has spoiled it
  (fanin/numerics/spoilers.py). Floats that are summed exactly are kept by the ranks that they are for, and no others.

* `source` is only read, and `destination` and `residual` are only written when a chunk's result is stored; so a chunk
  can be encoded again, to the same bits, until then, also where source and destination are the same memory.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.host.codecs.words import codec_for
from fanin.host.codecs.words.codec import WordCodec
from fanin.host.machine.scale_forecast import AGE_WORDS, Forecast, Shape
from fanin.numerics.fixed_point import CODE_NOT_FINITE, DTYPES, Codes
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import EXACT, Operator, Reduction
from fanin.numerics.spoilers import Spoiler
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import LaneField

AGREED = struct.Struct("!QQBBI")
"""Facts that must be alike on every rank, hashed into the signature: ticket, count, element, codec's number, tag."""

_NO_CODES: Codes = np.empty(0, np.uint16)


def memory(address: int, count: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return a view of the `count` elements at `address`, shape (count,)."""
    if not count:
        return np.empty(0, dtype)
    view = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.asarray(memoryview(view)).view(dtype)


def check(reduction: Reduction, codec: WordCodec, spec: JobSpec) -> None:
    """Raise ConfigurationError for a reduction that would be computed wrongly."""
    element, size = reduction.element, reduction.element.bytes
    if reduction.own_count >= 0 and not spec.synchronous:  # a round that closed without the owner would bring zeros
        raise ConfigurationError(
            "gathers and broadcasts need rounds that wait for all workers: an owner may be missing"
        )
    if codec.scaled and spec.max_staleness and not reduction.scale_code:  # words of two scales do not add up
        raise ConfigurationError("floating point through a job with staleness > 0: rounds would mix scales")
    if reduction.passes and element.floating and not reduction.scale_code:
        raise ConfigurationError("a pass has no part in agreeing on scale codes: give it a scale_code")
    if not element.floating and (reduction.divisor != 1.0 or reduction.factor != 1.0):  # integers would be rounded
        raise ConfigurationError(f"{element.name} is summed exactly: divide or multiply it outside")
    given = reduction.count if reduction.own_count < 0 else reduction.own_count
    in_place = reduction.source + (reduction.keep_first - reduction.own_first) * size
    ends_before = reduction.destination + reduction.kept * size <= reduction.source
    starts_after = reduction.destination >= reduction.source + given * size
    # A chunk that is sent again would be read after it was written.
    if reduction.kept and given and not (ends_before or starts_after or reduction.destination == in_place):
        raise ConfigurationError("destination overlaps source other than in place: reduce into separate memory")


@dataclass(slots=True, eq=False)
class Operation:
    """One flow's share of a submitted reduction: its memory, its chunks and its items."""

    ticket: int
    reduction: Reduction
    spec: JobSpec
    flow: int
    flow_count: int
    first_item: int
    place: int = 0
    """Number of this worker among all workers of the job."""
    codec: WordCodec = field(init=False)
    signature: int = field(init=False)
    chunks: int = field(init=False)
    lead: int = field(init=False)
    unfinished_chunks: int = field(init=False)
    forecasts: bool = field(init=False)
    spoilers: dict[int, Spoiler] = field(init=False, default_factory=dict)
    """By place of a worker: the first of its elements that are known not to be finite."""
    forecast: Forecast | None = field(init=False, default=None)
    """Forecast that the words of the first round were quantized with, kept for repetitions; None before that."""

    def __post_init__(self) -> None:
        asked, spec = self.reduction, self.spec
        self.codec = codec_for(asked.element, asked.lanes, asked.count, spec, operator=asked.operator, place=self.place)
        check(asked, self.codec, spec)
        packets = self.codec.packets
        self.forecasts = (
            self.agrees
            and packets == 1
            and self.codec.word_count(0) + AGE_WORDS <= spec.words_per_packet
            and spec.synchronous
            and self.codec.lanes is None  # the age's words are summed as words are
        )
        if self.codec.in_one_flow:  # its packets are decoded together, and flows share nothing
            packets *= self.flow == 0
            self.flow, self.flow_count = 0, 1
        self.chunks = max(0, -(-(packets - self.flow) // self.flow_count))
        self.lead = min(spec.slots, self.chunks) if self.agrees and not self.forecasts else 0
        self.unfinished_chunks = self.chunks
        agreed = self.ticket, asked.count, asked.element, self.codec.number, asked.tag
        self.signature = asked.signature or zlib.crc32(AGREED.pack(*agreed))

    # --- items ---

    @property
    def agrees(self) -> bool:
        """Whether the ranks agree on scale codes, chunk by chunk."""
        return self.codec.scaled and not self.reduction.scale_code

    @property
    def items(self) -> int:
        """Items of this operation."""
        return self.chunks + self.lead

    @property
    def code_count(self) -> int:
        """Scale codes in every packet of this operation."""
        return self.spec.codes_per_packet if self.agrees else 0

    def codes_chunk(self, item: int) -> int | None:
        """The chunk whose codes the item carries, ahead of its words; None if it carries none."""
        chunk = item - self.first_item
        return chunk if self.lead and chunk < self.chunks else None

    def words_chunk(self, item: int) -> int | None:
        """The chunk whose words the item carries; None if it carries codes alone."""
        chunk = item - self.first_item - self.lead
        return chunk if chunk >= 0 else None

    def word_count(self, item: int) -> int:
        """Words in the packet of the item."""
        chunk = self.words_chunk(item)
        if chunk is None:  # codes travel alone
            return 0
        return self.codec.word_count(self._packet(chunk))

    def result_word_count(self, item: int) -> int:
        """Words in the result of the item."""
        chunk = self.words_chunk(item)
        return 0 if chunk is None else self.codec.result_word_count(self._packet(chunk))

    def passes(self, item: int) -> bool:
        """Whether this worker contributes nothing to the item."""
        chunk = self.words_chunk(item)
        if not self.owned or chunk is None:  # without owners the reduction passes as a whole
            return self.reduction.passes
        first, last = self._own(*self._elements(chunk))
        return first == last

    def keeps(self, item: int, agreed: Codes) -> bool:
        """Whether this worker needs the words of the item's result."""
        chunk = self.words_chunk(item)
        if chunk is None or self.forecasts:  # (no words; or words that say whether the forecast held)
            return True
        if self._spoiled(agreed):  # all are to hear who has spoiled it
            return True
        first, last = self._kept(*self._elements(chunk))
        own_first, own_last = self._own(first, last) if self.owned else (first, first)
        return last - first > own_last - own_first

    @property
    def sums_exactly(self) -> bool:
        """Whether the operation sums floats exactly, so that the words hold every rank's elements."""
        asked = self.reduction
        return asked.lanes == EXACT and asked.element.floating and asked.operator is Operator.SUM

    @property
    def owned(self) -> bool:
        """Whether every element has one worker that contributes it."""
        return self.reduction.own_count >= 0

    @property
    def lanes(self) -> LaneField | None:
        """Lane field of every contribution of this operation."""
        return self.codec.lanes

    @property
    def shape(self) -> Shape:
        """Count, element type and codec: reductions with the same shape are likely to have the same scales."""
        return self.reduction.count, self.reduction.element, self.codec.number

    # --- numbers ---

    def own_codes(self, chunk: int) -> Codes:
        """This worker's scale codes of a chunk, shape (code_count,); what lies past the end of the array is 0."""
        x, residual = self._inputs(chunk)
        own = self.codec.codes(x, self.reduction.factor, residual)
        return np.pad(own, (0, self.code_count - len(own)))

    def quantized(self, chunk: int, agreed: Codes) -> Words:
        """The words of a chunk under the agreed scale codes."""
        x, residual = self._inputs(chunk)
        codes = self._codes(chunk, agreed)
        words = self.codec.encode(self._packet(chunk), x, codes, self.reduction.factor, residual)
        if self._spoiled(agreed):
            self.codec.mark(words, x, codes, self.reduction.factor, residual)
        return words

    def note_arrivals(self, chunk: int, workers: int) -> None:
        """Note, where it is asked for, the bitmap of workers whose contributions or passes are in a chunk's round."""
        if self.reduction.arrivals:
            memory(self.reduction.arrivals + 4 * self._packet(chunk), 1, np.uint32)[:] = workers

    def store(self, chunk: int, agreed: Codes, words: Words | None, contributors: int, shift: int = 0) -> list[Spoiler]:
        """Write a chunk's result to the destination, and what quantizing lost to the residual.

        `words`: None where none are kept. `shift`: of a sum that the switch has narrowed. Returns the spoilers that
        were not known before, or only by later elements.
        """
        asked, packet = self.reduction, self._packet(chunk)
        if asked.counts:
            memory(asked.counts + 4 * packet, 1, np.uint32)[:] = contributors
        if self.owned:  # own bytes never travel back, so they are copied here
            self._keep_own(*self._elements(chunk))
        collected = None if words is None else self.codec.collect(packet, words)
        if collected is None and (words is not None or not asked.residual or self.codec.in_one_flow):
            return []
        start, count = self.codec.span(packet)
        codes = self._codes(chunk, agreed)
        x, residual = self._inputs(chunk)
        # Before the result is written: in place, that overwrites x.
        if residual is not None:
            residual[:] = self.codec.residual_after(x, codes, asked.factor, residual)
        first, last = self._kept(start, start + count)
        if collected is not None and first < last:
            y = self.codec.decode_narrowed(collected, count, codes, contributors, asked.divisor, shift)
            self._write(y, start)
        if collected is None or not (self.sums_exactly or self._spoiled(agreed)):
            return []
        return [each for each in self.codec.spoilers(packet, collected, codes, contributors) if self._is_news(each)]

    def _spoiled(self, agreed: Codes) -> bool:
        """Whether a block with one of these codes is not finite."""
        return self.agrees and bool((agreed == CODE_NOT_FINITE).any())

    def _is_news(self, spoiler: Spoiler) -> bool:
        """Remember a spoiler; return whether its worker was not known, or only by later elements."""
        known = self.spoilers.get(spoiler.place)
        if known is not None and known.first <= spoiler.first:
            return False
        self.spoilers[spoiler.place] = spoiler
        return True

    def _write(self, result: npt.NDArray[Any], start: int) -> None:
        """Copy the kept elements of `result`, which begins with element `start`, to the destination, but own ones."""
        asked = self.reduction
        first, last = self._kept(start, start + len(result))
        destination = memory(asked.destination, asked.kept, DTYPES[asked.element])
        own_first, own_last = self._own(first, last) if self.owned else (first, first)
        for begin, end in ((first, own_first), (own_last, last)):
            destination[begin - asked.keep_first : end - asked.keep_first] = result[begin - start : end - start]

    def _keep_own(self, start: int, end: int) -> None:
        """Copy what is kept of elements [start, end) that are this worker's own, unless they are in their place."""
        asked = self.reduction
        first, last = self._own(*self._kept(start, end))
        source = asked.source + first - asked.own_first
        destination = asked.destination + first - asked.keep_first
        if first < last and source != destination:
            memory(destination, last - first, np.uint8)[:] = memory(source, last - first, np.uint8)

    def _elements(self, chunk: int) -> tuple[int, int]:
        """The elements of a chunk: the first, and one past the last."""
        start, count = self.codec.span(self._packet(chunk))
        return start, start + count

    def _kept(self, first: int, last: int) -> tuple[int, int]:
        """The elements of [first, last) that are kept; an empty range is at the first that might have been."""
        begin = max(first, self.reduction.keep_first)
        return begin, max(begin, min(last, self.reduction.keep_first + self.reduction.kept))

    def _own(self, first: int, last: int) -> tuple[int, int]:
        """The elements of [first, last) that are this worker's; an empty range is at an end of that."""
        begin = min(max(first, self.reduction.own_first), last)
        end = max(begin, min(last, self.reduction.own_first + self.reduction.own_count))
        return begin, end

    def _packet(self, chunk: int) -> int:
        """The number of a chunk of this flow among those of all."""
        return self.flow + chunk * self.flow_count

    def _codes(self, chunk: int, agreed: Codes) -> Codes:
        """The scale codes of a chunk's blocks: those agreed on (none where not scaled), or the one that was given."""
        if not self.codec.scaled:  # integers need none
            return _NO_CODES
        blocks = -(-self.codec.span(self._packet(chunk))[1] // self.codec.block_elements)
        if self.reduction.scale_code:  # of a stale round, whose scale is its epoch's
            return np.full(blocks, self.reduction.scale_code, np.uint16)
        return agreed[:blocks]

    def _inputs(self, chunk: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32] | None]:
        start, count = self.codec.span(self._packet(chunk))
        asked = self.reduction
        if self.owned:
            first, last = self._own(start, start + count)
            x = np.zeros(count, DTYPES[asked.element])
            own = asked.source + (first - asked.own_first) * asked.element.bytes
            x[first - start : last - start] = memory(own, last - first, DTYPES[asked.element])
            return x, None
        x = memory(asked.source + start * asked.element.bytes, count, DTYPES[asked.element])
        residual = memory(asked.residual + start * 4, count, np.float32) if asked.residual else None
        return x, residual
