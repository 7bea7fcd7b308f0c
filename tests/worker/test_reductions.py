"""Results of reductions: every element type and lane width, shapes, ranges, factors, several at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.numerics.reduction import COPIED, Element, Reduction
from fanin.protocol.events import ReductionDone
from fanin.protocol.job import WINDOW_POOLS
from tests.support.cluster import Cluster, expected, job, normal, reduction, same_bits

FLOATS = [Element.FLOAT32, Element.FLOAT64, Element.FLOAT16, Element.BFLOAT16]
INTEGERS = {Element.INT32: np.int32, Element.INT16: np.int16, Element.INT8: np.int8, Element.UINT8: np.uint8}


@pytest.mark.parametrize("lanes", [32, 16, 8, 4])
@pytest.mark.parametrize("element", FLOATS)
def test_floating_point_sums_are_what_the_codec_says(kinds: str, element: Element, lanes: int) -> None:
    spec = job(workers=3, words_per_packet=32, codes_per_packet=2)
    inputs = normal(element, 3, 1000)
    results = Cluster.joined(kinds, spec=spec).all_reduce(inputs, element=element, lanes=lanes)
    assert same_bits(results, expected(spec, inputs, element, lanes))


@pytest.mark.parametrize("element", INTEGERS)
def test_integer_sums_are_exact_and_wrap(kinds: str, element: Element) -> None:
    dtype: Any = INTEGERS[element]
    limits = np.iinfo(dtype)
    numbers = np.random.default_rng(2).integers(limits.min, limits.max, (3, 333), dtype, endpoint=True)
    results = Cluster.joined(kinds, spec=job(workers=3)).all_reduce(list(numbers), element=element)
    assert same_bits(results, numbers.sum(axis=0, dtype=dtype))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 64, 65, 16 * 4 * WINDOW_POOLS + 3])
@pytest.mark.parametrize("element", [Element.FLOAT32, Element.INT32])
def test_any_count_works(kinds: str, count: int, element: Element) -> None:
    spec = job()
    inputs = [(x * 100).astype(np.int32) if element is Element.INT32 else x for x in normal(Element.FLOAT32, 2, count)]
    results = Cluster.joined(kinds, spec=spec).all_reduce(inputs)
    assert same_bits(results, expected(spec, inputs, element))


def test_one_slot_one_word_group_and_one_worker_are_enough(kinds: str) -> None:
    spec = job(workers=1, slots=1, words_per_packet=8)
    inputs = normal(Element.FLOAT32, 1, 100)
    results = Cluster.joined(kinds, spec=spec).all_reduce(inputs)
    assert same_bits(results, expected(spec, inputs, Element.FLOAT32))


def test_a_block_with_an_infinity_becomes_nan_everywhere_and_its_neighbours_do_not(kinds: str) -> None:
    spec = job(words_per_packet=16, codes_per_packet=2)
    inputs = normal(Element.FLOAT32, 2, 64)
    inputs[1][20] = np.inf
    for result in Cluster.joined(kinds, spec=spec).all_reduce(inputs):
        assert np.isnan(result[16:24]).all()
        assert np.isfinite(np.delete(result, np.s_[16:24])).all()


def test_factor_and_divisor_are_applied(kinds: str) -> None:
    spec = job(workers=3)
    inputs = normal(Element.FLOAT32, 3, 100)
    results = Cluster.joined(kinds, spec=spec).all_reduce(inputs, factor=0.3, divisor=3.0)
    assert same_bits(results, expected(spec, inputs, Element.FLOAT32, factor=0.3, divisor=3.0))
    np.testing.assert_allclose(results[0], np.mean(inputs, axis=0) * np.float32(0.3), atol=1e-6)


@pytest.mark.parametrize(("first", "kept"), [(0, 0), (0, 1), (10, 50), (16, 16), (95, 5), (0, 100)])
def test_only_the_kept_range_is_written(kinds: str, first: int, kept: int) -> None:
    spec = job()
    inputs = normal(Element.FLOAT32, 2, 100)
    want = expected(spec, inputs, Element.FLOAT32)
    cluster = Cluster.joined(kinds, spec=spec)
    outputs = [np.full(kept + 2, 7.0, np.float32) for _ in inputs]
    sources = [np.array(x) for x in inputs]
    for worker in range(2):
        given = reduction(sources[worker], outputs[worker][1:], keep_first=first, keep_count=kept)
        cluster.submit(worker, given)
    cluster.run()
    for output, source, given_input in zip(outputs, sources, inputs, strict=True):
        assert output[1:-1].tobytes() == want[first : first + kept].tobytes()
        assert output[0] == output[-1] == 7.0
        assert source.tobytes() == given_input.tobytes()


def test_a_reduce_scatter_in_place_writes_its_own_part_alone(kinds: str) -> None:
    spec = job()
    inputs = normal(Element.FLOAT32, 2, 100)
    want = expected(spec, inputs, Element.FLOAT32)
    cluster = Cluster.joined(kinds, spec=spec)
    arrays = [np.array(x) for x in inputs]
    for worker, array in enumerate(arrays):
        part = slice(50 * worker, 50 * worker + 50)
        cluster.submit(worker, reduction(array, array[part], keep_first=50 * worker, keep_count=50))
    cluster.run()
    for worker, array in enumerate(arrays):
        inputs[worker][50 * worker : 50 * worker + 50] = want[50 * worker : 50 * worker + 50]
        assert array.tobytes() == inputs[worker].tobytes()


def test_error_feedback_keeps_what_narrow_lanes_lose(kinds: str) -> None:
    spec = job(words_per_packet=8)
    cluster = Cluster.joined(kinds, spec=spec)
    inputs = normal(Element.FLOAT32, 2, 100)
    residuals = [np.zeros(100, np.float32) for _ in inputs]
    total = np.zeros(100, np.float64)
    for _ in range(8):
        arrays = [np.array(x) for x in inputs]
        for worker in range(2):
            cluster.submit(worker, reduction(arrays[worker], lanes=8, residual=residuals[worker]))
        cluster.run()
        total += arrays[0]
    lost = 8 * np.sum(inputs, axis=0, dtype=np.float64) - total
    np.testing.assert_allclose(lost, np.sum(residuals, axis=0), atol=1e-4)
    assert np.abs(residuals[0]).max() > 1e-3


@pytest.mark.parametrize("flows", [2, 3])
def test_flows_share_the_chunks_of_a_reduction(kinds: str, flows: int) -> None:
    spec = job()
    inputs = normal(Element.FLOAT32, 2, 16 * 7 + 5)
    arrays = [np.array(x) for x in inputs]
    for flow in range(flows):
        cluster = Cluster.joined(kinds, spec=spec, flow=flow, flow_count=flows)
        for worker in range(2):
            cluster.submit(worker, reduction(arrays[worker]))
        cluster.run()
    assert same_bits(arrays, expected(spec, inputs, Element.FLOAT32))


def test_a_flow_without_chunks_is_done_at_once(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(), flow=1, flow_count=2)
    for worker in range(2):
        cluster.submit(worker, reduction(np.ones(16, np.float32)))
        assert cluster.network.worker_events[worker][-1] == ReductionDone(1)


def test_many_small_reductions_run_side_by_side(kinds: str) -> None:
    spec = job(slots=8)
    rng = np.random.default_rng(5)
    cluster = Cluster.joined(kinds, spec=spec)
    wanted, got = [], []
    for number in range(100):
        element = (Element.FLOAT32, Element.INT16, Element.FLOAT64)[number % 3]
        count = int(rng.integers(1, 40))
        inputs = [rng.integers(-99, 99, count).astype(np.int16) for _ in range(2)]
        if element is not Element.INT16:
            inputs = normal(element, 2, count, seed=number)
        wanted.append(expected(spec, inputs, element))
        got.append([np.array(x) for x in inputs])
        for worker in range(2):
            cluster.submit(worker, reduction(got[-1][worker]))
    cluster.run()
    assert all(same_bits(results, want) for results, want in zip(got, wanted, strict=True))
    done = [event.ticket for event in cluster.network.worker_events[0] if isinstance(event, ReductionDone)]
    assert sorted(done) == list(range(1, 101))


def test_a_reduction_joins_others_that_are_under_way(kinds: str) -> None:
    spec = job()
    cluster = Cluster.joined(kinds, spec=spec)
    first, second = normal(Element.FLOAT32, 2, 1000, seed=1), normal(Element.FLOAT32, 2, 500, seed=2)
    arrays = [[np.array(x) for x in inputs] for inputs in (first, second)]
    for worker in range(2):
        cluster.submit(worker, reduction(arrays[0][worker]))
        cluster.network.run_for(300e-6)
        cluster.submit(worker, reduction(arrays[1][worker]))
    cluster.run()
    assert same_bits(arrays[0], expected(spec, first, Element.FLOAT32))
    assert same_bits(arrays[1], expected(spec, second, Element.FLOAT32))


def test_sums_meet_what_float32_promises(kinds: str) -> None:
    """Within one float32 epsilon of the chunk's maximum of a float64 sum (docs/numerics.md)."""
    inputs = normal(Element.FLOAT32, 4, 4096)
    [result, *_] = Cluster.joined(kinds, spec=job(workers=4, words_per_packet=64)).all_reduce(inputs)
    exact = np.sum(inputs, axis=0, dtype=np.float64)
    bounds = np.abs(exact).reshape(-1, 64).max(axis=1) * np.finfo(np.float32).eps
    assert (np.abs(result - exact).reshape(-1, 64).max(axis=1) <= bounds).all()


REFUSED = {
    "integers with a divisor": lambda x: reduction(x.astype(np.int32), divisor=2.0),
    "integers with a factor": lambda x: reduction(x.astype(np.int32), factor=2.0),
    "partial overlap": lambda x: reduction(x[:50], x[10:60]),
    "kept range at another place of the source": lambda x: reduction(x, x, keep_first=10, keep_count=10),
    "too many contributions for the lanes": lambda x: reduction(x, lanes=4),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_computed_wrongly_is_refused(kind: str, case: str) -> None:
    spec = job(workers=8, quorum=8)
    cluster = Cluster.joined(kind, spec=spec)
    with pytest.raises(ConfigurationError):
        cluster.workers[0].submit(REFUSED[case](np.ones(100, np.float32)))
    results = cluster.all_reduce([np.ones(10, np.float32)] * 8)
    assert same_bits(results, np.full(10, 8, np.float32))


NOWHERE: dict[str, dict[str, Any]] = {
    "source": {"source": 0, "destination": 4096, "count": 8},
    "destination": {"source": 4096, "destination": 0, "count": 8},
    "own elements": {"source": 0, "destination": 4096, "count": 8, "own_first": 2, "own_count": 4, "lanes": COPIED},
}


@pytest.mark.parametrize("case", NOWHERE)
def test_elements_at_address_0_are_refused(case: str) -> None:
    with pytest.raises(ConfigurationError, match="address 0"):
        Reduction(element=Element.UINT8, **NOWHERE[case])
    unread = {"passes": True} if case != "own elements" else {"own_count": 0}
    Reduction(element=Element.UINT8, **{**NOWHERE[case], "keep_count": 0, **unread})


def test_floating_point_is_refused_where_rounds_mix_bases(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(staleness=1))
    with pytest.raises(ConfigurationError, match="staleness"):
        cluster.workers[0].submit(reduction(np.ones(4, np.float32)))
