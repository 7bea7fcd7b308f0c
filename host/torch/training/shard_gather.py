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
  weights: so its prefetching overlaps on the CPU, too. Decoding is done by the thread that waits.
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
from fanin.host.codecs.weight_codec import Bytes, Loss, WeightCodec
from fanin.host.torch.collectives.work import NO_TIMEOUT
from fanin.host.torch.training.shard_groups import Segment, ShardGroup

_ALIGNMENT = 8
"""Of the codes behind the exact bytes."""
_Work: Any = dist.Work
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""torch 2.13's name, or the one before."""


class Gathering(_Work):  # type: ignore[misc]
    """A gather that is under way; `wait` returns when the output holds the weights."""

    def __init__(self, work: Any, finish: Callable[[float], None]) -> None:
        """`finish` gets the seconds that were waited. `work` None: the bytes are there."""
        super().__init__()
        self._work = work
        self._finish: Callable[[float], None] | None = finish

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """True, or raises what the collective raises."""
        started = time.perf_counter()
        if self._work is not None:
            self._work.wait() if timeout <= NO_TIMEOUT else self._work.wait(timeout)
        if self._finish is not None:
            finish, self._finish = self._finish, None
            with torch.no_grad():
                finish(time.perf_counter() - started)
        return True

    def is_completed(self) -> bool:
        """Whether the bytes are there."""
        return self._work is None or bool(self._work.is_completed())


class ShardGather(AllGather):
    """The `AllGather` of one group. `codec` None: exact, but under way when the call returns."""

    def __init__(self, group: ShardGroup, codec: WeightCodec | None, keep_codes: bool = False) -> None:
        self._group = group
        self._codec = codec
        self._keep_codes = keep_codes
        self._kept: torch.Tensor | None = None
        """The codes of all ranks, from a gather of forward until the reduction."""
        self._random = None if codec is None else Randomness(codec.seed, group.number)
        self.step = 0
        """Reductions that the group has done: what the shifts are drawn by."""
        self._counted_step = -1
        self.payload_bytes = 0
        """That this rank contributed to the gathers of the last step."""
        self.plain_bytes = 0
        """The same without codec."""
        self.gathers = 0
        self.loss = Loss()
        """Of the last quantized gather."""
        self.encode_s = self.decode_s = self.waited_s = 0.0
        """In the last step."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Fresh memory, as torch's own."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Start it."""
        self._count(input_tensor.nbytes)
        if self._codec is None or self._group.is_secondary(group):
            self.payload_bytes += input_tensor.nbytes
            work = _all_gather(output_tensor, input_tensor, group=group, async_op=True)
            return Gathering(work, self._waited)
        started = time.perf_counter()
        layout = self._group.layout(input_tensor.numel(), input_tensor.dtype)
        codec, work = self._codec, None
        if self._kept is not None and self._group.in_backward:
            gathered = self._kept
        else:
            encoded = self._encode(codec, input_tensor, layout)
            gathered = torch.empty(group.size() * len(encoded), dtype=torch.uint8)
            self.payload_bytes += len(encoded)
            self.encode_s += time.perf_counter() - started
            work = _all_gather(gathered, encoded, group=group, async_op=True)
            self._kept = gathered if self._keep_codes and self._group.gathers_again else None

        def finish(waited_s: float) -> None:
            self._waited(waited_s)
            started = time.perf_counter()
            self._decode(codec, gathered.view(group.size(), -1), output_tensor, layout)
            self.decode_s += time.perf_counter() - started

        return Gathering(work, finish)

    def reduced(self) -> None:
        """The group's reduction begins: its weights are about to change."""
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

    def _encode(self, codec: WeightCodec, tensor: torch.Tensor, layout: list[Segment]) -> torch.Tensor:
        """Exact segments, then the codes of all others."""
        exact, codes_at, count = _sizes(layout)
        host = tensor.detach().cpu()
        raw = host.view(torch.uint8)
        encoded = torch.empty(codes_at + codec.encoded_bytes(count), dtype=torch.uint8)
        encoded[exact:codes_at] = 0
        x = host if _is_plain(layout) else torch.empty(count, dtype=torch.float32)
        exact_at = at = 0
        for each in layout:
            if not each.quantized:
                part = raw[each.bytes]
                encoded[exact_at : exact_at + len(part)] = part
                exact_at += len(part)
            elif x is not host:
                x[at : at + each.count] = _typed(raw[each.bytes], each.dtype)
                at += each.count
        assert self._random is not None
        rank = self._group.shards.rank()
        self.loss = codec.encode(x.numpy(), encoded[codes_at:].numpy(), self._random, self.step, rank)
        return encoded

    def _decode(self, codec: WeightCodec, gathered: torch.Tensor, output: torch.Tensor, layout: list[Segment]) -> None:
        _, codes_at, count = _sizes(layout)
        host = output.detach() if output.device.type == "cpu" else torch.empty_like(output, device="cpu")
        of_ranks = host.view(torch.uint8).view(len(gathered), -1)
        for own, raw in zip(gathered, of_ranks, strict=True):
            codes: Bytes = own[codes_at:].numpy()
            exact_at = at = 0
            for each in layout:
                into = raw[each.bytes]
                if not each.quantized:
                    into.copy_(own[exact_at : exact_at + len(into)])
                    exact_at += len(into)
                    continue
                whole = each.dtype == torch.float32 and into.storage_offset() % each.dtype.itemsize == 0
                values = into.view(torch.float32) if whole else torch.empty(each.count, dtype=torch.float32)
                codec.decode(codes, values.numpy(), first=at, count=count)
                if not whole:
                    into.copy_(values.to(each.dtype).view(torch.uint8))
                at += each.count
        if host.device != output.device:
            output.copy_(host)


def _sizes(layout: list[Segment]) -> tuple[int, int, int]:
    """Bytes of exact segments, where the codes begin, and elements that are quantized."""
    exact = sum(each.count * each.dtype.itemsize for each in layout if not each.quantized)
    return exact, -(-exact // _ALIGNMENT) * _ALIGNMENT, sum(each.count for each in layout if each.quantized)


def _is_plain(layout: list[Segment]) -> bool:
    """Whether everything is float32 to be quantized, so that nothing need be copied."""
    return all(each.quantized and each.dtype == torch.float32 for each in layout)


def _typed(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as elements; a copy, since behind elements of another size they need not be aligned."""
    return raw.clone().view(dtype)
