"""The contract of gradient codecs, over every one in the table: whoever adds a file to host/codecs is under it."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.codecs import make, table
from fanin.host.codecs.codec import Codec, Floats, Place
from tests.codecs.driving import Team, by_arithmetic, by_cluster, nmse, normal, student
from tests.support.cluster import Cluster, job
from tests.support.network import Link

TABLE = sorted(table())
NAMES = [*TABLE, "lanes:8:stochastic=True"]
"""Every codec, and what is a codec of its own by a field."""
ALWAYS_WITH_MEMORY = ("low_rank", "agreed_blocks", "by_layer")
WITH_MEMORY = [name for name in NAMES if "feedback" in str(make(name)) or name in ALWAYS_WITH_MEMORY]
SHAPES: tuple[tuple[int, ...], ...] = ((40, 30), (40,), (7, 5, 3))
"""A matrix worth compressing, a vector, and what is too small."""
COUNT = sum(int(np.prod(shape)) for shape in SHAPES)


def same(results: list[Floats]) -> bool:
    return all(each.tobytes() == results[0].tobytes() for each in results)


@pytest.mark.parametrize("kind", ["twin", "native", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_every_worker_has_the_same_bits_through_a_switch_that_loses_packets(name: str, kind: str) -> None:
    link = Link(loss=0.05, duplicate=0.05, reorder=0.1)
    cluster = Cluster.joined(kind, spec=job(workers=3, words_per_packet=64), link=link)
    team = Team(make(name), 3, SHAPES, summed=by_cluster(cluster))
    for step in range(2):
        results = team.step(normal(3, COUNT, step), step)
        assert same(results)
        assert np.isfinite(results[0]).all()


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_sum_a_codecs_stages_to_what_arithmetic_says(name: str) -> None:
    spec = job(workers=3, words_per_packet=1024)
    cluster = Cluster.joined("lockstep", spec=spec)
    through, alone = Team(make(name), 3, SHAPES, summed=by_cluster(cluster)), Team(make(name), 3, SHAPES)
    for step in range(3):
        inputs = student(3, COUNT, step)
        assert through.step(inputs, step)[0].tobytes() == alone.step(inputs, step)[0].tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shapes", [((),), ((0,),), ((1,),), ((2,),), ((257,),), ((1, 1),), ((0, 4),)], ids=str)
@pytest.mark.parametrize("workers", [2, 7])
def test_any_shape_is_a_shape(name: str, shapes: tuple[tuple[int, ...], ...], workers: int) -> None:
    team = Team(make(name), workers, shapes)
    inputs = normal(workers, team.encoders[0].place.count, 5)
    for step in range(2):
        results = team.step(inputs, step)
        assert same(results)
        assert np.isfinite(results[0]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [2, 16, 64])
def test_any_number_of_workers_is_summed(name: str, workers: int) -> None:
    assert same(Team(make(name), workers, ((300,),)).step(normal(workers, 300, 1), 0))


@pytest.mark.parametrize("name", TABLE)
def test_lanes_that_hold_no_level_of_so_many_workers_are_refused_with_a_remedy(name: str) -> None:
    Team(make(f"{name}:4"), 7, ((300,),))
    with pytest.raises(ConfigurationError, match="take lanes = 8"):
        Team(make(f"{name}:4"), 8, ((300,),))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_every_worker_and_no_later_step(name: str, bad: float) -> None:
    """A loss scaler sees it at every rank; the step after it is as if it had not been."""
    team = Team(make(f"{name}:share=1" if "share" in str(make(name)) else name), 3, ((40, 30), (50,)))
    inputs = normal(3, 1250, 1)
    inputs[1][17] = bad
    results = team.step(inputs, 0)
    assert same(results)
    assert np.isnan(results[0][17])
    after = team.step(normal(3, 1250, 2), 1)
    assert same(after)
    assert np.isfinite(after[0]).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_is_loaded_goes_on_to_the_same_bits(name: str) -> None:
    team, restarted = Team(make(name), 3, SHAPES), Team(make(name), 3, SHAPES)
    for step in range(3):
        team.step(normal(3, COUNT, step), step)
    for encoder, other in zip(team.encoders, restarted.encoders, strict=True):
        saved = encoder.state()
        other.load(saved)
        for array in saved.values():
            array[...] = 7  # a state is a copy, and what was loaded is one, too
    for step in range(3, 6):
        inputs = normal(3, COUNT, step)
        assert same(team.step(inputs, step) + restarted.step(inputs, step))


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_a_state_of_another_layout_is_refused(name: str) -> None:
    saved = Team(make(name), 2, ((40, 30),)).encoders[0].state()
    with pytest.raises(ConfigurationError, match="another layout"):
        Team(make(name), 2, ((3000,),)).encoders[0].load(saved)


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_error_feedback_telescopes(name: str) -> None:
    """The updates of all steps plus the workers' residuals are equal to the gradients."""
    shapes = ((40, 30), (60,))
    team = Team(make(f"{name}:share=0.2" if "share" in str(make(name)) else name), 2, shapes)
    went_in, applied = np.zeros(1260), np.zeros(1260)
    for step in range(12):
        inputs = normal(2, 1260, step)
        went_in += np.mean(inputs, axis=0)
        applied += team.step(inputs, step)[0]
    norms = [encoder.residual_norm for encoder in team.encoders]
    assert np.linalg.norm(went_in - applied) <= np.mean(norms) * 1.001 + 1e-3
    assert np.linalg.norm(went_in - applied) < np.linalg.norm(went_in)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_and_the_step_alone_decide_what_is_drawn(name: str) -> None:
    inputs = normal(3, COUNT, 1)
    first = Team(make(name), 3, SHAPES).step(inputs, 5)[0]
    assert first.tobytes() == Team(make(name), 3, SHAPES).step(inputs, 5)[0].tobytes()


@pytest.mark.parametrize("name", TABLE)
def test_a_codecs_text_makes_it_again(name: str) -> None:
    codec = make(name)
    assert make(str(codec)) == codec
    assert make(f"{name}:16:seed=3") == type(codec)(lanes="16", seed=3)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("lanes", ["8/4", "16/16", "4/", "/8", "a/b"])
def test_widths_that_no_switch_has_are_refused_with_those_that_there_are(name: str, lanes: str) -> None:
    with pytest.raises(ConfigurationError, match="bits up / bits down: '8/8', '4/8'"):
        make(f"{name}:{lanes}")


def test_indices_that_are_summed_without_loss_have_no_wide_sums() -> None:
    with pytest.raises(ConfigurationError, match="summed without loss"):
        make("ternary:2/8").encoder(Place(0, 4, ((9,),)))


@pytest.mark.parametrize(("codec", "most"), [("lanes:8/8", 0.0003), ("rotated:4/8", 0.015)])
@pytest.mark.parametrize("workers", [2, 8, 32, 64])
def test_wide_sums_lose_the_same_with_any_number_of_workers(codec: str, most: float, workers: int) -> None:
    inputs = normal(workers, 16384, workers)
    team = Team(make(codec), workers, ((16384,),), summed=by_arithmetic(workers, words_per_packet=256))
    assert nmse(team.step(inputs, 0)[0], inputs) <= most, "of blocks of 1,024"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("nothing", "there is no 'nothing'"),
        ("rotated:7", "lanes = '7'"),
        ("rotated:8:red=1", "no field 'red'"),
        ("low_rank:32:rank=0", "rank = 0"),
        ("low_rank:32:rank=x", "rank = 'x'"),
        ("ternary:8:clip=-1", "clip"),
        ("random_coordinates:32:share=2", "share"),
        ("agreed_blocks:32:share=0", "share"),
        ("lanes:8:seed=-1", "seed"),
        ("lanes:8:feedback=perhaps", "feedback"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(text: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        make(text)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_step_lost_is_in_the_account(name: str) -> None:
    """Over one worker's own contribution; the mean's error is smaller, since workers' errors are independent."""
    team = Team(make(name), 2, ((64, 64),))
    inputs = normal(2, 4096, 3)
    team.step(inputs, 0)
    for encoder, x in zip(team.encoders, inputs, strict=True):
        assert encoder.energy == pytest.approx(float(np.sum(x.astype(np.float64) ** 2)), rel=1e-4)
        assert 0 <= encoder.nmse < 60


def mean_nmse(codec: Codec, workers: int, make_inputs: object, count: int = 16384) -> float:
    inputs = make_inputs(workers, count, workers)  # type: ignore[operator]
    return nmse(Team(codec, workers, ((count,),)).step(inputs, 0)[0], inputs)


def test_rotation_is_what_heavy_tails_need() -> None:
    for bits in ("8", "4"):
        plain, rotated = (mean_nmse(make(f"{name}:{bits}"), 4, student) for name in ("lanes", "rotated"))
        assert rotated < plain / 2


def test_lanes_lose_what_the_design_says() -> None:
    """docs/codecs.md's table: packed 8-bit lanes."""
    assert mean_nmse(make("lanes:8"), 8, normal) < 0.008
    assert mean_nmse(make("lanes:16"), 8, normal) < 1e-6
    assert mean_nmse(make("rotated:8"), 8, normal) < 0.005
