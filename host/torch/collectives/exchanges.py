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
* CUDA tensors are copied to the host by the call, and back by `wait`.
* What its caller waits for, between tensors that can be used as they lie, is one call into the engine, as the sums of
  ReduceCollectives.sum_at_once.
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
from fanin.host.torch.collectives.request import Request, tag_of
from fanin.host.torch.handles.host_tensor import as_bytes, beside, copy_back, on_host, plain
from fanin.host.torch.handles.overlap import apart
from fanin.host.torch.handles.work import CombinedWork, FaninWork, LocalWork, Tensors
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
    """Those of one group. Ranks are group ranks, timeouts seconds; the arguments have been checked."""

    def __init__(self, resources: GroupResources, *, at_once: bool = False) -> None:
        """`at_once`: the callers wait for each before they do anything else."""
        self._submit = resources.submit
        self._quick = resources.quick if at_once else None
        self._rank, self._size = resources.rank, resources.size
        self._completion = resources.completion

    def broadcast(self, tensor: torch.Tensor, root: int, timeout_s: float) -> FaninWork:
        """Every rank's tensor becomes the root's."""
        owns = self._rank == root
        host = on_host(tensor) if owns or plain(tensor) else beside(tensor)
        return self._one(
            "broadcast", (root,), host.nbytes,
            source=host if owns else _NOTHING, own_first=0,
            kept=None if owns else host,
            outputs=[tensor], timeout_s=timeout_s,
            finish=None if owns else _arrive(tensor, host),
        )  # fmt: skip

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, timeout_s: float) -> FaninWork:
        """`output` becomes all ranks' tensors, one after the other."""
        source = on_host(tensor)
        host = output.detach() if plain(output) else beside(output)
        if source.data_ptr() != host.data_ptr() + self._rank * source.nbytes:  # its own place is the one that may be
            source = apart(source, [host])
        return self._one(
            "all_gather", (source.nbytes,), host.nbytes,
            source=source, own_first=self._rank * source.nbytes, kept=host,
            outputs=[output], timeout_s=timeout_s,
            finish=_arrive(output, host),
        )  # fmt: skip

    def all_gather(self, outputs: Tensors, tensor: torch.Tensor, timeout_s: float) -> FaninWork:
        """`outputs[r]` becomes rank r's tensor; ranks' tensors may differ in size."""
        source = on_host(tensor)
        sizes = [output.nbytes for output in outputs]
        if max(sizes) < MIN_PART_BYTES:
            return self._gather_flat(outputs, source, sizes, timeout_s)
        hosts = [output.detach() if plain(output) else beside(output) for output in outputs]
        source = apart(source, [host for host in hosts if host.data_ptr() != source.data_ptr()])
        works = [
            self._one(
                "all_gather", (*sizes, owner), size,
                source=source if owner == self._rank else _NOTHING, own_first=0,
                kept=hosts[owner],
                outputs=[outputs[owner]], timeout_s=timeout_s, finish=_arrive(outputs[owner], hosts[owner]),
            )
            for owner, size in enumerate(sizes)
        ]  # fmt: skip
        return CombinedWork(works, self._completion, outputs, timeout_s)

    def _gather_flat(self, outputs: Tensors, source: torch.Tensor, sizes: Sequence[int], timeout_s: float) -> FaninWork:
        """The same through one buffer."""
        starts = [0, *accumulate(sizes)]
        flat = torch.empty(starts[-1], dtype=torch.uint8, device="cpu")

        def finish() -> None:
            for output, part in zip(outputs, flat.split(list(sizes)), strict=True):
                # A part may start at an address that the element type cannot have: bytes into a fresh tensor first.
                whole = torch.empty(output.shape, dtype=output.dtype, device="cpu")
                as_bytes(whole).copy_(part)
                copy_back(output, whole)

        return self._one(
            "all_gather", tuple(sizes), starts[-1],
            source=source, own_first=starts[self._rank], kept=flat,
            outputs=outputs, timeout_s=timeout_s, finish=finish,
        )  # fmt: skip

    def _one(
        self,
        name: str,
        agreed: tuple[int, ...],
        count: int,
        *,
        source: torch.Tensor,
        own_first: int,
        kept: torch.Tensor | None,
        outputs: Tensors,
        timeout_s: float,
        finish: Callable[[], None] | None,
    ) -> FaninWork:
        """One reduction of `count` bytes, of which this rank contributes `source`. All tensors are plain."""
        if count == 0:
            return LocalWork(self._completion, outputs)
        quick = self._quick
        if quick is not None and finish is None and quick.free:
            brief = (
                source.data_ptr(), 0 if kept is None else kept.data_ptr(), count, Element.UINT8, COPIED,
                tag_of(name, average=False, says=_said(agreed)),
                0, 0 if kept is None else count, own_first, source.nbytes,
            )  # fmt: skip
            return quick.at_once(name, brief, (source, kept), lambda: timeout_s)
        return self._submit(
            Request(
                name=name,
                source=as_bytes(source),
                count=count,
                own_first=own_first,
                kept=None if kept is None else as_bytes(kept),
                element=Element.UINT8,
                lanes=COPIED,
                says=_said(agreed),
                outputs=outputs,
                timeout_s=timeout_s,
                finish=finish,
            )
        )


@functools.lru_cache(maxsize=256)
def _said(agreed: tuple[int, ...]) -> int:
    """What stands in the signature for these numbers."""
    return zlib.crc32(struct.pack(f"!{len(agreed)}q", *agreed))


def _arrive(output: torch.Tensor, host: torch.Tensor) -> Callable[[], None] | None:
    """What brings a part from the host to the user's tensor, if anything must."""
    return None if host.data_ptr() == output.data_ptr() else lambda: copy_back(output, host)
