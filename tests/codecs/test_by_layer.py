"""Codecs that treat the parameters of a bucket unlike: by rules, by a budget, by a guard."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Encoder, Floats, Place, Sum, sums_of
from fanin.host.codecs.knapsack import BUCKETS, cheapest
from tests.codecs.driving import Team, by_arithmetic, nmse, normal

SHAPES: tuple[tuple[int, ...], ...] = ((64, 64), (64,), (64, 16))
NAMES = ("embed.weight", "embed.bias", "head.weight")


def asked_of(text: str, shapes: tuple[tuple[int, ...], ...] = SHAPES, names: tuple[str, ...] = ()) -> list[Sum]:
    """The sums of an encoder's first stage."""
    place = Place(0, 4, shapes, names=names)
    return sums_of(next(make(text).encoder(place).reduce(normal(1, place.count, 1)[0], 0)))


def test_by_default_vectors_travel_in_32_bits_and_matrices_rotated_in_the_codecs_lanes() -> None:
    assert [(asked.lanes, len(asked.values)) for asked in asked_of("by_layer:8")] == [(32, 64), (8, 5120)]


def test_names_choose_and_the_first_rule_that_fits_decides() -> None:
    text = "by_layer:8:rules=*.bias=>lanes,32;embed.*=>lanes,16;*=>lanes"
    assert make(text).needs_names
    assert [(each.lanes, len(each.values)) for each in asked_of(text, names=NAMES)] == [(32, 64), (16, 4096), (8, 1024)]


def test_each_part_is_as_good_as_its_own_codec() -> None:
    """Biases that are a thousandth of the weights keep their bits."""
    inputs = normal(4, 5184, 3)
    for x in inputs:
        x[4096:4160] *= 1e-3
    bias = slice(4096, 4160)
    mixed, plain = (Team(make(text), 4, SHAPES).step(inputs, 0)[0] for text in ("by_layer:8", "rotated:8"))
    assert nmse(mixed[bias], [x[bias] for x in inputs]) < 1e-9
    assert nmse(plain[bias], [x[bias] for x in inputs]) > 0.5
    assert nmse(mixed[:4096], [x[:4096] for x in inputs]) < 0.01


def test_a_codec_of_two_stages_may_be_among_the_rules() -> None:
    codec = make("by_layer:8:rules=dims<2=>lanes,32;size<2000=>rotated;*=>low_rank,16,rank=2")
    assert not codec.single_stage
    results = Team(codec, 3, SHAPES).step(normal(3, 5184, 4), 0)
    assert all(each.tobytes() == results[0].tobytes() for each in results)


def test_a_bucket_has_one_stage_where_the_codecs_of_its_own_parameters_have() -> None:
    codec = make("by_layer:8:rules=embed.weight=>agreed_blocks,32;*=>rotated")
    assert not codec.single_stage
    assert not codec.single_stage_at(Place(0, 4, SHAPES, names=NAMES))
    assert codec.single_stage_at(Place(0, 4, SHAPES[1:], names=NAMES[1:]))
    assert make("low_rank").single_stage_at(Place(0, 4, SHAPES)) is False


def test_rules_draw_random_numbers_of_their_own() -> None:
    one, other = asked_of("by_layer:8:rules=size<4096=>rotated;*=>rotated", ((32, 64), (64, 64)))
    x = normal(1, 6144, 1)[0]
    again = asked_of("rotated:8", ((32, 64),))[0]
    assert not np.array_equal(one.values, other.values[: len(one.values)])
    assert len(again.values) == len(one.values) == 2048
    assert len(x) == len(one.values) + len(other.values)


def test_names_that_nobody_knows_are_refused_with_a_remedy() -> None:
    codec = make("by_layer:8:rules=*.bias=>lanes,32;*=>rotated")
    with pytest.raises(ConfigurationError, match="model=model"):
        codec.encoder(Place(0, 2, SHAPES))


def test_a_parameter_without_a_rule_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no rule is for head.weight of shape \[64, 16\]"):
        make("by_layer:8:rules=embed.*=>lanes").encoder(Place(0, 2, SHAPES, names=NAMES))


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        ("", "expected WHERE=>CODEC"),
        ("*", "expected WHERE=>CODEC"),
        ("=>lanes", "expected WHERE=>CODEC"),
        ("*=>", "expected WHERE=>CODEC"),
        ("*=>nothing", "there is no 'nothing'"),
        ("*=>lanes,7", "lanes = '7'"),
        ("*=>by_layer", "within rules"),
        (";".join(["*=>lanes"] * 65), "at most 64"),
    ],
)
def test_what_is_wrong_with_rules_is_said(rules: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        make(f"by_layer:8:rules={rules}")


def test_rules_say_whether_their_sums_are_wide() -> None:
    assert make("by_layer:4/8").needs_accumulators
    assert not make("by_layer:4/8:rules=*=>lanes,8").needs_accumulators
    assert make("by_layer:8:rules=dims<2=>lanes,32;*=>rotated,4/4").needs_accumulators


def test_without_memory_no_rule_has_any() -> None:
    alone = make("by_layer:8").without_memory()
    assert not alone.encoder(Place(0, 2, SHAPES)).state()


# --- the budget ---


def test_the_budget_is_as_cheap_as_the_best_within_a_unit_for_each_layer() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        prices = np.sort(draw.integers(1, 100, (6, 4)), axis=1).astype(float)
        errors = -np.sort(-draw.exponential(1.0, (6, 4)), axis=1)
        most = float(errors[:, 1].sum())
        found = cheapest(prices, errors, most)
        assert found is not None
        rows = np.arange(6)
        assert errors[rows, found].sum() <= most
        ways = [list(way) for way in itertools.product(range(4), repeat=6)]
        tighter = most * (1 - 6 / BUCKETS)
        best = min(prices[rows, way].sum() for way in ways if errors[rows, way].sum() <= tighter)
        assert prices[rows, found].sum() <= best


def test_a_budget_that_nothing_keeps_is_none() -> None:
    assert cheapest(np.ones((2, 2)), np.full((2, 2), 3.0), 5.0) is None
    assert cheapest(np.ones((2, 2)), np.zeros((2, 2)), 0.0) == [0, 0]
    assert cheapest(np.ones((2, 2)), np.ones((2, 2)), float("nan")) is None


def scaled(workers: int, scales: list[float], count: int, seed: int) -> list[Floats]:
    """Each worker's layers of `count` elements, normal with these deviations."""
    return [np.concatenate([x[:count] * np.float32(s) for s in scales]) for x in normal(workers, count, seed)]


@pytest.mark.parametrize(
    ("lanes", "alpha", "scales"),
    [("4/8", 1.0, [1.0, 0.3, 0.1, 0.03]), ("8", 1.1, [1.0, 0.3, 0.01, 0.003])],
    ids=["wide", "packed"],
)
def test_at_the_error_it_is_allowed_the_budget_sends_at_least_15_percent_fewer_bits(
    lanes: str, alpha: float, scales: list[float]
) -> None:
    """Layers as unlike as those of a network: what is small may be coarse."""
    shapes = ((4096,),) * 4
    summed = by_arithmetic(4, words_per_packet=256)
    text = f"adaptive:{lanes}:every=10:alpha={alpha}:feedback=False:most_nmse=inf"
    adaptive = Team(make(text), 4, shapes, summed=summed)
    uniform = Team(make(f"adaptive:{lanes}:every=0:feedback=False:most_nmse=inf"), 4, shapes, summed=summed)
    for step in range(11):
        adaptive.step(scaled(4, scales, 4096, step), step)
    inputs = scaled(4, scales, 4096, 99)
    bits: list[float] = []
    for team in (adaptive, uniform):
        widths = [part.codec.partition(":")[2].split("/") for part in team.encoders[0].parts()]
        bits.append(float(np.mean([int(w[0]) + int(w[-1]) for w in widths])))
    assert bits[0] <= 0.85 * bits[1]
    assert nmse(adaptive.step(inputs, 11)[0], inputs) <= 1.05 * alpha * nmse(uniform.step(inputs, 0)[0], inputs)


def test_a_budget_below_the_uniform_error_buys_wider_lanes() -> None:
    shapes, scales = ((4096,),) * 3, [1.0, 0.5, 0.2]
    summed = by_arithmetic(4, words_per_packet=256)
    errors = []
    for options in ("every=10:alpha=0.1", "every=10:alpha=0.5", "every=0"):
        team = Team(make(f"adaptive:4/8:{options}:feedback=False:most_nmse=inf"), 4, shapes, summed=summed)
        for step in range(11):
            team.step(scaled(4, scales, 4096, step), step)
        inputs = scaled(4, scales, 4096, 99)
        errors.append(nmse(team.step(inputs, 11)[0], inputs))
    tenth, half, uniform = errors
    assert tenth <= 1.05 * 0.1 * uniform
    assert half <= 1.05 * 0.5 * uniform


# --- the guard ---


def widths(encoder: Encoder) -> list[str]:
    return [part.codec.removeprefix("adaptive:") for part in encoder.parts()]


def test_the_guard_widens_the_lanes_of_a_layer_that_suffers_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A layer of tiny gradients shares packets with one of large ones, whose scale leaves it nothing."""
    names = ("large.weight", "tiny.weight")
    codec = make("adaptive:4/8:every=0")
    places = [Place(rank, 3, ((1024,), (1024,)), names=names) for rank in range(3)]
    team = Team(codec, 3, places[0].shapes)
    team.encoders = [codec.encoder(place) for place in places]
    with caplog.at_level(logging.WARNING, "fanin"):
        for step in range(15):
            team.step(scaled(3, [1.0, 1e-3], 1024, step), step)
    assert {tuple(widths(encoder)) for encoder in team.encoders} == {("4/8", "8/8")}
    (said,) = [record.getMessage() for record in caplog.records]
    assert "step 4: layer tiny.weight, bucket 0: its NMSE 1 is above 0.5" in said
    assert "lanes of 8/8 instead of 4/8" in said
    assert team.encoders[0].parts()[1].nmse < 0.01, "in packets of its own"


def test_the_guard_leaves_layers_alone_that_do_well(caplog: pytest.LogCaptureFixture) -> None:
    team = Team(make("adaptive:8"), 3, ((40, 30), (50,)))
    for step in range(20):
        team.step(normal(3, 1250, step), step)
    assert widths(team.encoders[0]) == ["8", "8"]
    assert not caplog.records


def test_a_residual_that_grows_widens_too() -> None:
    """The gradient shrinks a thousandfold, and what is owed does not."""
    team = Team(make("adaptive:4/8:every=0:most_nmse=inf:most_owed=0.08"), 3, ((1024,),))
    for step in range(20):
        team.step(normal(3, 1024, step), step)
    assert widths(team.encoders[0]) == ["8/8"]


def test_what_the_guard_has_widened_no_budget_narrows_again() -> None:
    team = Team(make("adaptive:4/8:every=10:most_nmse=0.001"), 3, ((1024,), (1024,)))
    for step in range(41):
        team.step(normal(3, 2048, step), step)
    assert all(width in ("8/8", "16", "32") for width in widths(team.encoders[0]))


def test_values_that_are_not_finite_move_no_lanes() -> None:
    team = Team(make("adaptive:8:every=10"), 3, ((1024,),))
    for step in range(12):
        inputs = normal(3, 1024, step)
        if step in (3, 7):
            inputs[1][5] = np.inf
        team.step(inputs, step)
    assert widths(team.encoders[0]) == ["8"]


@pytest.mark.parametrize(("field", "value"), [("every", 5), ("every", -1), ("alpha", 0), ("most_nmse", 0)])
def test_fields_without_sense_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=field):
        make(f"adaptive:8:{field}={value}")
