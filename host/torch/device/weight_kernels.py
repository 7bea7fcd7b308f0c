"""Triton kernels of weights for an all-gather (host/codecs/shifted_weights.py): a grid per bucket, shifted at random.

Rules
-----
* The rules of kernels.py hold here, too.
* Codes and headers are written and read byte by byte: a rank's row of a gather begins anywhere.
* A group of elements whose codes fill whole bytes lies within a thread: 1 of 8 bits, 2 of 4 bits, 4 of 6 bits.
"""

# No `from __future__ import annotations`: Triton reads annotations.

import triton
import triton.language as tl

from fanin.host.torch.device.kernels import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    QUIET_NAN_BITS,
    ROUNDER,
    store_values,
    uniform,
)

HEADER_BYTES = tl.constexpr(8)


@triton.jit
def store_float(ptr, v):
    """Four bytes, the lowest first."""
    byte = tl.arange(0, 4)
    tl.store(ptr + byte, ((v.to(tl.int32, bitcast=True) >> (8 * byte)) & 255).to(tl.uint8))


@triton.jit
def load_float(ptr):
    """Load four bytes, the lowest first, as a float32."""
    byte = tl.arange(0, 4)
    return tl.sum(tl.load(ptr + byte).to(tl.int32) << (8 * byte), axis=0).to(tl.float32, bitcast=True)


@triton.jit
def encode(
    x_ptr,
    into_ptr,
    losses_ptr,
    count,
    buckets,
    first_bucket,
    key,
    group_number,
    step_low,
    step_high,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BYTES: tl.constexpr,
    BUCKET: tl.constexpr,
    TILE: tl.constexpr,
):
    """Offset, delta and codes of a bucket of x, float32; its squared norm, and that of the error, to losses."""
    bucket = tl.program_id(0).to(tl.int64)
    first = bucket * BUCKET
    here = tl.minimum(count - first, BUCKET)
    low = tl.full((TILE, GROUP), float("inf"), tl.float32)
    high = tl.full((TILE, GROUP), float("-inf"), tl.float32)
    most = tl.zeros((TILE, GROUP), tl.int32)
    for start in range(0, BUCKET // GROUP, TILE):
        within = (start + tl.arange(0, TILE))[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = within < here
        v = tl.load(x_ptr + first + within, mask=inside, other=0.0)
        low = tl.where(inside & (v < low), v, low)
        high = tl.where(inside & (v > high), v, high)
        most = tl.maximum(most, v.to(tl.int32, bitcast=True) & MAGNITUDE_BITS)
    lowest = tl.min(tl.min(low, axis=1), axis=0)
    highest = tl.max(tl.max(high, axis=1), axis=0)
    largest: tl.constexpr = (1 << BITS) - 1
    delta = tl.div_rn(highest - lowest, lowest * 0.0 + largest)
    shift = uniform(first_bucket + bucket, key, group_number, step_low, step_high) - 0.5
    offset = lowest + shift * delta
    bad = tl.max(tl.max(most, axis=1), axis=0) >= INFINITY_BITS
    bad = bad | ((delta.to(tl.int32, bitcast=True) & MAGNITUDE_BITS) >= INFINITY_BITS)
    offset = tl.where(bad, QUIET_NAN_BITS, offset.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    delta = tl.where(bad, QUIET_NAN_BITS, delta.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    store_float(into_ptr + 4 * bucket, offset)
    store_float(into_ptr + 4 * (buckets + bucket), delta)
    divisor = tl.where(delta == 0.0, 1.0, delta)
    energy = tl.zeros((TILE, GROUP), tl.float32)
    lost = tl.zeros((TILE, GROUP), tl.float32)
    codes_ptr = into_ptr + HEADER_BYTES * buckets + first * BITS // 8
    code_bytes = (here * BITS + 7) // 8
    for start in range(0, BUCKET // GROUP, TILE):
        group = start + tl.arange(0, TILE)
        within = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = within < here
        v = tl.load(x_ptr + first + within, mask=inside, other=0.0)
        level = tl.div_rn(v - offset, divisor)
        level = tl.where(level > 0.0, level, 0.0)  # NaN, of a bad bucket, becomes 0
        level = tl.where(level < largest, level, largest)
        near = (level + ROUNDER) - ROUNDER
        code = tl.where(inside, near.to(tl.int32), 0)
        packed = tl.sum(code << (BITS * tl.arange(0, GROUP))[None, :], axis=1)
        for byte in tl.static_range(GROUP_BYTES):
            at = group * GROUP_BYTES + byte
            tl.store(codes_ptr + at, ((packed >> (8 * byte)) & 255).to(tl.uint8), mask=at < code_bytes)
        error = tl.where(inside, near * delta + offset - v, 0.0)
        energy += v * v
        lost += error * error
    tl.store(losses_ptr + 2 * bucket, tl.sum(tl.sum(energy, axis=1), axis=0))
    tl.store(losses_ptr + 2 * bucket + 1, tl.sum(tl.sum(lost, axis=1), axis=0))


@triton.jit
def decode(
    encoded_ptr,
    out_ptr,
    encoded_stride,
    out_stride,
    buckets,
    first,
    stop,
    SIXTEEN: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BYTES: tl.constexpr,
    BUCKET: tl.constexpr,
    TILE: tl.constexpr,
):
    """Elements [first, stop) of each row, a bucket of a row per program."""
    bucket = first // BUCKET + tl.program_id(0).to(tl.int64)
    row = tl.program_id(1).to(tl.int64)
    encoded_ptr += row * encoded_stride
    offset = load_float(encoded_ptr + 4 * bucket)
    delta = load_float(encoded_ptr + 4 * (buckets + bucket))
    begin = bucket * BUCKET
    codes_ptr = encoded_ptr + HEADER_BYTES * buckets + begin * BITS // 8
    for start in range(0, BUCKET // GROUP, TILE):
        group = start + tl.arange(0, TILE)
        within = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        at = begin + within
        inside = (within < BUCKET) & (at >= first) & (at < stop)
        packed = tl.zeros((TILE, GROUP), tl.int32)
        for byte in tl.static_range(GROUP_BYTES):
            # A byte that the last elements do not reach into may not be there.
            needed = inside & ((tl.arange(0, GROUP)[None, :] * BITS + BITS - 1) // 8 >= byte)
            needed = needed & (tl.arange(0, GROUP)[None, :] * BITS // 8 <= byte)
            part = tl.load(codes_ptr + (group * GROUP_BYTES + byte)[:, None] + within * 0, mask=needed, other=0)
            packed = packed | (part.to(tl.int32) << (8 * byte))
        code = (packed >> (BITS * tl.arange(0, GROUP))[None, :]) & ((1 << BITS) - 1)
        y = code.to(tl.float32) * delta + offset
        store_values(out_ptr + row * out_stride, at - first, inside, y, SIXTEEN)
