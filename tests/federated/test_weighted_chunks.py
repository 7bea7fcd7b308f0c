"""Weights in the last element of each chunk: means are by the weights of the very deltas in a chunk."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.federated.weighted_chunks import WeightedChunks
from fanin.host.stale.scale import TALLY_BINS

UNIT = 4.0


@pytest.mark.parametrize("chunk_elements", [2, 7, 64, 65, 66, 128, 1024])
@pytest.mark.parametrize("count", [1, 63, 500])
def test_the_mean_of_weighted_deltas_comes_back_by_any_chunk(count: int, chunk_elements: int) -> None:
    chunks, draw = WeightedChunks(count, chunk_elements), np.random.default_rng(count)
    deltas = draw.normal(size=(3, count)).astype(np.float32)
    weights = np.array([0.5, 1.0, 0.25], np.float32)
    total = np.zeros(chunks.elements, np.float32)
    for delta, weight in zip(deltas, weights, strict=True):
        laid_out = np.full(chunks.elements, np.nan, np.float32)
        chunks.write(laid_out, delta, UNIT)
        total += weight * laid_out
    mean = np.empty(count, np.float32)
    assert chunks.mean(total, mean, UNIT) == pytest.approx(1.75)
    np.testing.assert_allclose(mean, weights @ deltas / weights.sum(), rtol=1e-5, atol=1e-6)
    assert (TALLY_BINS + chunks.elements) % chunk_elements == 0, "whole chunks"


def test_a_chunk_that_holds_fewer_deltas_is_divided_by_their_weights_alone() -> None:
    chunks = WeightedChunks(200, 128)
    total = np.empty(chunks.elements, np.float32)
    chunks.write(total, np.full(200, 3.0, np.float32), UNIT)
    total[chunks.head :] *= 2  # another delta, late in the first chunk
    mean = np.empty(200, np.float32)
    assert chunks.mean(total, mean, UNIT) == 1.0
    np.testing.assert_allclose(mean, 3.0)
    total[chunks.head :] = 0.0
    assert chunks.mean(total, mean, UNIT) == 0.0
    assert (mean[: chunks.head - 1] == 3.0).all()
    assert (mean[chunks.head - 1 :] == 0.0).all(), "nothing landed there"


def test_a_chunk_without_room_for_a_weight_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no room"):
        WeightedChunks(10, 1)
