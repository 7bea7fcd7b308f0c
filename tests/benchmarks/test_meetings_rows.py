"""Rows of `fanin bench meetings` from what ranks report."""

from __future__ import annotations

from typing import Any

import pytest

from fanin.benchmarks.meetings import ALONE, GLOO, LANES_32, Plan, rows_of, table_of, to_target
from fanin.errors import ConfigurationError, FaninError

PLAN = Plan(workers=2, repeats=1, modes=(GLOO, LANES_32, ALONE), conditions=("even",))


def said(mode: str, seconds: float, replica: str = "same") -> list[dict[str, Any]]:
    points = [(seconds / 4 * quarter, 1.0, 0.2 * quarter) for quarter in range(1, 5)]
    return [
        {"mode": mode, "repeat": 0, "rank": rank, "seconds": seconds - rank, "points": [] if rank else points,
         "replica": replica if rank else "same", "meetings": 7, "waited_s": None, "sent_bytes": 10**6 * (rank + 1),
         "peak_bit_s": 1e6, "exchanges": []}
        for rank in range(2)
    ]  # fmt: skip


def test_a_row_has_times_beside_ddps_and_bytes_of_the_rank_that_sent_most() -> None:
    found = [*said(GLOO, 20.0), *said(LANES_32, 10.0), *said(ALONE, 8.0, "another")]
    gloo, wide, alone = rows_of(PLAN, "even", found)
    assert (gloo.to_gloo, wide.to_gloo, wide.to_lanes, alone.to_lanes) == (1.0, 2.0, 1.0, 1.25)
    assert wide.above_alone == pytest.approx(0.25)
    assert wide.megabytes == 2.0
    assert wide.accuracy == pytest.approx(0.8)
    assert table_of(PLAN, [gloo, wide, alone])


def test_replicas_that_differ_and_ranks_that_say_nothing_are_errors() -> None:
    rest = [*said(LANES_32, 10.0), *said(ALONE, 8.0)]
    with pytest.raises(FaninError, match="different results"):
        rows_of(PLAN, "even", [*said(GLOO, 20.0, "another"), *rest])
    with pytest.raises(FaninError, match="1 of 2 ranks"):
        rows_of(PLAN, "even", [*said(GLOO, 20.0)[:1], *rest])


def test_the_target_is_reached_when_the_last_points_are_on_average() -> None:
    assert to_target([(1.0, 0.0, 0.8), (2.0, 0.0, 0.9), (3.0, 0.0, 1.0)], 0.9) == 3.0
    assert to_target([(1.0, 0.0, 0.95)], 0.9) is None


def test_modes_and_conditions_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="modes = 'sgd'"):
        Plan(modes=("sgd",))
    with pytest.raises(ConfigurationError, match="conditions = 'odd'"):
        Plan(conditions=("odd",))
