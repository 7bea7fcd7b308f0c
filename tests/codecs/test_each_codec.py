"""Promises of single codecs beyond the contract: bias, bytes, figures of docs/codecs.md."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.codecs import make
from fanin.host.codecs.agreed_blocks import largest
from fanin.host.codecs.codec import Codec, Floats, sums_of
from fanin.host.codecs.low_rank import orthogonal
from fanin.host.codecs.rotated import CLIPS, clip_for
from fanin.host.codecs.words import codec_for
from fanin.numerics.reduction import Element
from tests.codecs.driving import Team, nmse, normal, student
from tests.support.cluster import job


def draws(codec: Codec, inputs: list[Floats], count: int) -> Floats:
    """Results of `count` steps on the same inputs, shape (count, elements)."""
    team = Team(codec, len(inputs), ((len(inputs[0]),),))
    return np.array([team.step(inputs, step)[0] for step in range(count)])


@pytest.mark.parametrize("text", ["ternary:8:clip=100", "random_coordinates:32:share=0.25:feedback=False"])
def test_without_feedback_the_mean_of_many_draws_is_the_input(text: str) -> None:
    inputs = normal(2, 64, 1)
    results = draws(make(text), inputs, 2000).astype(np.float64)
    error = results.mean(axis=0) - np.mean(inputs, axis=0)
    standard_error = results.std(axis=0) / np.sqrt(len(results)) + 1e-7
    assert np.abs(error / standard_error).max() < 5


@pytest.mark.parametrize("lanes", ["4", "8"])
def test_the_mean_of_10_000_draws_of_three_levels_is_within_5_standard_errors(lanes: str) -> None:
    """100 steps on 100 copies of each value, whose draws are independent."""
    values = normal(4, 64, 2)
    results = draws(make(f"ternary:{lanes}:clip=100"), [np.tile(each, 100) for each in values], 100)
    drawn = results.astype(np.float64).reshape(10_000, 64)
    error = drawn.mean(axis=0) - np.mean(values, axis=0, dtype=np.float64)
    assert np.abs(error / (drawn.std(axis=0) / 100 + 1e-7)).max() < 5


@pytest.mark.parametrize("lanes", ["4", "4/8"])
def test_stochastic_rounding_is_without_bias_and_rounding_to_nearest_is_not(lanes: str) -> None:
    inputs = [np.linspace(-1, 1, 65, dtype=np.float32)] * 2
    results = draws(make(f"lanes:{lanes}:stochastic=True:feedback=False"), inputs, 300).astype(np.float64)
    error = results.mean(axis=0) - inputs[0]
    assert np.abs(error / (results.std(axis=0) / np.sqrt(len(results)) + 1e-6)).max() < 5
    nearest = draws(make(f"lanes:{lanes}:feedback=False"), inputs, 1)[0]
    assert np.abs(nearest - inputs[0]).mean() > 2 * np.abs(error).mean()


@pytest.mark.parametrize("lanes", ["8", "4", "8/8", "4/8"])
def test_stochastic_rounding_can_be_replayed_and_differs_between_ranks_and_steps(lanes: str) -> None:
    codec = make(f"lanes:{lanes}:stochastic=True:feedback=False")
    x = normal(1, 3000, 4)[0]
    first = Team(codec, 4, ((3000,),)).step([x] * 4, 7)[0]
    assert first.tobytes() == Team(codec, 4, ((3000,),)).step([x] * 4, 7)[0].tobytes()
    assert first.tobytes() != Team(codec, 4, ((3000,),)).step([x] * 4, 8)[0].tobytes()
    alone = nmse(Team(codec, 2, ((3000,),)).step([x] * 2, 7)[0], [x])
    if lanes == "4/8":  # the others have fewer levels with more workers, or lose more when they are narrowed
        assert nmse(first, [x]) < 0.7 * alone, "errors of unlike ranks are independent"


@pytest.mark.parametrize("lanes", ["16", "8", "8/8", "4/4"])
def test_what_stochastic_rounding_sends_the_engines_do_not_round_again(lanes: str) -> None:
    """Multiples of the step under the code that all know: the residual is what the codec itself lost."""
    codec = make(f"lanes:{lanes}:stochastic=True")
    team = Team(codec, 2, ((2000,),))
    inputs = normal(2, 2000, 6)
    asked = []
    for encoder, x in zip(team.encoders, inputs, strict=True):
        stages = encoder.reduce(x.copy(), 0)
        (largest,) = sums_of(next(stages))
        largest.values[:] = max(np.abs(each).max() for each in inputs)
        asked += sums_of(next(stages))
    spec = job(workers=2, accumulators=True)
    for one in asked:
        codec_ = codec_for(Element.FLOAT32, one.lanes, 2000, spec)
        codes = np.full(codec_.packet_elements // codec_.block_elements, one.scale_code, np.uint16)
        here = slice(0, codec_.span(0)[1])
        left = codec_.residual_after(one.values[here], codes, 1.0, np.zeros(here.stop, np.float32))
        assert np.abs(left).max() < 1e-6 * np.abs(one.values).max()


def test_lanes_of_32_bits_are_not_rounded_stochastically() -> None:
    with pytest.raises(ConfigurationError, match="16 bits or fewer"):
        make("lanes:32:stochastic=True")


def test_ternary_sends_three_levels_and_clips_at_its_bound() -> None:
    inputs = [np.concatenate([x, [100.0]]).astype(np.float32) for x in normal(4, 1000, 2)]
    result = Team(make("ternary"), 4, ((1001,),)).step(inputs, 0)[0]
    steps = result / np.abs(result[result != 0]).min()
    assert len(np.unique(np.round(steps, 3))) <= 9, "multiples of s / 4 from -s to s"
    assert result.max() < 20, "what is far out does not set the scale"


def test_rounding_of_unlike_ranks_is_independent() -> None:
    """With the same numbers at every worker the error would not shrink with their number."""
    x = normal(1, 2000, 3)[0]
    alone = nmse(Team(make("ternary"), 2, ((2000,),)).step([x] * 2, 0)[0], [x])
    many = nmse(Team(make("ternary"), 16, ((2000,),)).step([x] * 16, 0)[0], [x])
    assert many < alone / 4


@pytest.mark.parametrize(("bound", "clip"), CLIPS)
def test_the_clip_is_near_the_best_for_a_normal_variable(bound: int, clip: float) -> None:
    x = np.random.default_rng(bound).normal(size=200_000)

    def error(t: float) -> float:
        return float(np.mean((x - np.rint(np.clip(x, -t, t) * bound / t) * t / bound) ** 2))

    assert clip_for(bound) == pytest.approx(clip)
    best = min(error(t) for t in np.linspace(0.7, 1.5, 17) * clip)
    assert error(clip) <= best * 1.03


def test_clips_between_and_beyond_the_table_grow_until_nothing_is_clipped() -> None:
    clips = [clip_for(bound) for bound in (1, 2, 5, 21, 42, 100, 127, 255, 1023)]
    assert clips == sorted(clips)
    assert clip_for(2**15) == np.inf


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_rotated_lanes_are_within_the_figures_that_the_page_has(workers: int) -> None:
    """B levels of a clipped normal variable: about T^2 / (3 B^2 4) and what clipping loses, of one contribution."""
    bound = 255 // (2 * workers)
    t = clip_for(bound)
    x = np.random.default_rng(1).normal(size=100_000)
    ideal = float(np.mean((x - np.rint(np.clip(x, -t, t) * bound / t) * t / bound) ** 2))
    for make_inputs in (normal, student):
        inputs = make_inputs(workers, 16384, workers)
        found = nmse(Team(make("rotated:8"), workers, ((16384,),)).step(inputs, 0)[0], inputs)
        assert found < ideal * (1.6 if make_inputs is normal else 6.0)


def test_orthogonal_columns_are_orthonormal_also_where_they_nearly_depend_on_each_other() -> None:
    generator = np.random.default_rng(4)
    columns = generator.normal(size=(200, 4)).astype(np.float32)
    columns[:, 2] = columns[:, 0] + 1e-3 * columns[:, 2]
    q = orthogonal(columns).astype(np.float64)
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-5)
    assert not orthogonal(np.zeros((5, 2), np.float32)).any(), "nothing spans nothing"


def test_a_matrix_of_low_rank_is_exact_after_a_step_or_two() -> None:
    generator = np.random.default_rng(5)
    matrix = (generator.normal(size=(80, 3)) @ generator.normal(size=(3, 60))).astype(np.float32)
    team = Team(make("low_rank:32:rank=4"), 2, ((80, 60),))
    inputs = [matrix.reshape(-1)] * 2
    team.step(inputs, 0)
    assert nmse(team.step(inputs, 1)[0], inputs) < 1e-8


def test_low_rank_converges_on_what_does_not_change() -> None:
    """With the residual, the sum of what was applied approaches the sum of what went in."""
    inputs = normal(2, 40 * 30, 6)
    team = Team(make("low_rank:32:rank=4"), 2, ((40, 30),))
    applied = np.zeros(1200)
    for step in range(200):
        applied += team.step(inputs, step)[0]
    assert nmse((applied / 200).astype(np.float32), inputs) < 0.03


def test_agreed_blocks_of_a_row_each_lose_nothing_of_a_matrix_whose_other_rows_are_zero() -> None:
    """The gradient of an embedding is like this: as many rows as samples, and no block has a part of two."""
    inputs = [np.zeros((512, 192), np.float32) for _ in range(3)]
    for worker, rows in enumerate(([5, 90], [90, 300], [511, 7])):
        inputs[worker][rows] = np.random.default_rng(worker).normal(size=(2, 192)) + 1
    flat, mean = [each.reshape(-1) for each in inputs], np.mean(inputs, axis=0).reshape(-1)
    team = Team(make(f"agreed_blocks:32:share={5 / 512}:block=192"), 3, ((512, 192),))
    np.testing.assert_allclose(team.step(flat, 0)[0], mean, atol=1e-6)
    assert all(encoder.residual_norm < 1e-4 for encoder in team.encoders)
    with pytest.raises(ConfigurationError, match="block = 4"):
        make("agreed_blocks:32:block=4")


def test_the_largest_are_chosen_alike_also_among_ties() -> None:
    norms = np.random.default_rng(1).integers(0, 9, 100).astype(np.float32)
    norms[[3, 70]] = np.inf
    for count in range(101):
        assert largest(norms, count).tolist() == sorted(np.argsort(-norms, kind="stable")[:count].tolist())


def test_agreed_blocks_of_gradients_with_few_rows_do_what_those_of_dense_ones_do() -> None:
    """Rows of zeros are not touched, whatever is owed of them: the same means, states and accounts."""
    rows, random = 40, np.random.default_rng(2)
    sparse, dense = (Team(make("agreed_blocks:32:share=0.2:block=16"), 2, ((rows, 16), (5,))) for _ in range(2))
    for step in range(6):
        inputs = [np.zeros(rows * 16 + 5, np.float32) for _ in range(2)]
        for x in inputs:
            for row in random.choice(rows, 3, replace=False):
                x[row * 16 : row * 16 + 16] = random.normal(size=16)
            x[-3:] = 1e-3
        # A number that is lost when it is added to anything: all rows are touched.
        full = [np.where(x == 0, np.float32(1e-45), x) for x in inputs]
        for one, other in zip(sparse.step(inputs, step), dense.step(full, step), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-30)
        for few, all_rows in zip(sparse.encoders, dense.encoders, strict=True):
            np.testing.assert_allclose(few.state()["owed"], all_rows.state()["owed"], atol=1e-30)
            assert few.lost == pytest.approx(all_rows.lost)
            assert few.residual_norm == pytest.approx(all_rows.residual_norm)


def test_agreed_blocks_lose_less_than_random_coordinates_of_as_many_bytes() -> None:
    inputs = [x * np.repeat(np.geomspace(1, 1e-3, 64), 256).astype(np.float32) for x in student(3, 64 * 256, 7)]
    agreed = nmse(Team(make("agreed_blocks:32:share=0.1"), 3, ((16384,),)).step(inputs, 0)[0], inputs)
    random = nmse(Team(make("random_coordinates:32:share=0.1"), 3, ((16384,),)).step(inputs, 0)[0], inputs)
    assert agreed < random / 2


def test_every_coordinate_has_its_turn() -> None:
    team = Team(make("random_coordinates:32:share=0.1"), 2, ((3200,),))
    inputs = [np.ones(3200, np.float32)] * 2
    applied = sum(team.step(inputs, step)[0] for step in range(80))
    assert np.min(applied) > 0
