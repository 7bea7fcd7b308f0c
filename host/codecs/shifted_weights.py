"""Weights in 8, 6 or 4 bits for an all-gather: a grid per bucket, shifted at random.

    delta  = (high - low) / (2^bits - 1)        of a bucket of 1,024 elements
    offset = low + s delta                      s uniform in [-1/2, 1/2), one per bucket and step: the grid's shift
    k      = rint((x - offset) / delta)         0 .. 2^bits - 1
    y      = offset + k delta                   what every rank computes with, the owner too

Over s the mean of y is x: the rounding is to nearest, and the grid is what is random. Offset and delta travel with the
codes, so ranks need not agree on anything before, and a bucket takes 8 bytes more than its codes.
A bucket of equal elements is exact.
A bucket with an element that is not finite, or whose range is not, is NaN at every rank.

native/kernels/weight_kernels.cpp computes the same bits, one bucket after the other.

Source: QSDP (Markov et al., ICML 2023), where one shift serves all buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.extension import native_extension
from fanin.host.codecs.philox import Purpose, Randomness
from fanin.host.codecs.weight_codec import Bytes, Floats, Loss, WeightCodec, WeightPlan

BITS = (8, 6, 4)
MIN_BUCKET, MAX_BUCKET = 64, 1 << 20
_HEADER_BYTES = 8
"""Offset and delta of a bucket, float32 each."""
_HALF = np.float32(0.5)
_NATIVE = native_extension(None)


@dataclass(frozen=True, slots=True)
class ShiftedWeights(WeightCodec):
    """Weight codec with codes of 8, 6 or 4 bits. ConfigurationError for other widths."""

    name: ClassVar[str] = "shifted"

    bucket: int = 1024
    """Elements that share a grid: 64 .. 2^20, a multiple of 8. Fewer: finer grids, each of which takes 8 bytes."""

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ConfigurationError(f"bits = {self.bits}; weights travel in {', '.join(map(str, BITS))} bits", "bits")
        if not MIN_BUCKET <= self.bucket <= MAX_BUCKET or self.bucket % 8:
            raise ConfigurationError(
                f"bucket = {self.bucket}; must be a multiple of 8 in {MIN_BUCKET}..{MAX_BUCKET} elements", "bucket"
            )
        if not 0 <= self.seed < 1 << 32:
            raise ConfigurationError(f"seed = {self.seed}; must be in 0..2^32 - 1", "seed")

    def encoded_bytes(self, count: int) -> int:
        return _HEADER_BYTES * self._buckets(count) + self._code_bytes(count)

    @property
    def block(self) -> int:
        return self.bucket

    def device_plan(self) -> WeightPlan:
        """Return bits and bucket, from which a device can do the arithmetic."""
        return WeightPlan(self.bits, self.bucket)

    def encode(self, x: Floats, into: Bytes, random: Randomness, step: int, rank: int, *, first: int = 0) -> Loss:
        if not len(x):
            return Loss()
        drawn = random.uniform(Purpose.SHIFTS, self._buckets(first + len(x)), step, rank)
        shifts = drawn[first // self.bucket :] - _HALF
        if _NATIVE is None:
            return self.encode_oracle(x, shifts, into)
        return _finite(*_NATIVE.shifted_encode_into(x, self.bucket, self.bits, shifts, into))

    def encode_oracle(self, x: Floats, shifts: Floats, into: Bytes) -> Loss:
        """Compute `encode` in numpy, for at least one element. `shifts`: one for each bucket."""
        count, buckets = len(x), len(shifts)
        headers = into[: _HEADER_BYTES * buckets].view("<f4").reshape(2, buckets)
        largest = np.float32(2**self.bits - 1)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
            low, high = self._extremes(x, np.minimum), self._extremes(x, np.maximum)
            delta = (high - low) / largest
            bad = ~np.isfinite(delta)
            offset = low + shifts * delta
            offset[bad] = delta[bad] = np.nan
            headers[0], headers[1] = offset, delta
            divisor = np.where(delta == 0, np.float32(1), delta)
            levels = np.empty(count, np.float32)
            for whole, bucket in self._parts(count):
                part, own = levels[whole], slice(bucket.start, bucket.stop)
                rows = part.reshape(own.stop - own.start, -1)
                np.subtract(x[whole].reshape(rows.shape), offset[own, None], out=rows)
                np.divide(rows, divisor[own, None], out=rows)
            np.rint(levels, out=levels)
            np.fmin(np.fmax(levels, np.float32(0), out=levels), largest, out=levels)
            self._pack(levels.astype(np.uint8), into[_HEADER_BYTES * buckets :])
            error = self._values(levels, offset, delta)
            np.subtract(error, x, out=error)
            return _finite(float(np.dot(x, x)), float(np.dot(error, error)))

    def decode_rows(self, encoded: Bytes, into: Floats, *, first: int = 0, count: int | None = None) -> None:
        count = into.shape[1] if count is None else count
        if _NATIVE is None:
            for row, values in zip(encoded, into, strict=True):
                self.decode_oracle(row, values, first, count)
        else:
            _NATIVE.shifted_decode_into(encoded, count, self.bucket, self.bits, first, into)

    def decode_oracle(self, encoded: Bytes, into: Floats, first: int, count: int) -> None:
        """Compute `decode_rows` of one row in numpy; it decodes only the buckets that hold the elements asked for."""
        buckets = self._buckets(count)
        offset, delta = encoded[: _HEADER_BYTES * buckets].view("<f4").reshape(2, buckets)
        own = slice(first // self.bucket, self._buckets(first + len(into)))
        start, stop = own.start * self.bucket, min(own.stop * self.bucket, count)
        packed = encoded[_HEADER_BYTES * buckets :][self._code_bytes(start) : self._code_bytes(stop)]
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            values = self._values(self._unpack(packed, stop - start), offset[own], delta[own])
        into[:] = values[first - start :][: len(into)]

    def _values(self, codes: npt.NDArray[np.generic], offset: Floats, delta: Floats) -> Floats:
        """offset + code * delta, two roundings, in float32."""
        values: Floats = np.empty(len(codes), np.float32)
        for whole, bucket in self._parts(len(codes)):
            rows = values[whole].reshape(bucket.stop - bucket.start, -1)
            np.multiply(codes[whole].reshape(rows.shape), delta[bucket, None], out=rows, dtype=np.float32)
            np.add(rows, offset[bucket, None], out=rows)
        return values

    def _extremes(self, x: Floats, which: np.ufunc) -> Floats:
        """The smallest or largest element of every bucket; NaN where one is."""
        found = np.empty(self._buckets(len(x)), np.float32)
        for whole, bucket in self._parts(len(x)):
            which.reduce(x[whole].reshape(bucket.stop - bucket.start, -1), axis=1, out=found[bucket])
        return found

    def _buckets(self, count: int) -> int:
        return -(-count // self.bucket)

    def _code_bytes(self, count: int) -> int:
        return -(-count * self.bits // 8)

    def _parts(self, count: int) -> list[tuple[slice, slice]]:
        """(elements, buckets) of the full buckets, and of the last one where that is shorter; neither is empty."""
        full = count // self.bucket
        whole = full * self.bucket
        parts = [(slice(0, whole), slice(0, full))] if full else []
        return [*parts, (slice(whole, count), slice(full, full + 1))] if whole < count else parts

    def _pack(self, codes: Bytes, into: Bytes) -> None:
        """Fill `into` with the codes, one after the other, the first in the lowest bits."""
        if self.bits == 8:
            into[:] = codes
            return
        group = 4 if self.bits == 6 else 2
        if len(codes) % group:
            codes = np.concatenate([codes, np.zeros(-len(codes) % group, np.uint8)])
        if self.bits == 4:
            np.bitwise_or(codes[0::2], codes[1::2] << np.uint8(4), out=into)
            return
        a, b, c, d = codes[0::4], codes[1::4], codes[2::4], codes[3::4]
        packed = np.empty((len(a), 3), np.uint8)
        packed[:, 0] = a | b << np.uint8(6)
        packed[:, 1] = b >> np.uint8(2) | c << np.uint8(4)
        packed[:, 2] = c >> np.uint8(4) | d << np.uint8(2)
        into[:] = packed.reshape(-1)[: len(into)]

    def _unpack(self, packed: Bytes, count: int) -> Bytes:
        if self.bits == 8:
            return packed
        if self.bits == 4:
            codes = np.empty((len(packed), 2), np.uint8)
            codes[:, 0], codes[:, 1] = packed & np.uint8(15), packed >> np.uint8(4)
            return codes.reshape(-1)[:count]
        if len(packed) % 3:
            packed = np.concatenate([packed, np.zeros(-len(packed) % 3, np.uint8)])
        first, second, third = packed[0::3], packed[1::3], packed[2::3]
        codes = np.empty((len(first), 4), np.uint8)
        codes[:, 0] = first & np.uint8(63)
        codes[:, 1] = first >> np.uint8(6) | (second & np.uint8(15)) << np.uint8(2)
        codes[:, 2] = second >> np.uint8(4) | (third & np.uint8(3)) << np.uint8(4)
        codes[:, 3] = third >> np.uint8(2)
        return codes.reshape(-1)[:count]


def _finite(energy: float, lost: float) -> Loss:
    return Loss(energy, lost) if np.isfinite(energy) and np.isfinite(lost) else Loss()
