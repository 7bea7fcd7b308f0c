"""Placement of the sums of racks: every slice everywhere, roots apart, and the loads of uplinks and links."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.protocol.racks import RackPlan

SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=6)


def plan_of(sizes: list[int]) -> RackPlan:
    """Racks of so many hosts, which are numbered across racks as ranks that are dealt out to them would be."""
    racks: list[list[int]] = [[] for _ in sizes]
    number = 0
    while any(len(rack) < size for rack, size in zip(racks, sizes, strict=True)):
        for rack, size in zip(racks, sizes, strict=True):
            if len(rack) < size:
                rack.append(number)
                number += 1
    return RackPlan.of(racks)


@given(sizes=SIZES)
def test_each_rack_has_a_leaf_of_every_slice_and_no_host_two_roots(sizes: list[int]) -> None:
    plan = plan_of(sizes)
    assert len(set(plan.roots)) == len(plan.roots)
    for hosts, leaves in zip(plan.racks, plan.leaves, strict=True):
        assert len(leaves) == len(plan.roots)
        assert set(leaves) <= set(hosts)
        for root, leaf in zip(plan.roots, leaves, strict=True):
            assert leaf == root or root not in hosts, "a slice does not leave a host for its root"
        carried = Counter(leaves)
        assert max(carried.values()) - min(carried[host] for host in hosts) <= 1 + (len(plan.roots) % len(hosts) > 0)
    assert sorted(s for host in plan.racks[0] for s in plan.leaves_on(host)) == list(range(len(plan.roots)))


@given(hosts=st.integers(1, 9), racks=st.integers(2, 6))
def test_uplinks_of_equal_racks_carry_alike_and_as_little_as_they_can(hosts: int, racks: int) -> None:
    plan = plan_of([hosts] * racks)
    loads = [plan.uplink_load(rack) for rack in range(racks)]
    assert loads == pytest.approx([2 * (racks - 1) / racks] * racks)


def test_two_racks_of_four() -> None:
    plan = RackPlan.of([(0, 1, 2, 3), (4, 5, 6, 7)])
    assert plan.roots == (0, 4, 1, 5)
    assert plan.leaves == ((0, 2, 1, 3), (6, 4, 7, 5))
    assert [plan.uplink_load(rack) for rack in (0, 1)] == [1, 1]
    assert {plan.link_load(host) for host in range(8)} == {2 * 3 / 4 + 1 / 4}, "its rack's, and one slice up or down"
    assert plan.link_load(0, ranks=2) == 2 * 2 * 3 / 4 + 1 / 4
