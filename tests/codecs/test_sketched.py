"""The sketch of large elements: what peels is exact, and what does not is owed."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.codecs import make
from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.sketched import SPARE_CELLS, Layout
from tests.codecs.driving import Team, nmse, student


def test_every_sketch_at_a_load_of_77_percent_peels_in_a_thousand_seeds() -> None:
    """Values do not matter: sums wrap around modulo 2^32 without harm."""
    values = np.random.default_rng(1).integers(-(2**31), 2**31, 800).astype(np.int32)
    for seed in range(1000):
        layout = Layout.of(Randomness(seed, 0), 800, 0)
        assert layout.known.all(), seed
        assert np.array_equal(layout.peeled(layout.summed(values)), values)
    assert 800 / (layout.size - SPARE_CELLS) == pytest.approx(0.77, abs=0.01)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17, 100])
def test_small_sketches_peel_too(count: int) -> None:
    values = np.arange(count, dtype=np.int32) - 7
    for seed in range(100):
        layout = Layout.of(Randomness(seed, 3), count, 1)
        assert layout.known.all(), seed
        assert np.array_equal(layout.peeled(layout.summed(values)), values)


def test_a_sketch_that_is_too_small_peels_nothing_wrong() -> None:
    """Above the threshold of three hashes most elements stay in cycles; none comes out with another's value."""
    values = np.arange(1, 5001, dtype=np.int32)
    layout = Layout.peeling(np.random.default_rng(2).integers(0, 5000, (3, 5000)), 5000)
    assert not layout.known.all()
    found = layout.peeled(layout.summed(values))
    assert np.array_equal(found[layout.known], values[layout.known])
    assert not found[~layout.known].any()


@pytest.mark.parametrize("workers", [2, 7, 64])
def test_elements_that_all_workers_together_keep_are_summed_without_loss(workers: int) -> None:
    """Each worker has large elements of its own, whose union grows with their number; Top-k could not sum them."""
    inputs = [np.zeros(4000, np.float32) for _ in range(workers)]
    for rank, x in enumerate(inputs):
        x[rank * 40 : rank * 40 + 40] = np.random.default_rng(rank).normal(size=40)
        x[3900] = 1.0
    team = Team(make("sketched:share=0.0103"), workers, ((4000,),))
    result = team.step(inputs, 0)[0]
    assert nmse(result, inputs) < 1e-9
    assert result[3900] == pytest.approx(1.0, rel=1e-5)


def test_what_is_small_waits_until_it_is_large() -> None:
    team = Team(make("sketched:share=0.1"), 3, ((1000,),))
    inputs = student(3, 1000, 5)
    applied = np.zeros(1000)
    for step in range(40):
        applied += team.step(inputs, step)[0]
    assert nmse((applied / 40).astype(np.float32), inputs) < 0.05
    assert nmse(Team(make("sketched:share=0.1"), 3, ((1000,),)).step(inputs, 0)[0], inputs) > 0.1


def test_the_sketch_of_zeros_is_zero() -> None:
    zeros = [np.zeros(500, np.float32)] * 3
    assert not Team(make("sketched"), 3, ((500,),)).step(zeros, 0)[0].any()


def test_at_one_percent_it_keeps_more_than_random_coordinates_do_and_sends_a_bitmap_for_it() -> None:
    """docs/codecs.md: the bitmap is a quarter of the float32 bytes in lanes of 8 bits, so density must be low."""
    inputs = student(4, 16384, 9)
    sketched, random = (
        nmse(Team(make(f"{name}:share=0.01"), 4, ((16384,),)).step(inputs, 0)[0], inputs)
        for name in ("sketched", "random_coordinates")
    )
    assert sketched < random - 0.1


@pytest.mark.parametrize("lanes", ["8/8", "4/8"])
def test_bitmaps_are_summed_without_loss_and_take_no_wide_sums(lanes: str) -> None:
    with pytest.raises(ConfigurationError, match="summed without loss"):
        Team(make(f"sketched:{lanes}"), 2, ((100,),))


def test_a_share_without_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="share"):
        make("sketched:8:share=1.5")
