"""Kernels that go through a bucket block by block: native and numpy have the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fanin.host.codecs import blocks, rotation
from fanin.host.codecs.philox import Randomness
from tests.numerics.codecs import assert_same_bits

BAD = (np.nan, np.inf, -np.inf, 3e38)
"""The last one is finite, and its square is not."""


@pytest.mark.parametrize("block", [1, 8, 16, 100, 192, 1024])
@pytest.mark.parametrize("count", [0, 1, 191, 2048, 3001])
def test_squares_of_blocks_have_the_same_bits_in_both_engines(block: int, count: int) -> None:
    x = np.random.default_rng(block).normal(size=count).astype(np.float32)
    assert_same_bits(blocks.block_squares(x, block), blocks.squares_oracle(x, block))
    whole = x[: count // block * block].reshape(-1, block).astype(np.float64)
    np.testing.assert_allclose(blocks.block_squares(x, block)[: len(whole)], (whole**2).sum(1), rtol=1e-5)


@pytest.mark.parametrize("block", [1, 8, 100, 192])
def test_a_block_is_zero_where_all_of_its_elements_are(block: int) -> None:
    x = np.zeros(1999, np.float32)
    x[::3] = -0.0
    assert not blocks.nonzero_blocks(x, block).any()
    for place, value in ((0, 1.0), (700, np.nan), (1998, -1e-45)):
        x[place] = value
    assert np.flatnonzero(blocks.nonzero_blocks(x, block)).tolist() == sorted({0, 700 // block, 1998 // block})
    assert_same_bits(blocks.nonzero_blocks(x, block), blocks.nonzero_oracle(x, block))


@pytest.mark.parametrize("count", [1, 3, 16, 60, 1024, 3000, 4096])
@pytest.mark.parametrize("clip", [1.2, 3.9, np.inf])
@pytest.mark.parametrize("feedback", [True, False])
def test_a_rotated_step_has_the_same_bits_in_both_engines(count: int, clip: float, feedback: bool) -> None:
    random, block = np.random.default_rng(count), rotation.block_for(count)
    padded = -(-count // block) * block
    x = random.standard_t(3, count).astype(np.float32)
    owed = random.normal(size=padded if feedback else 0).astype(np.float32)
    signs, found = Randomness(1, 2).sign_words(count), list[list[Any]]()
    lost = random.normal(size=padded).astype(np.float32)
    for clipped, back in (
        (rotation.rotate_and_clip, rotation.rotate_back),
        (rotation.rotate_and_clip_oracle, rotation.rotate_back_oracle),
    ):
        for given in (x, *(np.where(np.arange(count) == count // 2, bad, x).astype(np.float32) for bad in BAD)):
            sent, cut, out = np.empty(padded, np.float32), np.empty(padded, np.float32), np.empty(count, np.float32)
            squares = clipped(given, signs, block, owed, np.float32(clip), sent, cut)
            finite = np.isfinite(squares)
            kept = [each.reshape(-1, block)[finite].copy() for each in (sent, cut)]
            squares_after = back(sent, signs, block, lost, cut, out)
            found.append([squares[finite], *kept, finite, squares_after, cut, out[np.isfinite(out)], np.isnan(out)])
    half = len(found) // 2
    for native, numpy in zip(found[:half], found[half:], strict=True):
        for one, other in zip(native, numpy, strict=True):
            assert_same_bits(one, other)


def test_a_rotated_step_may_be_in_place_and_is_undone() -> None:
    x = np.random.default_rng(0).normal(size=2048).astype(np.float32)
    signs, nothing = Randomness(1, 2).sign_words(2048), np.zeros(2048, np.float32)
    own, cut, apart = x.copy(), np.empty(2048, np.float32), np.empty(2048, np.float32)
    rotation.rotate_and_clip(x, signs, 1024, nothing, np.float32(1.2), apart, cut)
    rotation.rotate_and_clip(own, signs, 1024, nothing, np.float32(1.2), own, cut)
    assert_same_bits(own, apart)
    assert np.abs(own).max() <= 1.2 * np.sqrt(((own + cut) ** 2).reshape(2, -1).mean(1).max()) * 1.001
    own += cut
    rotation.rotate_back(own, signs, 1024, nothing, cut, own)
    np.testing.assert_allclose(own, x, atol=1e-5)
