"""Hosts on one network that differ in what they take."""

from __future__ import annotations

import subprocess

import pytest

from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Topology
from tests.support.forks import fork_jobs
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]


@pytest.mark.parametrize("ranks_per_host", [1, 2], ids=["", "through leaves"])
def test_jumbo_frames_on_one_host_alone_shorten_its_packets_to_what_the_other_takes(
    ranks_per_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No router says so; TCP's connections know it."""
    fork_jobs(monkeypatch)
    topology = Topology(workers=2 * ranks_per_host, ranks_per_host=ranks_per_host, switch_at=SwitchPlace.parse("hosts"))
    with Fabric(topology) as fabric:
        command = ["ip", "-n", fabric.worker_namespace(0), "link", "set", WORKER_DEVICE, "mtu", "9000"]
        subprocess.run(command, check=True)
        with placed_job(fabric, "tests.network.debian_rank", [], {"PYTHONPATH": str(ROOT)}) as job:
            sums = [report.record["sum"] for report in job.reports()]
    assert sums == [[float(topology.workers)]] * topology.workers
