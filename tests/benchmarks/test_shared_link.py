"""How `fanin bench network --shared-link` counts (benchmarks/shared_link.py)."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from fanin.benchmarks.shared_link import (
    OWN_QUEUE_BYTES,
    Plan,
    Shares,
    common,
    overview,
    rate_within,
    record_of,
    table_of,
)
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.topology import Link
from fanin.errors import ConfigurationError


def shown(table: FigureTable) -> str:
    """The text that a terminal of 80 columns shows."""
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


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


def test_a_flow_that_stands_still_has_a_rate() -> None:
    """Timers of TCP double: a flow may have nothing for a second."""
    flow = [(1.0, 0), (4.0, 300), (8.5, 345)]
    assert rate_within(flow, 4.5, 8.0) == pytest.approx(10)
    assert rate_within([(1.0, 0), (4.0, 300), (8.5, 300)], 4.5, 8.0) == 0


@pytest.mark.parametrize("marks", [[], [(1.0, 0)], [(1.0, 0), (7.9, 20)], [(4.6, 0), (9.0, 20)]])
def test_a_rate_takes_marks_that_span_the_time(marks: list[tuple[float, int]]) -> None:
    with pytest.raises(ConfigurationError, match="too few reductions"):
        rate_within(marks, 4.5, 8.0)


def plan(**changes: Any) -> Plan:
    """Two jobs of three workers and four TCP flows behind an uplink."""
    given: dict[str, Any] = {"workers": 3, "jobs": 2, "tcp_flows": 4, "size": 4096, "seconds": 2.0, "link": Link()}
    return Plan(**{**given, "uplink": Link(rate_bit_s=1e8, queue_bytes=1 << 16), **changes})


def test_behind_an_uplink_each_sender_is_a_host_and_one_queue_is_short() -> None:
    found = plan(link=Link(rate_bit_s=1e9, queue_bytes=1 << 16))
    assert found.topology.hosts == 2 * 3 + 4
    assert found.topology.has_uplinks
    assert (found.topology.uplink, found.shared) == (found.uplink, found.uplink)
    assert found.topology.link == Link(rate_bit_s=1e9, queue_bytes=OWN_QUEUE_BYTES)


def test_without_an_uplink_all_share_a_hosts_own_link() -> None:
    own = Link(rate_bit_s=1e8, queue_bytes=1 << 16)
    found = plan(link=own, uplink=None)
    assert (found.topology.hosts, found.topology.has_uplinks) == (1, False)
    assert (found.topology.link, found.shared) == (own, own)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uplink": Link()}, "--rate, or --uplink"),
        ({"uplink": None}, "--rate, or --uplink"),
        ({"uplink": Link(rate_bit_s=1e8, mtu=9000)}, "MTU"),
        ({"workers": 16, "tcp_flows": 1}, r"1\.\.32"),
    ],
)
def test_an_uplink_that_cannot_be_shared_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(**changes)


def test_rows_say_what_each_has_of_its_fair_share() -> None:
    row = Shares(
        workers=2,
        jobs=1,
        tcp_flows=2,
        rate_bit_s=1e8,
        queue_bytes=1 << 18,
        job_shares=(0.25,),
        tcp_shares=(0.5, 0.125),
        fair_share=0.25,
        jain=1.0,
        packets=1000,
        resent=12,
        lost=11,
        cuts=3,
        timeouts=2,
        dropped=21,
        dropped_elsewhere=0,
    )
    record = record_of(row)
    assert (record["together"], record["worker_to_fair"], record["tcp_to_fair"]) == (0.875, (0.5,), (2.0, 0.5))
    assert (record["queue_bytes"], record["resent"], record["dropped"]) == (1 << 18, 12, 21)
    several = shown(overview([row, replace(row, tcp_flows=3, tcp_shares=(0.5, 0.25, 0.125))]))
    assert several.splitlines()[0] == "2 workers behind one link of 100 Mbit/s"
    assert "256 KiB   2   0.875   0.50    2.00 0.50         12   1,000      21         0" in several
    assert "256 KiB   3   1.125   0.50 0.50 to 2.00         12   1,000      21         0" in several
    title = "2 workers and 2 TCP flows behind one link of 100 Mbit/s with a queue of 256 KiB"
    assert " ".join(shown(table_of(row)).split()).startswith(title)
    two = replace(row, jobs=2, job_shares=(0.25, 0.25), workers=1, tcp_flows=0, tcp_shares=())
    assert table_of(two).title.plain == "2 jobs of 1 worker behind one link of 100 Mbit/s with a queue of 256 KiB"
