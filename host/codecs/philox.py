"""Random numbers that can be drawn again: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), a function of a key and a counter, without state.

    word i = Philox(key, {counter[0] + i / 4, counter[1], counter[2], counter[3]})[i mod 4]

The key is (seed, stream). Numbers that are the same at all workers (signs, coordinates) come from a stream without a
rank, numbers that must differ between them (rounding) from a stream with one.
The counter holds the step, so a step can be replayed alone.
The fast twin is native/kernels/gradient_kernels.cpp; both are tested against the vectors of Random123.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fanin.extension import native_extension

Uint32s = npt.NDArray[np.uint32]

_NATIVE = native_extension(None)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


class Purpose(enum.IntEnum):
    """Uses of random numbers: each has streams of its own."""

    SIGNS = 1
    COORDINATES = 2
    ROUNDING = 3
    SUBSPACE = 4
    CELLS = 5
    SHIFTS = 6


@dataclass(frozen=True, slots=True)
class Randomness:
    """The numbers of one bucket. `seed` and `bucket`: 0..2^32 - 1, the same on every rank."""

    seed: int
    bucket: int

    def words(self, purpose: Purpose, count: int, step: int = 0, rank: int | None = None) -> Uint32s:
        """Return `count` uniform words of 32 bits, the same at all workers; with `rank`, that worker's own."""
        return words((self.seed, _stream(purpose, rank)), (0, self.bucket, step & 0xFFFFFFFF, step >> 32), count)

    def of_kernels(self, purpose: Purpose, step: int, rank: int) -> tuple[int, int, int, int]:
        """Return key, bucket, and low and high word of the step, by which kernels draw the same `words` on a GPU."""
        return self.seed | _stream(purpose, rank) << 32, self.bucket, step & 0xFFFFFFFF, step >> 32

    def uniform(self, purpose: Purpose, count: int, step: int = 0, rank: int | None = None) -> npt.NDArray[np.float32]:
        """`count` numbers in [0, 1), multiples of 2^-24."""
        return (self.words(purpose, count, step, rank) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)

    def sign_words(self, count: int) -> Uint32s:
        """Signs of `count` elements, a bit for each, the same in every step: `signs_of` says what they mean."""
        return self.words(Purpose.SIGNS, -(-count // 32))

    def signs(self, count: int) -> npt.NDArray[np.float32]:
        """`count` numbers out of -1 and 1, the same in every step."""
        return signs_of(self.sign_words(count), count)


@dataclass(frozen=True, slots=True)
class Draws:
    """Source of the numbers that round one contribution: `Randomness.uniform` for Purpose.ROUNDING."""

    random: Randomness
    step: int
    rank: int


def _stream(purpose: Purpose, rank: int | None) -> int:
    return purpose << 24 | (0 if rank is None else rank + 1)


def signs_of(drawn: Uint32s, count: int) -> npt.NDArray[np.float32]:
    """-1 where bit i mod 32 of word i / 32 is set, and 1 elsewhere."""
    bits = np.unpackbits(drawn.astype("<u4").view(np.uint8), bitorder="little")[:count]
    return 1.0 - 2.0 * bits.astype(np.float32)


def words(key: tuple[int, int], counter: tuple[int, int, int, int], count: int) -> Uint32s:
    """Return `count` words of that key, from that counter on; by the native kernel where it is built."""
    if _NATIVE is None:
        return oracle(key, counter, count)
    drawn = np.empty(count, np.uint32)
    _NATIVE.philox_into(key, counter, drawn)
    return drawn


def oracle(key: tuple[int, int], counter: tuple[int, int, int, int], count: int) -> Uint32s:
    """Compute `words` in numpy: the reference of the native kernel."""
    blocks = -(-count // 4)
    a = (np.arange(blocks, dtype=np.uint64) + np.uint64(counter[0])).astype(np.uint32)
    b, c, d = (np.full(blocks, each, np.uint32) for each in counter[1:])
    first, second = np.array(key, np.uint32)
    for _ in range(_ROUNDS):
        p, q = _MULTIPLIERS[0] * a.astype(np.uint64), _MULTIPLIERS[1] * c.astype(np.uint64)
        a, b, c, d = _upper(q) ^ b ^ first, _lower(q), _upper(p) ^ d ^ second, _lower(p)
        with np.errstate(over="ignore"):
            first, second = first + _WEYL[0], second + _WEYL[1]
    return np.stack([a, b, c, d], axis=1).reshape(-1)[:count]


def _upper(product: npt.NDArray[np.uint64]) -> Uint32s:
    return (product >> _HIGH).astype(np.uint32)


def _lower(product: npt.NDArray[np.uint64]) -> Uint32s:
    return (product & _LOW).astype(np.uint32)
