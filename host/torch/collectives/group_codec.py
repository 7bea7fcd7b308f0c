"""A codec for every large sum of a group (Options.codec)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from fanin.errors import ConfigurationError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Stages, sums_of
from fanin.host.torch.collectives.routing import AVG, ELEMENTS, QUANTIZED, SUM
from fanin.host.torch.device.encoder import DeviceEncoder
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.host_tensor import copy_back, lies_flat
from fanin.numerics.reduction import QUANTIZED_LANES

if TYPE_CHECKING:
    from fanin.host.torch.collectives.group_resources import GroupResources


Key = TypeVar("Key")
Kept = TypeVar("Kept")


def codec_of_group(text: str, rank: int, size: int) -> Codec:
    """Make the codec of one stage, without memory, by which a group of `size` ranks sums; one rank makes no sums.

    Raises ConfigurationError for a codec that does not exist, needs several stages, chooses by parameter, or holds too
    few workers.
    """
    codec = make(text).without_memory()
    if not codec.single_stage:
        raise ConfigurationError(
            f"codec = {text!r} sums in several stages, which one collective cannot. Remedy: use "
            "model.register_comm_hook(CodecState(...), codec_hook), or a codec of one stage"
        )
    if codec.several_sums:
        raise ConfigurationError(
            f"codec = {text!r} chooses by parameter, which a collective does not know. Remedy: use "
            "model.register_comm_hook(CodecState(..., model=model), codec_hook), or another codec"
        )
    if size > 1:
        codec.encoder(Place(rank, size, ()))
    return codec


class GroupCodec:
    """Options.codec: every large sum or average of floats through a codec of one stage that keeps no residual.

    Steps are counted by calls, which are the same on every rank, so random numbers agree.
    """

    MAX_ENCODERS = 64
    """Encoders that are kept, one per size of a tensor (and device); beyond these the oldest is dropped."""

    def __init__(self, codec: Codec, resources: GroupResources) -> None:
        """Sum by a codec that `codec_of_group` has made."""
        self._codec, self._rank, self._size = codec, resources.rank, resources.size
        self._smallest = resources.options.largest_exact(resources.size) + 1
        self._encoders: dict[int, Encoder] = {}
        plan = codec.device_plan(resources.size)
        self._plan = plan if plan is not None and plan.lanes in QUANTIZED_LANES else None
        """Plan of the arithmetic on a device; None: the host encodes tensors on devices, too."""
        self._device_encoders: dict[tuple[torch.device, int], DeviceEncoder] = {}
        self._resources = resources
        self._step = 0

    def takes(self, call: Call) -> bool:
        """Whether a reduction goes through the codec."""
        tensor, op = call.source, call.op
        return (
            tensor.dtype in QUANTIZED
            and tensor.layout is torch.strided
            and tensor.numel() >= self._smallest
            # Not `in`, which compares the other way around: a RedOpType does not know a ReduceOp.
            and any(op == each for each in (SUM, AVG))
        )

    def encoded(self, call: Call) -> Call:
        """Encode an all-reduce in place: returns the call to submit for it, before another is encoded.

        Encoders remember the order of the sums.
        """
        encoder = self._device_encoder(call.source) if lies_flat(call.source) else None
        if encoder is None:
            return self._by_host(call)
        asked = encoder.begin(call.source.detach().view(-1), self._step)
        self._step += 1
        return self._summing(call, asked.values, asked.lanes, asked.finish)

    def _by_host(self, call: Call) -> Call:
        tensor = call.source
        x: Floats = np.empty(tensor.numel(), np.float32)
        flat = torch.from_numpy(x)
        flat.copy_(tensor.detach().reshape(-1))
        stages: Stages = self._encoder(len(x)).reduce(x, self._step)
        self._step += 1
        (asked,) = sums_of(next(stages))

        def finish() -> None:
            next(stages, None)
            copy_back(tensor, flat.view(tensor.shape))

        residual = None if asked.residual is None else torch.from_numpy(asked.residual)
        return self._summing(call, torch.from_numpy(asked.values), asked.lanes, finish).but(residual=residual)

    @staticmethod
    def _summing(call: Call, values: torch.Tensor, lanes: int, finish: Callable[[], None] | None) -> Call:
        return call.but(
            source=values, kept=values, element=ELEMENTS[values.dtype], lanes=lanes, average=call.op == AVG,
            finish=finish,
        )  # fmt: skip

    def _encoder(self, count: int) -> Encoder:
        return self._kept(self._encoders, count, lambda: self._codec.encoder(self._place(count)))

    def _device_encoder(self, tensor: torch.Tensor) -> DeviceEncoder | None:
        """Encoder of a tensor on a device; None: the host encodes it."""
        plan, device, count = self._plan, tensor.device, tensor.numel()
        arithmetic = None if plan is None else self._resources.arithmetic_on(device)
        if plan is None or arithmetic is None:
            return None
        seed, exact = self._codec.seed, self._smallest - 1

        def make() -> DeviceEncoder:
            return DeviceEncoder(plan, self._place(count), seed, device, arithmetic, exact, accounts=False)

        return self._kept(self._device_encoders, (device, count), make)

    def _place(self, count: int) -> Place:
        return Place(self._rank, self._size, ((count,),))

    def _kept(self, made: dict[Key, Kept], key: Key, make: Callable[[], Kept]) -> Kept:
        known = made.get(key)
        if known is None:
            if len(made) == self.MAX_ENCODERS:
                made.pop(next(iter(made)))
            known = made[key] = make()
        return known
