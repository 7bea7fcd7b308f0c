"""FSDP2's all-gather of one parameter group: quantized bytes out, every rank's weights back.

Rules
-----
* Every rank decodes every shard, its own too, from the same bytes: the unsharded weights have the same bits everywhere,
  and the sharded ones, which the optimizer steps, stay as they are.
* The grid's shift is drawn by the number of reductions that the group has done, so the gathers of one forward and
  backward pass yield the same weights, on every replica of HSDP as well.
* Shards that `reshard_after_forward=int` has made hold decoded weights: they are gathered exactly, over a group of
  their own.
* With `keep_codes` the codes of a forward pass stay until the group's reduction, and backward decodes them again in the
  place of a second gather. The weights are those that forward computed with. Only a gather of forward is kept, and
  only one of backward is answered from it: whoever changes weights in between and runs forward again gathers them anew.
* A gather is under way when the call returns, whatever `async_op` says, and FSDP2 waits for it when it needs the
  weights: so its prefetching overlaps on the CPU, too. The thread that trains encodes and decodes, piece by piece
  beside the move (pieced_gather.py); of weights on a GPU it launches kernels that do, where Triton works on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.weight_codec import WeightCodec
from fanin.host.torch.handles.work import NO_TIMEOUT
from fanin.host.torch.training.device_codecs import weights_on_device
from fanin.host.torch.training.pieced_gather import Coder, Losses, PiecedGather, all_gather, wait
from fanin.host.torch.training.shard_groups import ShardGroup

_Work: Any = dist.Work


class Gathering(_Work):  # type: ignore[misc]
    """A gather that is under way; `wait` returns when the output holds the weights."""

    def __init__(self, arrived: Callable[[], bool], finish: Callable[[timedelta], None]) -> None:
        """`arrived`: whether the bytes are there. `finish` waits for them, and brings them to the output."""
        super().__init__()
        self._arrived = arrived
        self._finish: Callable[[timedelta], None] | None = finish

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Bring the weights to the output; returns True, or raises what the collective raises."""
        if self._finish is not None:
            with torch.no_grad():
                self._finish(timeout)
            self._finish = None  # and with it the bytes
        return True

    def is_completed(self) -> bool:
        """Whether the bytes are there."""
        return self._finish is None or self._arrived()


class ShardGather(AllGather):
    """The `AllGather` of one group. `codec` None: exact, but under way when the call returns."""

    def __init__(self, group: ShardGroup, codec: WeightCodec | None, keep_codes: bool = False) -> None:
        self._group = group
        self._codec = codec
        self._keep_codes = keep_codes
        self._kept: PiecedGather | None = None
        """The codes of all ranks, from a gather of forward until the reduction."""
        self._random = None if codec is None else Randomness(codec.seed, group.number)
        self.step = 0
        """Reductions that the group has done: what the shifts are drawn by."""
        self._counted_step = -1
        self.payload_bytes = 0
        """Bytes that this rank contributed to the gathers of the last step."""
        self.plain_bytes = 0
        """Bytes of these gathers without a codec."""
        self.gathers = 0
        self._on_device: tuple[Coder | None] | None = None
        """The coder on the weights' device, inside it None where the host encodes; None before the first gather."""
        self.loss = Losses()
        """Loss of the last quantized gather."""
        self.encode_s = self.decode_s = self.waited_s = 0.0
        """Seconds of the last step. Encoding includes the calls that send each piece."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Fresh memory, as torch's own."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Start the gather of the group's shards."""
        self._count(input_tensor.nbytes)
        if self._codec is None or self._group.is_secondary(group):
            self.payload_bytes += input_tensor.nbytes
            work = all_gather(output_tensor, input_tensor, group=group, async_op=True)
            return Gathering(work.is_completed, lambda timeout: self._waited(wait(work, timeout)))
        if self._kept is not None and self._group.in_backward:
            gather = self._kept
        else:
            gather = self._start(self._codec, input_tensor, group)
            self._kept = gather if self._keep_codes and self._group.gathers_again else None

        def finish(timeout: timedelta) -> None:
            started = time.perf_counter()
            waited_s = gather.finish(output_tensor, timeout)
            self._group.confirm()
            self._waited(waited_s)
            self.decode_s += time.perf_counter() - started - waited_s

        return Gathering(gather.is_completed, finish)

    def _start(self, codec: WeightCodec, tensor: torch.Tensor, group: Any) -> PiecedGather:
        started = time.perf_counter()
        if self._on_device is None:
            self._on_device = (weights_on_device(self._group.shards, codec, tensor.device),)
        gather = PiecedGather(codec, self._group.layout(tensor.numel(), tensor.dtype), *self._on_device)
        assert self._random is not None
        self.loss = gather.start(tensor, group, self._random, self.step, self._group.shards.rank())
        self.payload_bytes += gather.payload_bytes
        self.encode_s += time.perf_counter() - started
        return gather

    def reduced(self) -> None:
        """Count a reduction of the group, which begins, and drop kept codes: the weights are about to change."""
        self.step += 1
        self._kept = None

    def _waited(self, waited_s: float) -> None:
        self.waited_s += waited_s

    def _count(self, plain_bytes: int) -> None:
        if self._counted_step != self.step:
            self._counted_step = self.step
            self.payload_bytes = self.plain_bytes = self.gathers = 0
            self.encode_s = self.decode_s = self.waited_s = 0.0
        self.plain_bytes += plain_bytes
        self.gathers += 1
