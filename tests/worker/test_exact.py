"""Exact reductions, packet by packet: in whole packets or spread over several, with and without everybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.codecs.words.exact import MAX_SPREAD_WORDS
from fanin.numerics.reduction import EXACT, Element, Operator
from fanin.protocol.events import PacketRefused
from fanin.protocol.wire import Reason
from tests.support.cluster import Array, Cluster, expected, job, normal, reduction, same_bits
from tests.support.network import SWITCH, Link

HOSTILE = Link(loss=0.1, duplicate=0.1, reorder=0.2)
SHAPES = [{"workers": 3, "words_per_packet": 32}, {"workers": 3}, {"workers": 9, "words_per_packet": 8}]
"""Several elements a packet, few, and less than one for every rank."""


def inputs_of(element: Element, workers: int, count: int) -> list[Array]:
    if element.floating:
        return normal(element, workers, count)
    dtype: Any = {Element.INT64: np.int64, Element.UINT8: np.uint8}[element]
    limits = np.iinfo(dtype)
    return list(np.random.default_rng(4).integers(limits.min, limits.max, (workers, count), dtype, endpoint=True))


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("on_worker_loss", ["raise", "continue"])
def test_every_operator_is_exact_for_every_element(
    kinds: str, shape: dict[str, int], on_worker_loss: str, link: Link | None
) -> None:
    spec = job(**shape, on_worker_loss=on_worker_loss)
    cluster = Cluster.joined(kinds, spec=spec, link=link)
    for element in (Element.FLOAT32, Element.FLOAT64, Element.BFLOAT16, Element.INT64, Element.UINT8):
        for operator in (Operator.SUM, Operator.MIN, Operator.PRODUCT):
            inputs = inputs_of(element, spec.workers, 21)
            results = cluster.all_reduce(inputs, element=element, lanes=EXACT, operator=operator)
            assert same_bits(results, expected(spec, inputs, element, EXACT, operator=operator))


def test_it_takes_one_round_trip_and_no_codes(kind: str) -> None:
    spec = job(workers=4, words_per_packet=1024)
    cluster = Cluster.joined(kind, spec=spec)
    before = cluster.total("results")
    cluster.all_reduce(normal(Element.FLOAT32, 4, 256), lanes=EXACT)
    assert cluster.total("results") == before + 4
    assert cluster.total("forecasts") == cluster.total("forecasts_missed") == 0


@pytest.mark.parametrize("words", [64, 8], ids=["packets", "spread"])
def test_only_what_is_kept_is_written(kinds: str, words: int) -> None:
    spec = job(workers=9, words_per_packet=words)
    inputs = normal(Element.FLOAT32, 9, 40)
    whole = expected(spec, inputs, Element.FLOAT32, EXACT)
    cluster = Cluster.joined(kinds, spec=spec)
    outputs = [np.full(12, np.nan, np.float32) for _ in inputs]
    for worker, (x, output) in enumerate(zip(inputs, outputs, strict=True)):
        cluster.submit(worker, reduction(x, output, lanes=EXACT, keep_first=3 * worker, keep_count=12))
    cluster.run()
    for worker, output in enumerate(outputs):
        assert output.tobytes() == whole[3 * worker : 3 * worker + 12].tobytes()


@pytest.mark.parametrize("words", [16, 8], ids=["packets", "spread"])
def test_a_rank_that_is_gone_adds_nothing_not_even_a_zero(kinds: str, words: int) -> None:
    spec = job(workers=9 if words == 8 else 3, words_per_packet=words, on_worker_loss="continue")
    cluster = Cluster.joined(kinds, spec=spec)
    cluster.network.cut(1 + 1)
    cluster.switch.evict(spec.job, 1, cluster.network.now)
    cluster.network.speak(SWITCH)
    others = [worker for worker in range(spec.workers) if worker != 1]
    for operator, values, wanted in (
        (Operator.SUM, [-0.0] * 3, -0.0),
        (Operator.MIN, [3.0, 4.0, 5.0], 3.0),
        (Operator.PRODUCT, [2.0, 1.0, 1.0], 2.0),
    ):
        arrays = [np.full(5, values[min(index, 2)], np.float32) for index in range(len(others))]
        for worker, array in zip(others, arrays, strict=True):
            cluster.submit(worker, reduction(array, lanes=EXACT, operator=operator, signature=7))
        cluster.network.run_until(lambda: not any(cluster.workers[w].outstanding() for w in others), limit_s=20)
        for array in arrays:
            assert array.tobytes() == np.full(5, wanted, np.float32).tobytes()
    arrays = [np.full(5, 3e38, np.float32) for _ in others]
    for worker, array in zip(others, arrays, strict=True):
        cluster.submit(worker, reduction(array, lanes=EXACT, divisor=0.0, signature=8))
    cluster.network.run_until(lambda: not any(cluster.workers[w].outstanding() for w in others), limit_s=20)
    assert all((array == np.float32(3e38)).all() for array in arrays), "divided by who is there, before it overflows"


def test_error_feedback_of_what_is_exact_becomes_zero(kinds: str) -> None:
    spec = job(workers=2, words_per_packet=64)
    cluster = Cluster.joined(kinds, spec=spec)
    arrays = [np.array([1.0, 1e9], np.float32) for _ in range(2)]
    residuals = [np.array([0.25, 64.0], np.float32) for _ in range(2)]
    for worker in range(2):
        cluster.submit(worker, reduction(arrays[worker], residual=residuals[worker], lanes=EXACT))
    cluster.run()
    assert arrays[0].tolist() == arrays[1].tolist() == [2.5, 2e9 + 128]
    assert residuals[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "other", [{"lanes": 32}, {"lanes": EXACT, "operator": Operator.MAX}], ids=["another border", "another operator"]
)
def test_ranks_that_disagree_are_told(kinds: str, other: dict[str, Any]) -> None:
    cluster = Cluster.joined(kinds, spec=job(workers=2, words_per_packet=64))
    cluster.submit(0, reduction(np.ones(5, np.float32), lanes=EXACT))
    cluster.submit(1, reduction(np.ones(5, np.float32), **other))
    cluster.network.run_until(lambda: any(cluster.news(worker) for worker in range(2)))
    assert PacketRefused(Reason.MISMATCH) in [news for worker in range(2) for news in cluster.news(worker)]


def test_what_cannot_be_exact_is_refused(kind: str) -> None:
    stale = Cluster.joined(kind, spec=job(workers=2, staleness=1))
    with pytest.raises(ConfigurationError, match="staleness"):
        stale.submit(0, reduction(np.ones(5, np.float32), lanes=EXACT))
    tree = Cluster.joined(kind, spec=job(workers=2))
    many = MAX_SPREAD_WORDS
    short = Cluster.joined(kind, spec=job(workers=9, words_per_packet=8))
    with pytest.raises(ConfigurationError, match=f"too many to be reduced exactly.*at most {many // 9}"):
        short.submit(0, reduction(np.ones(many // 4, np.float32), lanes=EXACT))
    for refused in (
        {"operator": Operator.MAX},
        {"lanes": EXACT, "operator": Operator.BOR},
        {"lanes": EXACT, "scale_code": 5},
        {"lanes": EXACT, "operator": Operator.MAX, "divisor": 2.0},
    ):
        with pytest.raises(ConfigurationError):
            tree.submit(0, reduction(np.ones(5, np.float32), **refused))
    with pytest.raises(ConfigurationError, match="exact"):
        tree.submit(0, reduction(np.ones(5, np.int64)))
