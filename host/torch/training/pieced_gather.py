"""One gather of quantized weights, in pieces: one is encoded, and another decoded, while a third travels.

Rules
-----
* A rank's part is cut into at most MAX_PIECES pieces of MIN_PIECE_ELEMENTS and more, at the same elements everywhere.
  Each is a collective of its own: what travels exactly, in the first one, then the codes.
* All are under way when `start` returns; `finish` decodes them as they arrive, which is in their order.
* A piece is encoded as the same elements of the whole are, so the weights do not depend on where they are cut.
* A `Coder` says where all of that happens: in the host's memory, or where the part lies (DeviceWeights). The bytes are
  the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.weight_codec import Loss, WeightCodec
from fanin.host.torch.handles.host_tensor import beside, copy_back, flat, on_host
from fanin.host.torch.handles.work import NO_TIMEOUT
from fanin.host.torch.training.shard_groups import Segment

MAX_PIECES = 6
"""Most pieces: the first one's encoding and the last one's decoding, a sixth of either, cannot overlap."""
MIN_PIECE_ELEMENTS = 128 << 10
"""Encoding fewer takes less than a collective of their own does; and where ranks share memory, packets are so long that
the ends of pieces would leave much of them empty."""
_ALIGNMENT = 8
"""Alignment of the codes behind the exact bytes."""
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""torch 2.13's name, or the one before."""


class Coder(Protocol):
    """A weight codec of tensors in one kind of memory."""

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Types of the elements that it decodes to without a copy."""

    def encode(
        self, x: torch.Tensor, into: torch.Tensor, random: Randomness, step: int, rank: int, *, first: int = 0
    ) -> Loss | torch.Tensor:
        """Encode x (`WeightCodec.encode`). Returns its loss, or squared norms of x and the error, shape (parts, 2)."""

    def decode_rows(self, encoded: torch.Tensor, into: torch.Tensor, *, first: int, count: int) -> None:
        """Decode rows (`WeightCodec.decode_rows`) into elements of any of `dtypes`."""


class HostCoder:
    """A weight codec of tensors in the host's memory."""

    dtypes = (torch.float32,)

    def __init__(self, codec: WeightCodec) -> None:
        self._codec = codec

    def encode(
        self, x: torch.Tensor, into: torch.Tensor, random: Randomness, step: int, rank: int, *, first: int = 0
    ) -> Loss:
        """Encode x in the host's memory (`WeightCodec.encode`)."""
        return self._codec.encode(x.numpy(), into.numpy(), random, step, rank, first=first)

    def decode_rows(self, encoded: torch.Tensor, into: torch.Tensor, *, first: int, count: int) -> None:
        """Decode rows in the host's memory (`WeightCodec.decode_rows`)."""
        self._codec.decode_rows(encoded.numpy(), into.numpy(), first=first, count=count)


class Losses:
    """Loss of the pieces of a gather; the part on a device is read when it is asked for."""

    def __init__(self) -> None:
        self._read, self._there = Loss(), list[torch.Tensor]()

    def add(self, found: Loss | torch.Tensor) -> None:
        """Add another piece's loss."""
        if isinstance(found, Loss):
            self._read.add(found)
        else:
            self._there.append(found)

    @property
    def nmse(self) -> float:
        """Normalized mean squared error of all pieces (Loss.nmse)."""
        for each in self._there:
            energy, lost = each.sum(dim=0, dtype=torch.float64).tolist()
            if energy - energy == lost - lost == 0:
                self._read.add(Loss(energy, lost))
        self._there.clear()
        return self._read.nmse


@dataclass(slots=True)
class _Piece:
    """Quantized elements [first, first + count) of every rank, behind `codes_at` bytes of other things."""

    first: int
    count: int
    codes_at: int
    work: Any = None
    gathered: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8, device="cpu"))
    """A row for each rank."""


class PiecedGather:
    """One gather of parts that are laid out alike on every rank."""

    def __init__(self, codec: WeightCodec, layout: list[Segment], on_device: Coder | None = None) -> None:
        """`layout`: of a rank's part. `on_device`: encodes where the part lies; None: the host does."""
        self._codec = codec
        self._coder: Coder = HostCoder(codec) if on_device is None else on_device
        self._on_device = on_device is not None
        self._layout = layout
        self._exact_bytes = sum(each.count * each.dtype.itemsize for each in layout if not each.quantized)
        count = sum(each.count for each in layout if each.quantized)
        self._pieces = [_Piece(first, stop - first, 0) for first, stop in _cuts(count, codec.block)]
        self._pieces[0].codes_at = -(-self._exact_bytes // _ALIGNMENT) * _ALIGNMENT
        self.payload_bytes = sum(self._bytes(each) for each in self._pieces)
        """Bytes that each rank contributes."""

    def start(self, part: torch.Tensor, group: Any, random: Randomness, step: int, rank: int) -> Losses:
        """Encode this rank's part, and send it piece by piece. `rank`: the owner's, as in `WeightCodec.encode`."""
        raw = (flat(part) if self._on_device else on_host(part)).view(torch.uint8)
        plain = all(each.quantized and each.dtype == torch.float32 for each in self._layout)
        floats = raw.view(torch.float32) if plain else None
        losses = Losses()
        ranks, place = group.size(), group.rank()
        for piece in self._pieces:
            piece.gathered = torch.empty(ranks, self._bytes(piece), dtype=torch.uint8, device=raw.device)
            encoded = piece.gathered[place]  # where it belongs, so that nobody has to copy it there
            if piece.codes_at:
                self._put_exact(raw, encoded[: piece.codes_at])
            x = self._floats(raw, piece) if floats is None else floats[piece.first :][: piece.count]
            losses.add(self._coder.encode(x, encoded[piece.codes_at :], random, step, rank, first=piece.first))
            piece.work = all_gather(piece.gathered.view(-1), encoded, group=group, async_op=True)
        return losses

    def is_completed(self) -> bool:
        """Whether all bytes are there."""
        return all(each.work.is_completed() for each in self._pieces)

    def finish(self, output: torch.Tensor, timeout: timedelta = NO_TIMEOUT) -> float:
        """Write every rank's part to `output`, one after the other; returns the seconds waited. It can be repeated.

        Raises what the collectives raise; `timeout` is for each of them.
        """
        there = output.detach() if self._on_device or output.is_cpu else beside(output)
        waited_s = 0.0
        parts = there.view(torch.uint8).view(len(self._pieces[0].gathered), -1)
        for piece in self._pieces:
            waited_s += wait(piece.work, timeout)
            if piece.codes_at:
                self._take_exact(piece.gathered, parts)
            self._decode(piece, piece.gathered[:, piece.codes_at :], parts)
            if piece.gathered.is_cuda:  # this stream may be another one than it was made on
                piece.gathered.record_stream(torch.cuda.current_stream(piece.gathered.device))
        if there.device != output.device:
            copy_back(output, there)
        return waited_s

    def _bytes(self, piece: _Piece) -> int:
        return piece.codes_at + self._codec.encoded_bytes(piece.count)

    def _exact(self) -> Iterator[tuple[slice, slice]]:
        """(where it lies in a part, where among the exact bytes) of each segment that travels exactly."""
        at = 0
        for each in self._layout:
            if not each.quantized:
                size = each.count * each.dtype.itemsize
                yield each.bytes, slice(at, at + size)
                at += size

    def _put_exact(self, raw: torch.Tensor, into: torch.Tensor) -> None:
        into[self._exact_bytes :] = 0
        for in_part, in_exact in self._exact():
            into[in_exact] = raw[in_part]

    def _take_exact(self, gathered: torch.Tensor, parts: torch.Tensor) -> None:
        for in_part, in_exact in self._exact():
            parts[:, in_part] = gathered[:, in_exact]

    def _segments(self, piece: _Piece) -> Iterator[tuple[Segment, int]]:
        """The quantized segments in a piece, each with its first element of the piece."""
        at = -piece.first
        for each in self._layout:
            if not each.quantized:
                continue
            first, stop = max(at, 0), min(at + each.count, piece.count)
            if first < stop:
                skipped = (first - at) * each.dtype.itemsize
                yield Segment(each.start_byte + skipped, stop - first, each.dtype, quantized=True), first
            at += each.count

    def _floats(self, raw: torch.Tensor, piece: _Piece) -> torch.Tensor:
        x = torch.empty(piece.count, dtype=torch.float32, device=raw.device)
        for each, at in self._segments(piece):
            # A copy, since behind elements of another size they need not be aligned.
            x[at : at + each.count] = raw[each.bytes].clone().view(each.dtype)
        return x

    def _decode(self, piece: _Piece, codes: torch.Tensor, parts: torch.Tensor) -> None:
        """Every rank's row of codes to its row of `parts`."""
        for each, at in self._segments(piece):
            into = parts[:, each.bytes]
            aligned = (into.storage_offset() | into.stride(0)) % each.dtype.itemsize == 0
            in_place = each.dtype in self._coder.dtypes and aligned
            if in_place:
                values = into.view(each.dtype)
            else:
                values = torch.empty(len(parts), each.count, dtype=torch.float32, device=parts.device)
            self._coder.decode_rows(codes, values, first=at, count=piece.count)
            if not in_place:
                into.copy_(values.to(each.dtype).view(torch.uint8))


def wait(work: Any, timeout: timedelta) -> float:
    """Wait for a collective; returns the seconds that the wait took."""
    started = time.perf_counter()
    work.wait() if timeout <= NO_TIMEOUT else work.wait(timeout)
    return time.perf_counter() - started


def _cuts(count: int, block: int) -> list[tuple[int, int]]:
    """(first, stop) of the pieces of so many elements, in whole blocks but for the last; one at least."""
    elements = max(-(-count // MAX_PIECES), MIN_PIECE_ELEMENTS)
    elements = -(-elements // block) * block
    return [(first, min(first + elements, count)) for first in range(0, count, elements)] or [(0, 0)]
