"""Small reductions by forecast (host/machine/scale_forecast.py): how many rounds they take; no bit ever changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.host.machine.scale_forecast import MAX_AGE, MAX_SHAPES, NO_FORECAST, Forecast, ScaleForecast
from fanin.numerics.reduction import Element
from tests.support.cluster import Cluster, expected, job, reduction
from tests.support.network import Link

SPEC = job(workers=3, words_per_packet=32)
SHAPE = (8, Element.FLOAT32, 32)
CODES = np.array([7, 9], np.uint16)


def inputs(scale: float = 1.0, count: int = 8) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """One array per worker; the largest magnitude in them is `scale` times 3."""
    ramp = np.linspace(0.25, 1, count, dtype=np.float32)
    return [ramp * np.float32(scale) * np.float32(worker + 1) for worker in range(SPEC.workers)]


def tally(cluster: Cluster) -> list[tuple[int, int]]:
    """(held, missed) forecasts of every worker."""
    counters = [worker.counters() for worker in cluster.workers]
    return [(each["forecasts"], each["forecasts_missed"]) for each in counters]


def test_the_first_of_a_shape_takes_two_rounds_and_the_next_one(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=SPEC)
    for missed, held in ((1, 0), (1, 1), (1, 2)):
        before = cluster.total("packets_out")
        results = cluster.all_reduce(inputs())
        assert tally(cluster) == [(held, missed)] * 3
        assert cluster.total("packets_out") - before == 3 * (2 if held == 0 else 1)
        want = expected(SPEC, inputs(), Element.FLOAT32, 32)
        assert all(result.tobytes() == want.tobytes() for result in results)


# R-WORKER-3
def test_another_scale_takes_two_rounds_and_comes_to_the_same_bits(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=SPEC)
    for scale in (1.0, 1.0, 1000.0, 1e-30, 1e-30, float("inf"), -1.0, 1.5):
        results = cluster.all_reduce(inputs(scale))
        want = expected(SPEC, inputs(scale), Element.FLOAT32, 32)
        assert all(result.tobytes() == want.tobytes() for result in results)
    assert tally(cluster) == [(2, 6)] * 3


@pytest.mark.parametrize("lanes", [32, 16, 8])
def test_shapes_are_told_apart(kinds: str, lanes: int) -> None:
    """A forecast is of the same number of elements, element type and lanes; others in between do not disturb it."""
    cluster = Cluster.joined(kinds, spec=SPEC)
    for _ in range(3):
        for count, scale in ((8, 1.0), (5, 1e6)):
            results = cluster.all_reduce(inputs(scale, count), lanes=lanes)
            want = expected(SPEC, inputs(scale, count), Element.FLOAT32, lanes)
            assert all(result.tobytes() == want.tobytes() for result in results)
        cluster.all_reduce([np.arange(4, dtype=np.int32)] * 3)
    assert tally(cluster) == [(4, 2)] * 3


def test_what_leaves_no_room_for_the_age_is_not_forecast(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=SPEC)
    for count in (30, 30, 31, 31):
        cluster.all_reduce(inputs(count=count))
    assert tally(cluster) == [(1, 1)] * 3


def test_jobs_that_do_not_wait_for_all_agree_first(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=3, words_per_packet=32, on_worker_loss="continue"))
    for _ in range(3):
        cluster.all_reduce(inputs())
    assert tally(cluster) == [(0, 0)] * 3


# R-WORKER-3
def test_workers_that_forecast_from_different_reductions_agree_first(kinds: str) -> None:
    """Worker 0 submits the third reduction before the second is done, the others after: they differ in age."""
    cluster = Cluster.joined(kinds, spec=SPEC)
    cluster.all_reduce(inputs(1.0))
    second, third = inputs(1000.0), inputs(1.0)
    cluster.submit(0, reduction(second[0]))
    cluster.submit(0, reduction(third[0]))
    for array, worker in ((second, 1), (second, 2)):
        cluster.submit(worker, reduction(array[worker]))
    cluster.network.run_until(lambda: all(worker.outstanding() == 0 for worker in cluster.workers[1:]), limit_s=60)
    for worker in (1, 2):
        cluster.submit(worker, reduction(third[worker]))
    cluster.run()
    want = expected(SPEC, inputs(1.0), Element.FLOAT32, 32)
    assert all(array.tobytes() == want.tobytes() for array in third)
    assert tally(cluster) == [(0, 3)] * 3


# R-WORKER-3
@settings(max_examples=25)
@given(
    scales=st.lists(st.sampled_from([1.0, 1.5, 3.0, 1e9, float("nan")]), min_size=1, max_size=12),
    together=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_bits_never_depend_on_forecasts_whatever_the_network_does(
    scales: Sequence[float], together: int, seed: int
) -> None:
    """Many in flight at once, lost, repeated and overtaken."""
    link = Link(loss=0.1, duplicate=0.1, reorder=0.2)
    cluster = Cluster.joined("mixed", spec=SPEC, link=link, seed=seed)
    batches = [scales[first : first + together] for first in range(0, len(scales), together)]
    for batch in batches:
        arrays = [inputs(scale) for scale in batch]
        for of_workers in arrays:
            for worker, array in enumerate(of_workers):
                cluster.submit(worker, reduction(array))
        cluster.run()
        for scale, of_workers in zip(batch, arrays, strict=True):
            want = expected(SPEC, inputs(scale), Element.FLOAT32, 32)
            assert all(array.tobytes() == want.tobytes() for array in of_workers)
    assert len({sum(each) for each in tally(cluster)}) == 1
    assert sum(tally(cluster)[0]) == len(scales)


@given(ages=st.lists(st.integers(0, MAX_AGE), min_size=1, max_size=32))
def test_sums_of_ages_tell_whether_all_are_the_same(ages: list[int]) -> None:
    sums = np.array([Forecast(age, CODES).age_words() for age in ages]).sum(axis=0, dtype=np.uint32)
    same = all(one == other for one, other in pairwise(ages))
    assert Forecast(ages[0], CODES).holds(CODES, sums, len(ages)) == (same and ages[0] > 0)


def test_the_sums_cannot_wrap() -> None:
    assert 127 * MAX_AGE**2 < 2**32


def test_codes_that_came_back_otherwise_are_a_miss() -> None:
    forecast = Forecast(1, CODES)
    assert forecast.holds(CODES, forecast.age_words(), 1)
    assert not forecast.holds(CODES + 1, forecast.age_words(), 1)


def test_what_is_remembered_is_bounded_in_age_and_number() -> None:
    scales = ScaleForecast()
    scales.learn(SHAPE, 10, CODES)
    assert scales.of(SHAPE, 10 + MAX_AGE).age == MAX_AGE
    assert scales.of(SHAPE, 11 + MAX_AGE) is NO_FORECAST
    scales.learn(SHAPE, 9, CODES + 1)
    assert np.array_equal(scales.of(SHAPE, 11).codes, CODES), "an older result came late"
    for count in range(100, 100 + MAX_SHAPES):
        scales.learn((count, Element.FLOAT32, 32), 11, CODES)
    assert scales.of(SHAPE, 12) is NO_FORECAST
