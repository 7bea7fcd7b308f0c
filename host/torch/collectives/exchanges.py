"""Collectives that move tensors to all ranks, and add nothing, through the switch: broadcast and all_gather.

Rules
-----
* Every byte has one owner, who contributes it; the others pass, and get it. The owner has it, and gets a bare result
  (fanin/numerics/reduction.py). So any element type arrives as it was.
* gather and scatter move each part from one rank to one other, which gloo does directly: through a switch they would
  take another hop, and twice the copies.
* An all_gather into a list is one reduction per part, to the tensors themselves, where a part has MIN_PART_BYTES or
  more, and otherwise one, through a flat buffer: each reduction costs a packet and a round.
* Ranks must agree in the collective, its root and the sizes of all parts as far as each of them knows them: that is in
  the signature, and the switch refuses who does not.
* A rank's own part never leaves its host for its own sake: the engine copies it.
* CUDA tensors pass through pinned memory in pieces, as sums do (host/torch/device).
* An exchange that its caller waits for, between tensors that can be used as they lie, is one call into the engine
  (SwitchReducer.submit_and_wait).
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from fanin.host.session.leased import LeasedSession
from fanin.host.torch.collectives.group_resources import GroupResources
from fanin.host.torch.handles.call import Call, tag_of
from fanin.host.torch.handles.host_tensor import as_bytes, copy_back, copy_bytes_back, flat, lies_flat
from fanin.host.torch.handles.overlap import apart
from fanin.host.torch.handles.work import CombinedWork, FaninWork, LocalWork
from fanin.numerics.reduction import COPIED, Element

MIN_PART_BYTES = 64 << 10
"""Below this, a copy from or to the flat buffer costs less than a reduction of its own."""
_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


def carries(resources: GroupResources) -> bool:
    """Whether the group's switch does these: where every round waits for every rank, who may be a part's only owner.

    With fallback="gloo", and in groups that go on without ranks, gloo does.
    """
    session = resources.session
    if session is None or resources.fallback is not None:
        return False
    # A lease is of a synchronous job; to ask for its shape would join it.
    return isinstance(session, LeasedSession) or session.spec.synchronous


class Exchanges:
    """Exchanges of one group, whose arguments have been checked."""

    def __init__(self, resources: GroupResources) -> None:
        self._submit, self._fast_path = resources.submit, resources.fast_path
        self._rank, self._size = resources.rank, resources.size
        self._completion = resources.completion

    def broadcast(self, call: Call) -> FaninWork:
        """Every rank's tensor becomes the root's."""
        tensor, owns = call.source, self._rank == call.root
        moved = flat(tensor) if owns else _room_for(tensor)
        return self._one(
            call, (call.root,), moved.nbytes, moved if owns else _nothing(moved), 0, None if owns else moved,
            None if owns else _arrive(tensor, moved),
        )  # fmt: skip

    def all_gather_single(self, call: Call) -> FaninWork:
        """The output becomes all ranks' tensors, one after the other."""
        (output,) = call.outputs
        source, kept = flat(call.source), _room_for(output)
        own_first = self._rank * source.nbytes
        if source.data_ptr() != kept.data_ptr() + own_first:  # its own place is the one that may be
            source = apart(source, [kept])
        return self._one(call, (source.nbytes,), kept.nbytes, source, own_first, kept, _arrive(output, kept))

    def all_gather(self, call: Call) -> FaninWork:
        """`outputs[r]` becomes rank r's tensor; ranks' tensors may differ in size."""
        source, outputs = flat(call.source), call.outputs
        sizes = [output.nbytes for output in outputs]
        if max(sizes) < MIN_PART_BYTES:
            return self._gather_flat(call, source, sizes)
        rooms = [_room_for(output) for output in outputs]
        source = apart(source, [room for room in rooms if room.data_ptr() != source.data_ptr()])
        works = [
            self._one(
                call.but(outputs=[output], waits=False), (*sizes, owner), room.nbytes,
                source if owner == self._rank else _nothing(source), 0, room, _arrive(output, room),
            )
            for owner, (output, room) in enumerate(zip(outputs, rooms, strict=True))
        ]  # fmt: skip
        return CombinedWork(works, self._completion, outputs, call.timeout_s)

    def _gather_flat(self, call: Call, source: torch.Tensor, sizes: Sequence[int]) -> FaninWork:
        """The same through one buffer."""
        starts = [0, *accumulate(sizes)]
        whole = torch.empty(starts[-1], dtype=torch.uint8, device=source.device)

        def finish() -> None:
            for output, part in zip(call.outputs, whole.split(list(sizes)), strict=True):
                copy_bytes_back(output, part)

        return self._one(call, tuple(sizes), starts[-1], source, starts[self._rank], whole, finish)

    def _one(
        self, call: Call, agreed: tuple[int, ...], total: int, source: torch.Tensor, own_first: int,
        kept: torch.Tensor | None, finish: Callable[[], None] | None,
    ) -> FaninWork:  # fmt: skip
        """One reduction of `total` bytes, of which this rank contributes `source`. All tensors are plain."""
        if total == 0:
            return LocalWork(self._completion, call.outputs)
        fast_path = self._fast_path
        if call.waits and fast_path is not None and finish is None and source.is_cpu and fast_path.free:
            packed = (
                source.data_ptr(), 0 if kept is None else kept.data_ptr(), total, Element.UINT8, COPIED,
                tag_of(call.collective, average=False, says=_said(agreed)),
                0, 0 if kept is None else total, own_first, source.nbytes,
            )  # fmt: skip
            return fast_path.submit_and_wait(call.but(kept=(source, kept)), packed)
        return self._submit(
            call.but(
                source=as_bytes(source), kept=None if kept is None else as_bytes(kept), element=Element.UINT8,
                lanes=COPIED, total=total, own_first=own_first, says=_said(agreed), finish=finish,
            )
        )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _said(agreed: tuple[int, ...]) -> int:
    """The signature of these numbers."""
    return zlib.crc32(struct.pack(f"!{len(agreed)}q", *agreed))


def _room_for(output: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for a part, where the user's tensor lies: its own if that is contiguous."""
    if lies_flat(output):
        return output.detach()
    return torch.empty(output.shape, dtype=output.dtype, device=output.device)


def _nothing(part: torch.Tensor) -> torch.Tensor:
    """No bytes, in the memory where others have a part."""
    return _NOTHING if part.is_cpu else torch.empty(0, dtype=torch.uint8, device=part.device)


def _arrive(output: torch.Tensor, room: torch.Tensor) -> Callable[[], None] | None:
    """Action that copies a part to the user's tensor; None where the part is there already."""
    return None if room.data_ptr() == output.data_ptr() else lambda: copy_back(output, room)
