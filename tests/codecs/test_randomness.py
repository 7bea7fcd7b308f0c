"""Philox and the rotation: known answers, the two engines' bits, and what rounding makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.host.codecs import philox, rotation
from fanin.host.codecs.philox import Purpose, Randomness
from tests.numerics.codecs import assert_same_bits

KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 2, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Random123's kat_vectors: philox4x32 with 10 rounds."""


@pytest.mark.parametrize("words", [philox.words, philox.oracle], ids=["native", "numpy"])
@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
def test_philox_gives_the_known_answers(words, key, counter, expected) -> None:  # type: ignore[no-untyped-def]
    assert tuple(words(key, counter, 4).tolist()) == expected


@pytest.mark.parametrize("count", [0, 1, 3, 4, 63, 64, 65, 1000])
def test_native_and_numpy_draw_the_same_words(count: int) -> None:
    for first in (0, 5, 2**32 - 3):  # the counter's first word wraps around
        key, counter = (7, 1 << 24), (first, 2, 3, 4)
        assert_same_bits(philox.words(key, counter, count), philox.oracle(key, counter, count))


def test_streams_differ_by_purpose_rank_bucket_step_and_seed_and_by_nothing_else() -> None:
    random = Randomness(1, 2)
    drawn = [
        random.words(Purpose.ROUNDING, 8),
        random.words(Purpose.COORDINATES, 8),
        random.words(Purpose.ROUNDING, 8, 1),
        random.words(Purpose.ROUNDING, 8, 1 << 32),
        random.words(Purpose.ROUNDING, 8, 0, 0),
        random.words(Purpose.ROUNDING, 8, 0, 1),
        Randomness(1, 3).words(Purpose.ROUNDING, 8),
        Randomness(2, 2).words(Purpose.ROUNDING, 8),
    ]
    assert len({each.tobytes() for each in drawn}) == len(drawn)
    assert_same_bits(Randomness(1, 2).words(Purpose.ROUNDING, 8), drawn[0])


def test_uniform_numbers_are_uniform_and_below_one() -> None:
    u = Randomness(3, 0).uniform(Purpose.ROUNDING, 100_000)
    assert 0.0 <= u.min() < u.max() < 1.0
    counts = np.histogram(u, 100, (0, 1))[0]
    assert np.sum((counts - 1000.0) ** 2 / 1000.0) < 150  # chi squared, 99 degrees of freedom: 149.4 at 0.1 %


@pytest.mark.parametrize("block", [1, 4, 16, 64, 256, 1024])
def test_the_rotation_has_the_same_bits_in_both_engines_and_undoes_itself(block: int) -> None:
    x = np.random.default_rng(block).normal(size=3 * block).astype(np.float32)
    native, oracle = x.copy(), x.copy()
    rotation.hadamard(native, block)
    rotation.oracle(oracle, block)
    assert_same_bits(native, oracle)
    assert np.linalg.norm(native) == pytest.approx(np.linalg.norm(x), rel=1e-6)
    rotation.hadamard(native, block)
    np.testing.assert_allclose(native, x, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "block"), [(0, 1), (1, 1), (2, 4), (5, 16), (1024, 1024), (1025, 1024), (10**6, 1024)]
)
def test_a_block_is_a_power_of_four_that_wastes_little(count: int, block: int) -> None:
    assert rotation.block_for(count) == block
