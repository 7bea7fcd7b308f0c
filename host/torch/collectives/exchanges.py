"""Collectives that move tensors to all ranks, and add nothing, through the switch: broadcast and all_gather.

Rules
-----
* Every byte has one owner, who contributes it and gets a bare result; the other ranks pass, and receive the byte
  (fanin/numerics/reduction.py). So any element type arrives bit for bit.
* gather and scatter move each part from one rank to one other, which gloo does directly: through a switch they would
  take another hop, and twice the copies.
* An all_gather into a list is one reduction per part, directly into the tensors, where the largest part has
  MIN_PART_BYTES or more. Otherwise it is one reduction through a flat buffer, since each costs a packet and a round.
* Ranks must agree in the collective, its root and the sizes of all parts as far as each of them knows them: these are
  in the signature, and the switch refuses a rank with another one.
* The engine copies a rank's own part to its output; that part does not come back through the switch.
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
from fanin.host.torch.handles.call import Call, dtype_bits, tag_of
from fanin.host.torch.handles.host_tensor import as_bytes, copy_bytes_back, flat, room_for
from fanin.host.torch.handles.overlap import apart
from fanin.host.torch.handles.work import CombinedWork, FaninWork, LocalWork
from fanin.numerics.reduction import COPIED, Element

MIN_PART_BYTES = 64 << 10
"""Below this, a copy from or to the flat buffer costs less than a reduction of its own."""
_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


def carries(resources: GroupResources) -> bool:
    """Whether exchanges go through the switch: its rounds must wait for every rank, a part's only owner.

    With fallback="gloo", and in groups that continue without ranks, gloo carries them.
    """
    session = resources.session
    if session is None or resources.fallback is not None:
        return False
    # A leased job is always synchronous; reading its `spec` would join it.
    return isinstance(session, LeasedSession) or session.spec.synchronous


class Exchanges:
    """Exchanges of one group, whose arguments have been checked."""

    def __init__(self, resources: GroupResources) -> None:
        self._submit, self._fast_path = resources.submit, resources.fast_path
        self._rank, self._size = resources.rank, resources.size
        self._completion = resources.completion

    def broadcast(self, call: Call) -> FaninWork:
        """Every rank's tensor becomes the root's."""
        agreed = (call.root,)
        if self._rank == call.root:
            source = flat(call.source)
            return self._one(call, agreed, source.nbytes, source, 0, None, None)
        kept, finish = room_for(call.source)
        return self._one(call, agreed, kept.nbytes, _nothing(kept), 0, kept, finish)

    def all_gather_single(self, call: Call) -> FaninWork:
        """The output becomes all ranks' tensors, one after the other."""
        (output,) = call.outputs
        source, (kept, finish) = flat(call.source), room_for(output)
        own_first = self._rank * source.nbytes
        if source.data_ptr() != kept.data_ptr() + own_first:  # the input may be this rank's part of the output
            source = apart(source, [kept])
        return self._one(call, (source.nbytes,), kept.nbytes, source, own_first, kept, finish)

    def all_gather(self, call: Call) -> FaninWork:
        """`outputs[r]` becomes rank r's tensor; ranks' tensors may differ in size."""
        source, outputs = flat(call.source), call.outputs
        sizes = [output.nbytes for output in outputs]
        if max(sizes) < MIN_PART_BYTES:
            return self._gather_flat(call, source, sizes)
        rooms = [room_for(output) for output in outputs]
        source = apart(source, [room for room, _ in rooms if room.data_ptr() != source.data_ptr()])
        works = [
            self._one(
                call.but(outputs=[output], waits=False), (*sizes, owner), room.nbytes,
                source if owner == self._rank else _nothing(source), 0, room, finish,
            )
            for owner, (output, (room, finish)) in enumerate(zip(outputs, rooms, strict=True))
        ]  # fmt: skip
        return CombinedWork(works, self._completion, outputs, call.timeout)

    def _gather_flat(self, call: Call, source: torch.Tensor, sizes: Sequence[int]) -> FaninWork:
        """All-gather small parts by one reduction through a flat buffer."""
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
        """Submit one reduction of `total` bytes, of which this rank contributes `source`, at `own_first`.

        `agreed`: numbers that must be alike on all ranks. `kept`: memory for the whole result; None: not received. All
        tensors are dense and contiguous.
        """
        if total == 0:
            return LocalWork(self._completion, call.outputs)
        says = _said((*agreed, dtype_bits(call.source.dtype)))
        fast_path = self._fast_path
        if call.waits and fast_path is not None and finish is None and source.is_cpu and fast_path.may_submit_and_wait:
            packed = (
                source.data_ptr(), 0 if kept is None else kept.data_ptr(), total, Element.UINT8, COPIED,
                tag_of(call.collective, average=False, says=says),
                0, 0 if kept is None else total, own_first, source.nbytes, 1.0,
            )  # fmt: skip
            return fast_path.submit_and_wait(call.but(source=source, kept=kept), packed)
        return self._submit(
            call.but(
                source=as_bytes(source), kept=None if kept is None else as_bytes(kept), element=Element.UINT8,
                lanes=COPIED, total=total, own_first=own_first, says=says, finish=finish,
            )
        )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _said(agreed: tuple[int, ...]) -> int:
    """32 bits that stand for these numbers in a reduction's signature."""
    return zlib.crc32(struct.pack(f"!{len(agreed)}q", *agreed))


def _nothing(part: torch.Tensor) -> torch.Tensor:
    """An empty tensor on the device of `part`, for a rank that contributes nothing."""
    return _NOTHING if part.is_cpu else torch.empty(0, dtype=torch.uint8, device=part.device)
