"""Every machine learns who has spoiled a sum from the packets that tell of the NaN, in lanes of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fanin.numerics.fixed_point import to_bfloat16
from fanin.numerics.reduction import EXACT, WIDE_SUMS, Element, Operator
from fanin.protocol.events import Spoiled
from tests.support.cluster import Array, Cluster, job, normal, reduction
from tests.support.network import Link
from tests.support.tree import Tree

HOSTILE = Link(loss=0.1, duplicate=0.1, reorder=0.2)
EIGHT_BITS = next(number for number, widths in WIDE_SUMS.items() if widths == (8, 8))
WORKERS, COUNT = 5, 321
KINDS_OF_SUMS: dict[str, dict[str, Any]] = {
    "lanes of 32": {"element": Element.FLOAT32, "lanes": 32},
    "lanes of 16": {"element": Element.BFLOAT16, "lanes": 16},
    "lanes of 8": {"element": Element.FLOAT16, "lanes": 8},
    "float64": {"element": Element.FLOAT64, "lanes": 32},
    "wide sums": {"element": Element.FLOAT32, "lanes": EIGHT_BITS},
    "exact": {"element": Element.FLOAT32, "lanes": EXACT},
}


def spoil(array: Array, at: int, value: float) -> None:
    array[at] = to_bfloat16(np.array([value], np.float32))[0] if array.dtype == np.uint16 else value


def told(cluster: Cluster, worker: int, ticket: int = 1) -> dict[int, tuple[int, int]]:
    """By place: the range with the first element that is not finite, as a worker has heard of it."""
    found: dict[int, tuple[int, int]] = {}
    for each in cluster.news(worker):
        assert isinstance(each, Spoiled)
        if each.ticket == ticket and (each.place not in found or each.first < found[each.place][0]):
            found[each.place] = each.first, each.first + each.count
    return found


@pytest.mark.parametrize("name", KINDS_OF_SUMS)
def test_every_rank_names_who_spoiled_it_and_where(kinds: str, name: str) -> None:
    how = KINDS_OF_SUMS[name]
    wide = how["lanes"] == EIGHT_BITS
    spec = job(workers=WORKERS, words_per_packet=32, codes_per_packet=1 if wide else 2, accumulators=wide)
    cluster = Cluster.joined(kinds, spec=spec, link=HOSTILE)
    inputs = normal(how["element"], WORKERS, COUNT)
    for at, value in ((200, np.inf), (40, np.nan), (COUNT - 1, np.nan)):
        spoil(inputs[3], at, value)
    spoil(inputs[1], 41, -np.inf)
    cluster.all_reduce(inputs, **how)
    for worker in range(WORKERS):
        found = told(cluster, worker)
        assert sorted(found) == [1, 3]
        for place, at in ((1, 41), (3, 40)):
            first, end = found[place]
            assert first <= at < end
            assert wide or end - first == 1, "the element itself, where words have room for it"


def test_a_short_last_packet_names_all_of_them(kinds: str) -> None:
    spec = job(workers=8, words_per_packet=32)
    cluster = Cluster.joined(kinds, spec=spec)
    inputs = normal(Element.FLOAT32, 8, 33)
    for worker in (0, 7):
        inputs[worker][32] = np.nan
    cluster.all_reduce(inputs)
    assert all(told(cluster, worker) == {0: (32, 33), 7: (32, 33)} for worker in range(8))


def test_sums_that_are_finite_name_nobody(kinds: str) -> None:
    spec = job(workers=3, words_per_packet=32)
    cluster = Cluster.joined(kinds, spec=spec)
    for how in ({"lanes": 32}, {"lanes": EXACT}):
        cluster.all_reduce(normal(Element.FLOAT32, 3, 100), **how)
    lows = [np.full(10, -np.inf, np.float32) for _ in range(3)]
    cluster.all_reduce(lows, lanes=EXACT, operator=Operator.MAX)
    assert not any(cluster.news(worker) for worker in range(3)), "a maximum may hold infinities"


@pytest.mark.parametrize("lanes", [32, EXACT])
def test_ranks_that_keep_nothing_of_it_are_told_as_well_where_scale_codes_tell(kinds: str, lanes: int) -> None:
    spec = job(workers=3, words_per_packet=32)
    cluster = Cluster.joined(kinds, spec=spec)
    inputs = normal(Element.FLOAT32, 3, 300)
    inputs[1][7] = np.nan
    outputs = [np.zeros(100, np.float32) for _ in range(3)]
    for worker, (x, output) in enumerate(zip(inputs, outputs, strict=True)):
        cluster.submit(worker, reduction(x, output, lanes=lanes, keep_first=100 * worker, keep_count=100))
    cluster.run()
    assert [bool(np.isnan(output).any()) for output in outputs] == [True, False, False]
    keeping = {0} if lanes == EXACT else {0, 1, 2}  # of exact words, those who keep them alone
    assert [told(cluster, worker) for worker in range(3)] == [
        {1: (7, 8)} if each in keeping else {} for each in range(3)
    ]


def test_a_forecast_that_is_not_finite_names_them_again(kinds: str) -> None:
    spec = job(workers=3, words_per_packet=64)
    cluster = Cluster.joined(kinds, spec=spec)
    for _ in range(3):  # the second is sent with the codes of the first
        inputs = normal(Element.FLOAT32, 3, 20)
        inputs[2][4] = np.inf
        cluster.all_reduce(inputs)
    assert all(told(cluster, worker, ticket) == {2: (4, 5)} for worker in range(3) for ticket in (1, 2, 3))


@pytest.mark.parametrize("worker", ["twin", "native"])
def test_a_tree_names_the_rank_of_the_whole(worker: str) -> None:
    tree = Tree(root="twin", leaf="native", worker=worker, words_per_packet=32)
    arrays = normal(Element.FLOAT32, 4, 100)
    arrays[2][50] = np.nan
    tree.all_reduce(arrays)
    for number in range(4):
        assert [(each.place, each.first) for each in tree.news(number) if isinstance(each, Spoiled)] == [(2, 50)]


def test_100_of_100_plants_in_8_ranks_are_named() -> None:
    spec = job(workers=8, words_per_packet=64)
    cluster = Cluster.joined("native", spec=spec)
    random = np.random.default_rng(6)
    for ticket in range(1, 101):
        inputs = normal(Element.FLOAT32, 8, 600, seed=ticket)
        rank, at = ticket % 8, int(random.integers(600))
        inputs[rank][at] = random.choice([np.nan, np.inf, -np.inf])
        cluster.all_reduce(inputs, lanes=int(random.choice([32, 16, 8, EXACT])))
        assert all(told(cluster, worker, ticket) == {rank: (at, at + 1)} for worker in range(8))
