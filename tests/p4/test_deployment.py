"""docs/deploy-p4.md, carried out: its commands make namespaces, start a switch and a controller, and train with them.

The demo's DDP job runs with four unmodified workers whose packets are lost, repeated and reordered, through BMv2 and,
on the same network with a bridge in the place of BMv2, through `fanin switch --target p4`. Every replica must be, to
the bit, the one that the software switch leads to where nothing is lost. The namespaces of the guide live in a mount
and a network namespace of their own, so its names are free, and everything is gone when the test ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fanin.emulation.bmv2_process import BINARY
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Topology
from tests.support.forks import fork_jobs
from tests.support.repository import ROOT

GUIDE = ROOT / "docs" / "deploy-p4.md"
WORKERS = 4
TIMEOUT_S = 280
PATIENCE = "--liveness-timeout 60"
"""A machine that is busy with other tests must not look like a worker that is lost."""
FAULTS = "drop=1%,dup=0.5%,reorder=1%@seed=7"
TRAINING = "-m fanin.examples.train --task digits --epochs 1"


def lacking(*tools: str) -> str | None:
    """Why the guide cannot be followed here, or None."""
    missing = [tool for tool in ("ip", "ethtool", "unshare", *tools) if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} on PATH"
    return None if os.geteuid() == 0 else "needs root, for network namespaces"


NO_BMV2 = pytest.mark.skipif(lacking(BINARY) is not None, reason=str(lacking(BINARY)))
NO_NAMESPACES = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3 * TIMEOUT_S)]


def commands(section: str) -> list[str]:
    """The shell blocks of a section of the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^```sh\n(.*?)^```", body, flags=re.DOTALL | re.MULTILINE)


def workers(command: str, switch: str, environment: str, folder: Path) -> str:
    """The guide's command for worker 1, for each worker in the background; then wait for all."""
    lines = []
    for rank in range(WORKERS):
        line = command.replace("worker1", f"worker{rank + 1}").replace("RANK=0", f"RANK={rank}").strip()
        line = re.sub(r"FANIN_SWITCH=\S+", f"FANIN_SWITCH={switch} {environment}", line)
        assert "train.py" in line
        lines.append(f"{line.replace('train.py', TRAINING)} > {folder / f'{rank}.out'} & pids+=($!)")
    return "\n".join(["pids=()", *lines, 'for pid in "${pids[@]}"; do wait "$pid"; done'])


def carried_out(steps: list[str], folder: Path) -> list[dict[str, Any]]:
    """Run the steps in namespaces of their own; the JSON lines that they print."""
    private = ["mkdir -p /run/netns", "mount -t tmpfs tmpfs /run/netns", "trap 'kill $(jobs -p) 2>/dev/null' EXIT"]
    script = folder / "steps.sh"
    script.write_text("\n".join(["set -e", *private, *steps]), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", str(script)],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    logs = "".join(f"\n--- {log.name}\n{log.read_text()[-2000:]}" for log in folder.glob("*.log"))
    assert done.returncode == 0, f"{done.stderr[-3000:]}{logs}"
    outputs = [done.stdout, *(out.read_text() for out in sorted(folder.glob("*.out")))]
    return [json.loads(line) for output in outputs for line in output.splitlines() if line.startswith("{")]


def until_listening(port: int, log: Path) -> str:
    """Wait for a TCP port of the switch's namespace; 60 s at most, then the log."""
    look = f"ip netns exec switch sh -c \"grep -q ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6\""
    return f"for i in $(seq 300); do {look} && break; sleep 0.2; done; {look} || {{ cat {log}; exit 1; }}"


def replicas(lines: list[dict[str, Any]]) -> set[object]:
    """Hashes of the parameters with which the workers ended."""
    ended = [line["replica"] for line in lines if line.get("event") == "end"]
    assert len(ended) == WORKERS
    return set(ended)


def say_rate(what: str, lines: list[dict[str, Any]]) -> None:
    """Print what the switch counted, and how fast that was (pytest -s): docs/deploy-p4.md quotes it."""
    epoch = next(line for line in lines if line.get("event") == "epoch")
    counters = next(line for line in lines if "data" in line)["data"][0]["counters"]
    seconds = epoch["steps"] * epoch["step_s"]
    print(
        f"\n{what}: {epoch['steps']} steps of {epoch['step_s']:.2f} s; {counters['rounds']} rounds, "
        f"{counters['contributions'] / seconds:,.0f} contributions/s, {counters['packets_in']} packets in, "
        f"{counters['packets_out']} out, {counters['duplicates']} duplicates"
    )


ENVIRONMENT = "FANIN_LANES=8 FANIN_WORDS_PER_PACKET=64"
"""Variables that set how many elements share a scale, and so the bits: with the MTU of the path, 1,500 on every veth
pair.
"""
LOSSY = f"{ENVIRONMENT} FANIN_FAULTS='{FAULTS}'"
STATS = "ip netns exec worker1 fanin stats {url} --json | tr -d '\\n'"


def beside_a_bridge(switch: str, environment: str, folder: Path) -> list[dict[str, Any]]:
    """The job on the guide's network with a bridge in BMv2's place, through a switch that is a process beside it."""
    network, offloads = commands("1. A network")
    (job,) = commands("4. A job")
    bridge = "\n".join(
        ["ip -n switch link add bridge type bridge", "ip -n switch link set bridge up"]
        + [f"ip -n switch link set port{port} master bridge" for port in range(1, WORKERS + 2)]
    )
    url, log = "udp://10.77.0.100:4919", folder / "switch.log"
    command = f"ip netns exec switch fanin switch --bind 10.77.0.100:4919 {PATIENCE} {switch}"
    steps = [
        network,
        offloads,
        bridge,
        f"{command} > {log} 2>&1 &",
        until_listening(4919, log),
        workers(job, url, environment, folder),
        STATS.format(url=url),
    ]
    return carried_out(steps, folder)


@pytest.fixture(scope="module")
def through_software() -> set[object]:
    """The replica after the same job through the software switch, with nothing lost: forks, on a network like that."""
    module, *arguments = TRAINING.removeprefix("-m ").split()
    environment = {**dict(each.split("=") for each in ENVIRONMENT.split()), "FANIN_LIVENESS_TIMEOUT_S": "60"}
    topology = Topology(workers=WORKERS, switch_at=SwitchPlace.parse("rank0"))
    with pytest.MonkeyPatch.context() as patch, Fabric(topology) as fabric:
        fork_jobs(patch)
        with placed_job(fabric, module, arguments, environment | {"PYTHONPATH": str(ROOT)}) as job:
            ended = replicas([report.record for report in job.reports()])
    assert len(ended) == 1
    return ended


@NO_BMV2
def test_the_guide_leads_from_nothing_to_a_job_on_bmv2(through_software: set[object], tmp_path: Path) -> None:
    network, offloads = commands("1. A network")
    (switch,) = commands("2. The switch")
    (controller,) = commands("3. The controller")
    (job,) = commands("4. A job")
    url = "udp://10.77.0.100:4919"
    steps = [
        network,
        offloads,
        f"{{ {switch.strip()} ; }} > {tmp_path / 'switch.log'} 2>&1 &",
        until_listening(9559, tmp_path / "switch.log"),
        f"{{ {controller.strip()} {PATIENCE} ; }} > {tmp_path / 'controller.log'} 2>&1 &",
        until_listening(4919, tmp_path / "controller.log"),
        workers(job, url, LOSSY, tmp_path),
        STATS.format(url=url),
    ]
    lines = carried_out(steps, tmp_path)
    say_rate("BMv2", lines)
    assert replicas(lines) == through_software


@NO_NAMESPACES
def test_the_same_network_trains_through_the_emulated_program(through_software: set[object], tmp_path: Path) -> None:
    program = "--target p4 --program p4/build/v1model-64.json.gz --p4info p4/build/v1model-64.p4info.txtpb"
    lines = beside_a_bridge(program, LOSSY, tmp_path)
    say_rate("fanin switch --target p4", lines)
    assert replicas(lines) == through_software
