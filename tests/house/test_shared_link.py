"""How `fanin bench network --shared-link` counts (benchmarks/shared_link.py)."""

from __future__ import annotations

import pytest

from fanin.benchmarks.shared_link import common, rate_within
from fanin.errors import ConfigurationError

JOB = [(1.0 + tick, 10 * tick) for tick in range(8)]
"""Ten a second, from 1 s to 8 s."""


def test_what_goes_on_alone_does_not_count() -> None:
    """A TCP flow at five a second, which has all of the link once the job is over."""
    beside = [(0.5 * tick, 2.5 * tick) for tick in range(17)]
    alone = [(8.0 + tick, 40.0 + 100 * tick) for tick in range(1, 4)]
    flow = [(at, int(count)) for at, count in beside + alone]
    since, until = common([JOB, flow])
    assert (since, until) == (4.5, 8.0)
    assert rate_within(JOB, since, until) == pytest.approx(10)
    assert rate_within(flow, since, until) == pytest.approx(5, rel=0.05)


def test_a_rate_takes_two_marks() -> None:
    with pytest.raises(ConfigurationError, match="too few reductions"):
        rate_within(JOB, 7.5, 8.0)
