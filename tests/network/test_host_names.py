"""Hosts whose own names say nothing of where others reach them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Topology
from tests.support.forks import fork_jobs
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]


def test_gloo_is_where_the_others_reach_it_on_hosts_whose_names_are_loopback_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork_jobs(monkeypatch)
    with (
        Fabric(Topology(workers=2, switch_at=SwitchPlace.parse("hosts"))) as fabric,
        placed_job(fabric, "tests.network.debian_rank", [], {"PYTHONPATH": str(ROOT)}) as job,
    ):
        said = {report.rank: report.record for report in job.reports()}
    assert said == {0: {"came": [1.0], "sum": [2.0]}, 1: {"came": [0.0], "sum": [2.0]}}


REACHABLE = """
import ctypes, json, os, subprocess, sys
from fanin.host.torch.meeting.reachable import one_machine, reachable_host  # imports torch, which takes seconds
NEW_NETWORK, NEW_MOUNTS = 0x4000_0000, 0x0002_0000
def place(hosts, links):
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK | NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for number, link in enumerate(links):
        name, *addresses = link.split(",")
        subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"peer{number}"], check=True)
        for address in addresses:
            subprocess.run(["ip", "address", "add", address, "dev", name, "nodad"], check=True)
        subprocess.run(["ip", "link", "set", f"peer{number}", "up"], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        for _ in range(1000):  # the kernel says a little later that a link is connected
            if "state UP" in subprocess.check_output(["ip", "link", "show", name], text=True):
                break
for line in sys.stdin:
    environment, hosts, links = json.loads(line)
    child = os.fork()
    if not child:
        os.environ.update(environment)
        try:
            place(hosts, links)
            said = f"{reachable_host()} {one_machine()}"
        except Exception as error:
            said = repr(error)
        print(json.dumps(said), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Answers each line with where a host of that environment is reached. Hosts are forks, each with a network and mounts
of its own."""


@pytest.fixture(scope="module")
def hosts_to_be() -> Iterator[subprocess.Popen[str]]:
    """The process whose forks are hosts. Its own mounts are private: no fork's reach this machine."""
    with subprocess.Popen(
        ["unshare", "--mount", sys.executable, "-c", REACHABLE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process


@pytest.mark.parametrize(
    ("master", "interface", "links", "said"),
    [
        ("10.1.0.1", "", ["slow,10.1.0.1/24", "fast,10.2.0.1/24"], "10.1.0.1 False"),
        ("10.1.0.9", "", ["slow,10.1.0.1/24", "fast,10.2.0.1/24"], "10.1.0.1 False"),
        ("10.1.0.9", "fast", ["slow,10.1.0.1/24", "fast,10.2.0.1/24"], "10.2.0.1 False"),
        ("10.1.0.9", "fast,slow", ["slow,10.1.0.1/24", "fast,fd00::1/64"], "fd00::1 False"),
        ("10.1.0.9", "none", ["slow,10.1.0.1/24"], "GLOO_SOCKET_IFNAME=none: this machine has no interface"),
        ("debian", "", ["bare", "eth,10.1.0.1/24"], "10.1.0.1 False"),
        ("debian", "", ["eth,fd00::1/64"], "fd00::1 False"),
        ("debian", "", [], "127.0.0.1 True"),
        ("127.0.0.1", "slow", ["slow,10.1.0.1/24"], "127.0.0.1 True"),
        ("fd00::9", "fast", ["slow,10.1.0.1/24,fd00::1/64", "fast,10.2.0.1/24,fd01::1/64"], "fd01::1 False"),
        ("10.1.0.9", "fast", ["slow,10.1.0.1/24,fd00::1/64", "fast,10.2.0.1/24,fd01::1/64"], "10.2.0.1 False"),
        ("fe80::9%eth", "", ["eth,fe80::1/64,fd00::1/64"], "fd00::1 False"),
        ("fe80::9%eth", "", ["eth,fe80::1/64"], "rank ?: interface eth, which leads to MASTER_ADDR=fe80::9%eth, has"),
    ],
)  # fmt: skip
def test_others_reach_a_host_where_it_says_they_do(
    hosts_to_be: subprocess.Popen[str], tmp_path: Path, master: str, interface: str, links: list[str], said: str
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 debian\n")
    environment = {"MASTER_ADDR": master, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": interface}
    assert hosts_to_be.stdin is not None
    assert hosts_to_be.stdout is not None
    hosts_to_be.stdin.write(json.dumps([environment, str(hosts), links]) + "\n")
    hosts_to_be.stdin.flush()
    assert said in json.loads(hosts_to_be.stdout.readline())
