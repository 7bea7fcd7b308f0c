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
* One that fits into a packet with the age of a forecast (host/scale_forecast.py) `forecasts`: it has a single item,
  that carries codes and words in its first round, and takes a second one, of words, where the forecast was wrong.

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
from fanin.fixed_point import DTYPES, Codec, Codes
from fanin.host.scale_forecast import AGE_WORDS, Forecast, Shape
from fanin.job import JobSpec
from fanin.lanes import Words
from fanin.reduction import Reduction

AGREED = struct.Struct("!QQBBB")
"""What ranks must agree in, for the signature: ticket, count, element, lanes, tag."""


def memory(address: int, count: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """`count` elements at `address`, shape (count,), without a copy."""
    if not count:
        return np.empty(0, dtype)
    view = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.asarray(memoryview(view)).view(dtype)


def check(reduction: Reduction, spec: JobSpec) -> None:
    """Raise ConfigurationError for a reduction that would be computed wrongly."""
    element, size = reduction.element, reduction.element.bytes
    if element.floating and spec.largest_staleness and not reduction.scale_code:
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


@dataclass(slots=True, eq=False)
class Operation:
    """A submitted reduction, of which this machine carries out the chunks of one flow."""

    ticket: int
    reduction: Reduction
    spec: JobSpec
    flow: int
    flow_count: int
    first_item: int
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
        self.codec = Codec(asked.element, asked.lanes, self.spec.contributions)
        self.elements_per_chunk = self.codec.elements_per_packet(self.spec.words_per_packet)
        self.block_elements = self.elements_per_chunk // self.spec.codes_per_packet
        chunks_of_all_flows = -(-asked.count // self.elements_per_chunk)
        self.chunks = max(0, -(-(chunks_of_all_flows - self.flow) // self.flow_count))
        self.forecasts = (
            self.agrees
            and chunks_of_all_flows == 1
            and self.codec.words_for(asked.count) + AGE_WORDS <= self.spec.words_per_packet
            and self.spec.synchronous
        )
        self.lead = min(self.spec.slots, self.chunks) if self.agrees and not self.forecasts else 0
        self.unfinished_chunks = self.chunks
        agreed = self.ticket, asked.count, asked.element, self.codec.lanes, asked.tag
        self.signature = asked.signature or zlib.crc32(AGREED.pack(*agreed))

    # --- items ---

    @property
    def agrees(self) -> bool:
        """Whether the ranks agree on scale codes, chunk by chunk."""
        return self.reduction.element.floating and not self.reduction.scale_code

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
        return 0 if chunk is None else self.codec.words_for(self._span(chunk)[1])

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
        return self.codec.quantize(x, self._codes(chunk, agreed), self.block_elements, self.reduction.factor, residual)

    def store(self, chunk: int, agreed: Codes, words: Words, contributors: int) -> None:
        """Write a chunk's result to the destination, and what quantizing lost to the residual."""
        asked = self.reduction
        start, count = self._span(chunk)
        agreed = self._codes(chunk, agreed)
        if asked.counts:
            memory(asked.counts + 4 * (self.flow + chunk * self.flow_count), 1, np.uint32)[:] = contributors
        x, residual = self._inputs(chunk)
        if residual is not None:
            residual[:] = self.codec.residual_after(x, agreed, self.block_elements, asked.factor, residual)
        first = max(start, asked.keep_first)
        last = min(start + count, asked.keep_first + asked.kept)
        if first < last:
            divisor = asked.divisor or max(contributors, 1)
            result = self.codec.dequantize(words, agreed, self.block_elements, count, contributors, divisor)
            destination = memory(asked.destination, asked.kept, DTYPES[asked.element])
            destination[first - asked.keep_first : last - asked.keep_first] = result[first - start : last - start]

    def _span(self, chunk: int) -> tuple[int, int]:
        """First element and number of elements of a chunk."""
        start = (self.flow + chunk * self.flow_count) * self.elements_per_chunk
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
