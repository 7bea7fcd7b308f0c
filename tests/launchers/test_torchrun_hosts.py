"""Agents of torchrun on two hosts: a rank that ends itself makes all ranks start anew."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Topology
from tests.support.launching import EXAMPLES, TIMEOUT_S, environment, whole

pytestmark = pytest.mark.processes

ELASTIC = """
import os, pathlib, sys, time
import torch
import torch.distributed as dist
before = pathlib.Path(sys.argv[1])
world = len(list(before.iterdir()))
dist.init_process_group("fanin")
tensor = torch.full((50_000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
dist.barrier()
where = os.environ["FANIN_HOST"]
print(f"world {world}: rank {dist.get_rank()} on {where}: the sum is {int(tensor[0])}", flush=True)
if world == 0:
    if where == sys.argv[2]:
        (before / where).touch()
        os.abort()
    while True:
        dist.all_reduce(torch.ones(50_000))
dist.destroy_process_group()
"""


@whole
@pytest.mark.usefixtures("namespaces")
def test_the_example_starts_all_ranks_anew_when_one_ends(tmp_path: Path) -> None:
    program, before = tmp_path / "elastic.py", tmp_path / "before"
    program.write_text(ELASTIC)
    before.mkdir()
    with Fabric(Topology(workers=2, switch_at=SwitchPlace.parse("hosts"))) as fabric:
        hosts = [fabric.topology.worker_address(worker) for worker in range(2)]
        agents = []
        for worker, own in enumerate(hosts):
            given = {"FIRST": hosts[0], "OWN": own, "HOSTS": "2", "FANIN_HOST": f"host-{worker}"}
            given["GLOO_SOCKET_IFNAME"] = WORKER_DEVICE
            line = [str(EXAMPLES / "torchrun.sh"), str(program), str(before), "host-1"]
            with (tmp_path / f"{worker}.txt").open("w") as output:
                started = subprocess.Popen(
                    in_namespace(fabric.worker_namespace(worker), line),
                    env=environment(**given), stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
            agents.append(started)
        try:
            codes = [each.wait(TIMEOUT_S) for each in agents]
        finally:
            for each in agents:
                each.kill()
                each.wait()
    printed = "".join((tmp_path / f"{worker}.txt").read_text() for worker in range(2))
    assert codes == [0, 0], printed[-3000:]
    for world in range(2):
        assert printed.count(f"world {world}: rank ") == 2, printed[-3000:]
    assert printed.count("the sum is 3") == 4
