"""`fanin bench network --shared-link --uplink`: workers and TCP flows that meet at an uplink. Needs root."""

from __future__ import annotations

import pytest
from rich.console import Console

from fanin.benchmarks.shared_link import Plan, measure
from fanin.emulation.network.topology import Link
from fanin.extension import native_extension

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]


def test_workers_and_tcp_meet_at_the_uplink_and_only_there_frames_are_dropped() -> None:
    if native_extension(None) is None:
        pytest.skip("needs the native extension")
    uplink = Link(rate_bit_s=2e7, queue_bytes=1 << 14)
    plan = Plan(workers=2, jobs=1, tcp_flows=1, size=1 << 15, link=Link(rate_bit_s=2e8), seconds=2.0, uplink=uplink)
    shares = measure(plan, Console(quiet=True))
    assert (shares.queue_bytes, shares.rate_bit_s) == (1 << 14, 2e7)
    assert shares.fair_share == pytest.approx(1 / 3)
    assert min(*shares.worker_to_fair, *shares.tcp_to_fair) > 0
    assert shares.dropped > 0
    assert shares.dropped_elsewhere == 0
