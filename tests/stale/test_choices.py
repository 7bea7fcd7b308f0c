"""S and K chosen at run time: from paces (DSSP, FedSA) and from gains (adaptive asynchronous FL)."""

from __future__ import annotations

import pytest

from fanin.errors import ConfigurationError
from fanin.host.stale.bound import DynamicBound, Pace
from fanin.host.stale.quorum import AdaptiveQuorum, SemiAsynchronousQuorum


def test_even_workers_keep_the_lowest_bound() -> None:
    assert DynamicBound(lowest=1, highest=4).choose([Pace(0.0, 1.0)] * 4) == 1


def test_the_fastest_goes_on_until_the_slowest_is_about_to_contribute() -> None:
    """Steps of 1 s against 3 s, both just through: after three more the slowest arrives with the fastest."""
    assert DynamicBound(lowest=0, highest=5).choose([Pace(0.5, 1.0), Pace(0.0, 3.0)]) == 2
    assert DynamicBound(lowest=0, highest=5).choose([Pace(1.0, 1.0), Pace(0.0, 3.0)]) == 2


def test_the_bound_stays_within_its_range() -> None:
    for step_s in (1.0, 1.7, 5.0, 50.0):
        assert 1 <= DynamicBound(lowest=1, highest=3).choose([Pace(0.0, 1.0), Pace(-0.2, step_s)]) <= 3


def test_one_worker_alone_needs_no_choice() -> None:
    assert DynamicBound().choose([Pace(0.0, 1.0)]) == 1


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no such range"):
        DynamicBound(lowest=3, highest=2)


@pytest.mark.parametrize(
    ("steps_s", "bound", "quorum"),
    [
        ([1, 1, 1, 1], 1, 4),
        ([1, 1, 1, 1], 4, 1),
        ([1, 1, 1, 3], 4, 3),
        ([1, 1, 1, 3], 10, 1),
        ([1, 1, 1, 30], 4, 4),
    ],
)
def test_the_quorum_is_the_smallest_that_keeps_the_slowest_within_the_bound(
    steps_s: list[float], bound: int, quorum: int
) -> None:
    assert SemiAsynchronousQuorum(bound=bound).choose(steps_s) == quorum


def test_a_bound_of_zero_rounds_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        SemiAsynchronousQuorum(bound=0)


def test_the_adaptive_quorum_climbs_to_where_most_is_gained() -> None:
    gains = {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.1}
    quorum = AdaptiveQuorum(workers=4, quorum=4)
    visited = [quorum.observe(1.0, 2.718281828 ** gains[quorum.quorum], 1.0) for _ in range(20)]
    assert set(visited[-6:]) <= {1, 2, 3}
    assert 2 in visited[-3:]


def test_a_loss_without_logarithm_changes_nothing() -> None:
    quorum = AdaptiveQuorum(workers=4, quorum=3)
    assert quorum.observe(1.0, 0.0, 1.0) == 3
    assert quorum.observe(0.0, 2.0, 1.0) == 3
