"""Members of local steps behind two masquerading NATs, which reach the store and the switch and never each other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.repository import ROOT
from tests.support.thorough import thorough

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("namespaces")]
LIMIT_S = 150.0
PUBLIC, STORE_PORT, SWITCH_PORT = "10.99.7.1", 29471, 5571
PLACES = ("a", "b")
SERVE = (
    "import sys; from torch._C import _distributed_c10d as c; "
    f"store = c.TCPStore({PUBLIC!r}, {STORE_PORT}, is_master=True, wait_for_workers=False); "
    "print('serves', flush=True); sys.stdin.read()"
)

RULES = """
table ip nat {{
  chain leaving {{
    type nat hook postrouting priority 100;
    oifname "{device}" masquerade
  }}
}}
"""


def name(place: str) -> str:
    """A namespace of this process's own."""
    return f"fanin-nat-{os.getpid()}-{place}"


def run(*command: str, text: str = "") -> None:
    subprocess.run(command, input=text, text=True, check=True, timeout=LIMIT_S)


def on(place: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", name(place), *command]


@pytest.fixture
def translated() -> Iterator[None]:
    """A public network, and two private ones of the same addresses behind a router each."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft")
    places = ["public", *(f"{kind}-{place}" for place in PLACES for kind in ("router", "inside"))]
    try:
        for each in places:
            run("ip", "netns", "add", name(each))
            run(*on(each, "ip", "link", "set", "lo", "up"))
        public = ["ip", "-n", name("public")]
        run(*public, "link", "add", "bridge", "type", "bridge")
        run(*public, "addr", "add", f"{PUBLIC}/24", "dev", "bridge")
        run(*public, "link", "set", "bridge", "up")
        for number, place in enumerate(PLACES, 2):
            router, inside = ["ip", "-n", name(f"router-{place}")], ["ip", "-n", name(f"inside-{place}")]
            run(*router, "link", "add", "out", "type", "veth", "peer", f"to-{place}", "netns", name("public"))
            run(*router, "link", "add", "in", "type", "veth", "peer", "out", "netns", name(f"inside-{place}"))
            run(*public, "link", "set", f"to-{place}", "master", "bridge", "up")
            for side, device, address in (
                (router, "out", f"10.99.7.{number}/24"), (router, "in", "192.168.7.1/24"),
                (inside, "out", f"192.168.7.{number}/24"),
            ):  # fmt: skip
                run(*side, "addr", "add", address, "dev", device)
                run(*side, "link", "set", device, "up")
            run(*inside, "route", "add", "default", "via", "192.168.7.1")
            run(*on(f"router-{place}", "sysctl", "-qw", "net.ipv4.ip_forward=1"))
            run(*on(f"router-{place}", "nft", "-f", "-"), text=RULES.format(device="out"))
        yield
    finally:
        for each in places:
            subprocess.run(["ip", "netns", "del", name(each)], check=False, capture_output=True)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError(f"{process.args!r} ended: {''.join(said)}")


@pytest.mark.usefixtures("translated")
@pytest.mark.parametrize("scheme", ["udp", thorough("zmq")])
def test_a_newcomer_takes_the_state_of_a_member_that_it_cannot_reach(scheme: str) -> None:
    environment = os.environ | {
        "MASTER_ADDR": PUBLIC, "MASTER_PORT": str(STORE_PORT), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "FANIN_SWITCH": f"{scheme}://{PUBLIC}:{SWITCH_PORT}",
        "FOUNDERS": "1", "VICTIM": "-1", "ROLE": "trains", "RANK": "0",
    }  # fmt: skip
    switch_command = ["-m", "fanin", "switch", "--bind", f"{PUBLIC}:{SWITCH_PORT}", "--data", "udp,zmq"]
    with contextlib.ExitStack() as stack:

        def start(place: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    on(place, sys.executable, *arguments),
                    cwd=ROOT,
                    env=environment | more,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
            stack.callback(process.kill)
            return process

        read_until(start("public", "-c", SERVE), "serves")
        read_until(start("public", *switch_command), "counts as lost")
        founder = start("inside-a", "-m", "tests.torch.elastic_member_rank")
        read_until(founder, "members 1")
        newcomer = start("inside-b", "-m", "tests.torch.elastic_member_rank", ROLE="newcomer", RANK="1")
        said = [each.communicate(timeout=LIMIT_S)[0] for each in (founder, newcomer)]
        assert [founder.returncode, newcomer.returncode] == [0, 0], said
    one, other = (json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in said)
    assert one["replica"] == other["replica"], "replicas differ"
    assert other["first"] > 0
    assert one["sizes"] == [1, 2]
