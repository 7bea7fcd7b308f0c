"""Hosts whose own names say nothing of where others reach them."""

from __future__ import annotations

import pytest

from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Topology
from tests.house.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]


def test_gloo_is_where_the_others_reach_it_on_hosts_whose_names_are_loopback_addresses() -> None:
    with (
        Fabric(Topology(workers=2, switch_at=SwitchPlace.parse("hosts"))) as fabric,
        placed_job(fabric, "tests.network.debian_rank", [], {"PYTHONPATH": str(ROOT)}) as job,
    ):
        said = {report.rank: report.record for report in job.reports()}
    assert said == {0: {"came": [1.0], "sum": [2.0]}, 1: {"came": [0.0], "sum": [2.0]}}
