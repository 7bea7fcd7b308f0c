"""Reductions that a rank knows to be finished everywhere."""

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.host.session.finished import FinishedEverywhere
from fanin.host.session.session import Session
from fanin.numerics.reduction import EXACT, Element, Operator
from tests.support.builders import job_spec

SLOTS = 8
PACKET = 64
"""Float32 elements of a packet."""


def at(*flows: int) -> FinishedEverywhere:
    """Sessions with so many flows."""
    spec = job_spec(slots=SLOTS, words_per_packet=PACKET, codes_per_packet=1)
    return FinishedEverywhere([cast("Session", SimpleNamespace(spec=spec, flows=each)) for each in flows])


def summed(finished: FinishedEverywhere, packets: int, number: int = 0, lanes: int = 32) -> dict[tuple[int, int], int]:
    """The ends of a sum of so many packets, which has come."""
    count = packets * PACKET * 32 // lanes
    ends = finished.dealt([(number, count)], Element.FLOAT32, lanes, Operator.SUM)
    finished.come(ends)
    return ends


@pytest.mark.parametrize(("flows", "expected"), [(1, [5]), (2, [3, 2]), (4, [2, 1, 1, 1]), (8, [1, 1, 1, 1, 1])])
@pytest.mark.parametrize("lanes", [32, 4])
def test_packets_are_counted_at_the_flows_that_they_go_to_in_turn(flows: int, expected: list[int], lanes: int) -> None:
    assert summed(at(flows), 5, lanes=lanes) == {(0, flow): items for flow, items in enumerate(expected)}


def test_a_reduction_is_known_to_be_finished_once_a_window_of_items_has_come_after_it() -> None:
    finished = at(2)
    ends = summed(finished, 2)
    for _ in range(SLOTS - 1):
        summed(finished, 2)
        assert not finished.knows(ends)
    summed(finished, 2)
    assert finished.knows(ends)


def test_a_flow_that_carries_none_of_a_reduction_tells_nothing_of_it() -> None:
    """Small sums take the first flow only: were the others asked, nothing would ever be known, or forgotten."""
    finished = at(4)
    ends = summed(finished, 1)
    for _ in range(SLOTS):
        summed(finished, 1)
    assert finished.knows(ends)


def test_items_at_one_switch_tell_nothing_of_another() -> None:
    finished = at(1, 1)
    ends = summed(finished, 1, number=0)
    for _ in range(2 * SLOTS):
        summed(finished, 1, number=1)
    assert not finished.knows(ends)


def test_an_exact_sum_of_small_tensors_goes_through_the_first_flow() -> None:
    ends = at(4).dealt([(0, 8)], Element.FLOAT32, EXACT, Operator.MIN)
    assert {flow for _, flow in ends} == {0}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 4))
def test_a_reduction_is_known_where_each_of_its_flows_has_carried_a_window_of_items_since(
    sizes: list[int], flows: int
) -> None:
    finished = at(flows)
    all_ends = [summed(finished, packets) for packets in sizes]
    on_flows = [[len(range(flow, packets, flows)) for flow in range(flows)] for packets in sizes]
    for index, ends in enumerate(all_ends):
        since = [sum(each[flow] for each in on_flows[index + 1 :]) for flow in range(flows)]
        assert finished.knows(ends) == all(since[flow] >= SLOTS for flow in range(flows) if on_flows[index][flow])
