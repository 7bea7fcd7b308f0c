"""One reduction in progress: its memory, its numbers, and the chunks and items that it is cut into.

Rules of this file
------------------
* A chunk is what one packet carries: `elements_per_chunk` elements, the last one fewer. Flow f of F has the chunks
  f, f + F, f + 2F, ... of the array; `chunk` below counts those of this flow.
* A floating point chunk is quantized with scale codes that all workers have agreed on, so its codes travel `lead` items
  ahead of its words; the codes of the first chunks travel alone. An integer chunk needs none.
* With n chunks and a pool of P slots, item t (of `items`) is:

  | element  | lead      | items    | codes of chunk  | words of chunk        |
  |----------|-----------|----------|-----------------|-----------------------|
  | floating | min(P, n) | n + lead | t, where t < n  | t - lead, where >= 0  |
  | integer  | 0         | n        | none            | t                     |

  A floating point reduction with a scale code of its own (jobs with staleness) has the items of an integer one.
* One that fits into a packet with the age of a forecast (host/machine/scale_forecast.py) `forecasts`: it has a single
  item, that carries codes and words in its first round, and takes a second one, of words, where the forecast was wrong.
* An exact reduction (lanes = EXACT) has the items of an integer one, with host/machine/gather.py's packets for chunks.

* `source` is only read, and `destination` and `residual` are only written when a chunk's result is stored; so a chunk
  can be quantized again, to the same bits, until then, also where source and destination are the same memory.
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
from fanin.host.machine.gather import Gather
from fanin.host.machine.scale_forecast import AGE_WORDS, Forecast, Shape
from fanin.numerics import exact
from fanin.numerics.fixed_point import DTYPES, Codec, Codes
from fanin.numerics.lanes import WORD_BITS, Words
from fanin.numerics.reduction import EXACT, Reduction
from fanin.protocol.job import JobSpec

AGREED = struct.Struct("!QQBBB")
"""What ranks must agree in, for the signature: ticket, count, element, lanes (or operator), tag."""
EXACT_OPERATORS = 128
"""An exact reduction has this and its operator in the place of lanes."""


def memory(address: int, count: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """`count` elements at `address`, shape (count,), without a copy."""
    if not count:
        return np.empty(0, dtype)
    view = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.asarray(memoryview(view)).view(dtype)


def check(reduction: Reduction, spec: JobSpec) -> None:
    """Raise ConfigurationError for a reduction that would be computed wrongly."""
    element, size = reduction.element, reduction.element.bytes
    if reduction.lanes == EXACT:
        _check_exact(reduction, spec)
    elif element.floating and spec.largest_staleness and not reduction.scale_code:
        raise ConfigurationError("floating point through a job with staleness > 0: rounds would mix scales")
    if reduction.passes and element.floating and not reduction.scale_code:
        raise ConfigurationError("a pass has no part in agreeing on scale codes: give it a scale_code")
    if not element.floating and (reduction.divisor != 1.0 or reduction.factor != 1.0):
        raise ConfigurationError(f"{element.name} is summed exactly: divide or multiply it outside")
    in_place = reduction.source + reduction.keep_first * size
    ends_before = reduction.destination + reduction.kept * size <= reduction.source
    starts_after = reduction.destination >= reduction.source + reduction.count * size
    if reduction.kept and not (ends_before or starts_after or reduction.destination == in_place):
        raise ConfigurationError("destination overlaps source other than in place: reduce into separate memory")


def _check_exact(reduction: Reduction, spec: JobSpec) -> None:
    if spec.largest_staleness:
        raise ConfigurationError("an exact reduction through a job with staleness > 0: rounds would mix two of a rank")
    if spec.all_workers != spec.workers and not spec.places:
        raise ConfigurationError("an exact reduction in a tree needs the places of its workers (JobSpec.places)")


@dataclass(slots=True, eq=False)
class Operation:
    """A submitted reduction, of which this machine carries out the chunks of one flow."""

    ticket: int
    reduction: Reduction
    spec: JobSpec
    flow: int
    flow_count: int
    first_item: int
    place: int = 0
    """This worker's, among all of the job."""
    gather: Gather | None = field(init=False, default=None)
    """Of an exact reduction."""
    codec: Codec = field(init=False)
    signature: int = field(init=False)
    elements_per_chunk: int = field(init=False)
    block_elements: int = field(init=False)
    """Elements that share a scale code."""
    chunks: int = field(init=False)
    lead: int = field(init=False)
    unfinished_chunks: int = field(init=False)
    forecasts: bool = field(init=False)
    forecast: Forecast | None = field(init=False, default=None)
    """What the words of the first round were quantized with, once they were; they may have to be sent again."""

    def __post_init__(self) -> None:
        asked = self.reduction
        check(asked, self.spec)
        self.codec = Codec(asked.element, asked.lanes or WORD_BITS, self.spec.contributions)
        codes = self.spec.codes_per_packet
        self.block_elements = self.codec.elements_per_packet(self.spec.words_per_packet // codes)
        self.elements_per_chunk = self.block_elements * codes
        chunks_of_all_flows = -(-asked.count // self.elements_per_chunk)
        if asked.lanes == EXACT:
            self.gather = Gather(asked.element, asked.count, self.spec, self.place)
            chunks_of_all_flows, self.elements_per_chunk = self.gather.packets, self.gather.elements_per_packet
            if self.gather.spread:
                chunks_of_all_flows *= self.flow == 0
                self.flow, self.flow_count = 0, 1
        self.chunks = max(0, -(-(chunks_of_all_flows - self.flow) // self.flow_count))
        self.forecasts = (
            self.agrees
            and chunks_of_all_flows == 1
            and self.codec.words_for(asked.count) + AGE_WORDS <= self.spec.words_per_packet
            and self.spec.synchronous
        )
        self.lead = min(self.spec.slots, self.chunks) if self.agrees and not self.forecasts else 0
        self.unfinished_chunks = self.chunks
        lanes = EXACT_OPERATORS + asked.operator if self.gather else self.codec.lanes
        agreed = self.ticket, asked.count, asked.element, lanes, asked.tag
        self.signature = asked.signature or zlib.crc32(AGREED.pack(*agreed))

    # --- items ---

    @property
    def agrees(self) -> bool:
        """Whether the ranks agree on scale codes, chunk by chunk."""
        return self.reduction.element.floating and not self.reduction.scale_code and self.gather is None

    @property
    def items(self) -> int:
        """Items of this operation."""
        return self.chunks + self.lead

    @property
    def code_count(self) -> int:
        """Scale codes in every packet of this operation."""
        return self.spec.codes_per_packet if self.agrees else 0

    def codes_chunk(self, item: int) -> int | None:
        """The chunk whose codes the item carries, to be quantized with later."""
        chunk = item - self.first_item
        return chunk if self.lead and chunk < self.chunks else None

    def words_chunk(self, item: int) -> int | None:
        """The chunk whose words the item carries."""
        chunk = item - self.first_item - self.lead
        return chunk if chunk >= 0 else None

    def word_count(self, item: int) -> int:
        """Words in the packet of the item."""
        chunk = self.words_chunk(item)
        if chunk is None:
            return 0
        if self.gather is not None:
            return self.gather.word_count(self._packet(chunk))
        return self.codec.words_for(self._span(chunk)[1])

    @property
    def shape(self) -> Shape:
        """What reductions have in common that are likely to have the same scales."""
        return self.reduction.count, self.reduction.element, self.codec.lanes

    # --- numbers ---

    def own_codes(self, chunk: int) -> Codes:
        """This worker's scale codes of a chunk, shape (code_count,); what lies past the end of the array is 0."""
        x, residual = self._inputs(chunk)
        own = self.codec.codes(x, self.block_elements, self.reduction.factor, residual)
        return np.pad(own, (0, self.code_count - len(own)))

    def quantized(self, chunk: int, agreed: Codes) -> Words:
        """The words of a chunk under the agreed scale codes."""
        x, residual = self._inputs(chunk)
        if self.gather is not None:
            own = exact.encode(x, self.reduction.element, self.reduction.factor, residual)
            return self.gather.contribution(self._packet(chunk), own)
        return self.codec.quantize(x, self._codes(chunk, agreed), self.block_elements, self.reduction.factor, residual)

    def store(self, chunk: int, agreed: Codes, words: Words, contributors: int) -> None:
        """Write a chunk's result to the destination, and what quantizing lost to the residual."""
        asked = self.reduction
        if asked.counts:
            memory(asked.counts + 4 * self._packet(chunk), 1, np.uint32)[:] = contributors
        x, residual = self._inputs(chunk)
        if self.gather is not None:
            self._store_exact(self.gather, chunk, words, contributors)
            return
        start, count = self._span(chunk)
        agreed = self._codes(chunk, agreed)
        if residual is not None:
            residual[:] = self.codec.residual_after(x, agreed, self.block_elements, asked.factor, residual)
        first = max(start, asked.keep_first)
        last = min(start + count, asked.keep_first + asked.kept)
        if first < last:
            divisor = asked.divisor or max(contributors, 1)
            result = self.codec.dequantize(words, agreed, self.block_elements, count, contributors, divisor)
            self._write(result, start)

    def _store_exact(self, gather: Gather, chunk: int, words: Words, contributors: int) -> None:
        """The same of an exact reduction; of a spread one, with its last packet."""
        asked = self.reduction
        present, parts = gather.marked(words), words[gather.marks :]
        if gather.spread:
            gather.keep(chunk, words)
            if self.unfinished_chunks > 1:
                return
            present, parts = gather.present, gather.words
        x, residual = self._inputs(chunk)
        if residual is not None:
            residual[:] = exact.residual_after(x, asked.element, asked.factor, residual)
        start, count = self._span(chunk)
        divisor = asked.divisor or max(present.bit_count() if gather.marks else contributors, 1)
        codec = exact.ExactCodec(asked.element, asked.operator, gather.ranks)
        self._write(codec.decode(parts, count, divisor, present), start)

    def _write(self, result: npt.NDArray[Any], start: int) -> None:
        """Copy what is kept of elements from `start` on to the destination."""
        asked = self.reduction
        first, last = max(start, asked.keep_first), min(start + len(result), asked.keep_first + asked.kept)
        if first < last:
            destination = memory(asked.destination, asked.kept, DTYPES[asked.element])
            destination[first - asked.keep_first : last - asked.keep_first] = result[first - start : last - start]

    def _packet(self, chunk: int) -> int:
        """The number of a chunk of this flow among those of all."""
        return self.flow + chunk * self.flow_count

    def _span(self, chunk: int) -> tuple[int, int]:
        """First element and number of elements of a chunk, or of the array where packets are no whole elements."""
        if self.gather is not None and self.gather.spread:
            return 0, self.reduction.count
        start = self._packet(chunk) * self.elements_per_chunk
        return start, min(self.elements_per_chunk, self.reduction.count - start)

    def _codes(self, chunk: int, agreed: Codes) -> Codes:
        """The scale codes of a chunk's blocks: those agreed on (none for integers), or the one that was given."""
        blocks = -(-self._span(chunk)[1] // self.block_elements)
        if self.reduction.scale_code:
            return np.full(blocks, self.reduction.scale_code, np.uint16)
        return agreed[:blocks]

    def _inputs(self, chunk: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32] | None]:
        start, count = self._span(chunk)
        asked = self.reduction
        x = memory(asked.source + start * asked.element.bytes, count, DTYPES[asked.element])
        residual = memory(asked.residual + start * 4, count, np.float32) if asked.residual else None
        return x, residual
