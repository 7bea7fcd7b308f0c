"""How much of a tensor each shard sums: the theorem, links of unlike rates, and what is dealt of it."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.protocol.spread import WHOLE, Spread, link_loads, optimal_parts, weights_of

RATES = st.floats(0.05, 20)


@given(hosts=st.integers(2, 64), data=st.data())
def test_equal_links_get_the_parts_of_the_theorem_and_carry_alike(hosts: int, data: st.DataObject) -> None:
    """BytePS, OSDI 2020, theorem 1."""
    spares = data.draw(st.integers(0, hosts))
    parts = optimal_parts([1.0] * hosts, [1.0] * spares)
    divisor = hosts**2 + spares * hosts - 2 * spares
    assert parts[:hosts] == pytest.approx([(hosts - spares) / divisor] * hosts)
    assert parts[hosts:] == pytest.approx([2 * (hosts - 1) / divisor] * spares)
    assert link_loads(parts, hosts) == pytest.approx([2 * hosts * (hosts - 1) / divisor] * (hosts + spares))


@given(hosts=st.lists(RATES, max_size=12), spares=st.lists(RATES, max_size=12))
def test_no_part_is_negative_and_together_they_are_the_tensor(hosts: list[float], spares: list[float]) -> None:
    if not hosts and not spares:
        return
    parts = optimal_parts(hosts, spares)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(1)


@given(hosts=st.lists(RATES, min_size=3, max_size=6), spares=st.lists(RATES, max_size=4), data=st.data())
def test_no_other_parts_leave_the_busiest_link_less_to_do(
    hosts: list[float], spares: list[float], data: st.DataObject
) -> None:
    rates = [*hosts, *spares]

    def busiest(parts: tuple[float, ...]) -> float:
        return max(load / rate for load, rate in zip(link_loads(parts, len(hosts)), rates, strict=True))

    best = busiest(optimal_parts(hosts, spares))
    drawn = data.draw(
        st.lists(st.floats(0, 1), min_size=len(rates), max_size=len(rates)).filter(lambda each: sum(each) > 0.01)
    )
    other = tuple(each / sum(drawn) for each in drawn)
    assert best <= busiest(other) * (1 + 1e-9)


def test_hosts_sum_nothing_where_as_many_spare_ones_do() -> None:
    assert weights_of(optimal_parts([1] * 4, [1] * 4))[:4] == (0,) * 4
    assert weights_of(optimal_parts([1] * 4, [1] * 6))[:4] == (0,) * 4
    assert optimal_parts([1], [1]) == (1, 0), "a single host's ranks meet at home"


def test_equal_parts_are_weights_of_one() -> None:
    assert weights_of(optimal_parts([7] * 8, [])) == (1,) * 8
    assert weights_of(optimal_parts([], [3, 3])) == (1, 1)
    assert weights_of(optimal_parts([], [1, 2])) == (round(WHOLE / 3), round(2 * WHOLE / 3))


@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 2, 5), (2234, 2234, 11_170)])
def test_small_ones_go_to_shards_in_proportion_too_and_to_no_other(weights: tuple[int, ...]) -> None:
    spread = Spread(weights)
    turns = 4000
    got = Counter(spread.in_turn(turn) for turn in range(1, turns + 1))
    for shard in range(len(weights)):
        assert got[shard] / turns == pytest.approx(spread.part(shard), abs=0.005)


@given(weights=st.lists(st.integers(1, 50), min_size=2, max_size=9), lost=st.integers(0, 8))
def test_what_is_left_keeps_its_proportions(weights: list[int], lost: int) -> None:
    left = [shard for shard in range(len(weights)) if shard != lost % len(weights)]
    spread, after = Spread(tuple(weights)), Spread(tuple(weights)).only(left)
    for (a, before_a), (b, before_b) in itertools.combinations(enumerate(left), 2):
        assert after.part(a) * spread.part(before_b) == pytest.approx(after.part(b) * spread.part(before_a))


def test_a_reduction_goes_to_as_many_shards_as_get_two_packets_each_in_turn() -> None:
    """Whole, at one of 128 shards, 64 KiB would cross its link 127 times each way."""
    spread = Spread.evenly(128)
    for turn in (0, 100, 127):
        shares = list(spread.shares(47 * 360, 360, turn))
        assert [shard for shard, _, _ in shares] == [(turn + following) % 128 for following in range(23)]
        assert {-(-(end - first) // 360) for _, first, end in shares} == {2, 3}
    assert [*spread.shares(3 * 360, 360, 5)] == [(5, 0, 3 * 360)]
