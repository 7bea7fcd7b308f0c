"""Gradients through `lanes` and `rotated`, and weights through a shifted grid, on the GPU that has them.

Every other codec goes by the host (codec_flight.py), and so do these where a rank has no GPU or no Triton that works,
with weighted means, and with stochastic rounding of a bucket so small that its sum is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from fanin.host.codecs.codec import Codec, Place
from fanin.host.codecs.weight_codec import WeightCodec
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import ELEMENTS
from fanin.host.torch.device.encoder import DeviceEncoder
from fanin.host.torch.device.weights import DeviceWeights
from fanin.host.torch.handles.work import FaninWork
from fanin.host.torch.training.codec_buckets import Bucket
from fanin.host.torch.training.codec_sums import contributed_bytes
from fanin.numerics.reduction import QUANTIZED_LANES


def encoder_on_device(
    group: FaninProcessGroup, codec: Codec, gradients: torch.Tensor
) -> Callable[[Place], DeviceEncoder] | None:
    """Maker of encoders of buckets like `gradients`; None: the host encodes. Every rank asks at the same point."""
    plan = codec.device_plan(group.size())
    known = plan is not None and plan.lanes in QUANTIZED_LANES
    arithmetic = group.arithmetic_on(gradients.device) if known else None
    device, exact = gradients.device, group.options.largest_exact(group.size())
    if plan is None or arithmetic is None or (plan.stochastic and gradients.numel() <= exact):
        return None
    return lambda place: DeviceEncoder(plan, place, codec.seed, device, arithmetic, exact)


def weights_on_device(group: FaninProcessGroup, codec: WeightCodec, device: torch.device) -> DeviceWeights | None:
    """Codec of weights on that device; None: the host encodes and decodes. Every rank asks at the same point."""
    plan = codec.device_plan()
    if plan is None or group.arithmetic_on(device) is None:
        return None
    return DeviceWeights(plan)


def average(group: FaninProcessGroup, bucket: Bucket, gradients: torch.Tensor, step: int) -> FaninWork:
    """Start a bucket, its pieces together; it is averaged when the handle is done."""
    flat, started = gradients.detach().view(-1), time.perf_counter()
    encoders = [piece.encoder for piece in bucket.pieces if isinstance(piece.encoder, DeviceEncoder)]
    asked = [encoder.begin(flat[piece.span], step) for encoder, piece in zip(encoders, bucket.pieces, strict=True)]
    works = group.average_encoded(asked)
    for encoder, work in zip(encoders, works, strict=True):
        encoder.began(work)
    took_s = time.perf_counter() - started
    for piece, each in zip(bucket.pieces, asked, strict=True):
        piece.encode_s, piece.decode_s = took_s / len(asked), 0.0
        values = each.values
        piece.payload_bytes = contributed_bytes(group, ELEMENTS[values.dtype], values.numel(), each.lanes)
    return group.all_of(list(dict.fromkeys(works)), [gradients])
