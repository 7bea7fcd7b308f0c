"""Hosts with IPv6 addresses alone, and such beside hosts that have IPv4, too: real ranks, switches and commands."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import until
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]
LIMIT_S = 150.0
HOSTS = 3
DEVICE = "eth0"
PORT, METRICS_PORT, MASTER_PORT = 4919, 9464, 29500
LOCAL = "fe80::{}"
UNIQUE = "fd00:51::{}"
ADMIN_PROHIBITED = f"""
add table ip6 closed
add chain ip6 closed arriving {{ type filter hook input priority 0; }}
add rule ip6 closed arriving tcp dport {PORT} reject with icmpv6 type admin-prohibited
"""
"""Rules that answer connections as firewalld does where it does not let them in."""


def name(place: object) -> str:
    """A namespace of this process's own."""
    return f"fanin-six-{os.getpid()}-{place}"


def run(*command: str, text: str = "") -> str:
    return subprocess.run(command, input=text, text=True, check=True, timeout=LIMIT_S, capture_output=True).stdout


def on(host: object, *command: str) -> list[str]:
    """The command line of that host."""
    return ["ip", "netns", "exec", name(host), *command]


@pytest.fixture
def hosts() -> Iterator[None]:
    """Hosts 1 to 3 at one bridge, each with a unique local and a link-local address."""
    places = ["bridge", *range(1, HOSTS + 1)]
    try:
        for place in places:
            run("ip", "netns", "add", name(place))
            run("ip", "-n", name(place), "link", "set", "lo", "up")
        run("ip", "-n", name("bridge"), "link", "add", "br0", "up", "type", "bridge")
        for host in places[1:]:
            own, port = ["ip", "-n", name(host)], f"port{host}"
            run(*own, "link", "add", DEVICE, "type", "veth", "peer", "name", port, "netns", name("bridge"))
            run("ip", "-n", name("bridge"), "link", "set", port, "master", "br0", "up")
            run(*own, "link", "set", DEVICE, "addrgenmode", "none", "up")
            for form in (UNIQUE, LOCAL):
                run(*own, "address", "add", f"{form.format(host)}/64", "dev", DEVICE, "nodad")
        yield
    finally:
        for place in places:
            subprocess.run(["ip", "netns", "del", name(place)], check=False, capture_output=True)


def come_together(**given: str) -> list[Any]:
    """Start ranks on hosts 1 and 2, which meet at host 1, and return what each of them prints."""
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": UNIQUE.format(1), "MASTER_PORT": str(MASTER_PORT), "FANIN_HOST": f"host-{rank}",
            "FANIN_SHARED_MEMORY": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **given,
        }  # fmt: skip
        command = on(rank + 1, sys.executable, "-m", "tests.network.ipv6_rank")
        ranks.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        said = [each.communicate(timeout=LIMIT_S) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert all(each.returncode == 0 for each in ranks), [errors[-3000:] for _, errors in said]
    return [json.loads(printed) for printed, _ in said]


@contextlib.contextmanager
def a_switch(folder: Path, *arguments: str) -> Iterator[None]:
    """`fanin switch` on host 3, once it has said where it is."""
    printed = folder / "switch.txt"
    with printed.open("w") as output:
        process = subprocess.Popen(
            on(HOSTS, sys.executable, "-m", "fanin", "switch", *arguments),
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            until(lambda: "counts as lost" in printed.read_text() or process.poll() is not None)
            assert process.poll() is None, printed.read_text()
            yield
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def command(host: int, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A `fanin` command on a host."""
    line = on(host, sys.executable, "-m", "fanin", *arguments)
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("variable", ["", "FANIN_INTERFACES", "GLOO_SOCKET_IFNAME"])
def test_hosts_of_which_one_has_ipv4_too_meet_at_the_addresses_that_all_have(variable: str) -> None:
    """Host 2 has no route to the IPv4 address of host 1, whose interface the variable names."""
    if variable:
        run("ip", "-n", name(1), "address", "add", "10.51.0.1/24", "dev", DEVICE)
    ends = come_together(**({variable: DEVICE} if variable else {}))
    for end in ends:
        assert end["sum"] == [3.0]
        assert end["alike"]
        for host in (1, 2):
            assert f"udp://[{UNIQUE.format(host)}]:" in end["described"]
        assert "keyed tags" in end["described"]


@pytest.mark.usefixtures("hosts")
def test_a_spare_host_sums_at_a_link_local_address_and_commands_ask_it_there(tmp_path: Path) -> None:
    local = f"udp://[{LOCAL.format(HOSTS)}%{DEVICE}]:{PORT}"
    with a_switch(tmp_path, "--bind", f"[::]:{PORT}"):
        ends = come_together(FANIN_SWITCH=local)
        for address in (local, f"udp://[{UNIQUE.format(HOSTS)}]:{PORT}"):
            shown = command(1, ["stats", address])
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout.startswith(f"{address}: fanin")
            doctor = command(1, ["doctor", address])
            assert doctor.stdout.rstrip().endswith("everything that was checked works"), doctor.stdout
    for end in ends:
        assert end["sum"] == [3.0]
        assert end["alike"]
        assert local in end["described"]
        assert "keyed tags" in end["described"]


SCRAPE = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"


@pytest.mark.usefixtures("hosts")
def test_metrics_are_served_at_an_ipv6_address_and_a_port_that_is_taken_is_named_with_brackets(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    at = f"[{UNIQUE.format(HOSTS)}]:{METRICS_PORT}"
    with a_switch(tmp_path, "--bind", f"[::]:{PORT}", "--metrics", at):
        page = run(*on(1, sys.executable, "-c", SCRAPE, f"http://{at}/metrics"))
        second = command(HOSTS, ["switch", "--bind", f"[::]:{PORT + 1}", "--metrics", at])
    assert "fanin_switch_uptime_seconds" in page
    assert second.returncode == 2
    assert f"metrics at {at} cannot be had" in second.stderr


@pytest.mark.usefixtures("hosts")
def test_a_switch_behind_a_firewall_is_told_from_a_host_that_is_not_there(tmp_path: Path) -> None:
    if shutil.which("nft") is None:
        pytest.skip("needs nft")
    with a_switch(tmp_path, "--bind", f"[::]:{PORT}"):
        run(*on(HOSTS, "nft", "-f", "-"), text=ADMIN_PROHIBITED)
        closed = command(1, ["stats", f"udp://[{UNIQUE.format(HOSTS)}]:{PORT}"])
    absent = command(1, ["stats", f"udp://[{UNIQUE.format(77)}]:{PORT}"])
    elsewhere = command(1, ["stats", f"udp://[fd00:99::1]:{PORT}"])
    assert (closed.returncode, absent.returncode, elsewhere.returncode) == (1, 1, 1)
    assert f"no switch answers at udp://[{UNIQUE.format(HOSTS)}]:{PORT}" in closed.stderr
    assert "a firewall rejects it" in closed.stderr
    assert f"`fanin switch --bind [{UNIQUE.format(77)}]:{PORT}`" in absent.stderr
    assert "ip route get" not in absent.stderr, "there is a route"
    assert "no network of this machine leads there" in elsewhere.stderr
    assert "ip route get fd00:99::1" in elsewhere.stderr
