"""Whether `fanin top` names planted faults in namespaces: `sudo python -m fanin.benchmarks.planted_faults [REPEATS]`.

A job of four hosts computes and sums over links of 100 Mbit/s, at one switch and then at three. One fault after another
is planted and removed again: a rank that computes twice as long, a path that loses one packet in fifty on the way to
the switch or back, a link at an eighth of its rate, the link of a switch at an eighth of its rate. After each,
`fanin top --once --json` is asked in the switch's namespace, and must name the fault and nothing else. Between faults
it must name nothing. Prints a line per question and a table; status 1 if an answer was wrong.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from fanin.emulation.network.commands import in_namespace, run
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.modules import running
from fanin.protocol import control

WORKERS = 4
RATE_BIT_S = 1e8
SLOWER = 8
LOSS = 0.02
WATCHED_S = 5.0
"""Time between the two snapshots of a question; together with the asking, less than the 10 s that are allowed."""
SETTLES_S = 5.0
"""Time for queues to fill or empty before a question."""
JOIN_LIMIT_S = 60.0

Fault = tuple[str, int | None, AbstractContextManager[None]]
"""Kind as fanin.watching.findings has it, rank or None, and the fault itself, which is there from entry to exit."""


def main(repeats: int) -> int:
    """Plant every fault so often; the exit status."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for place, faults in ((OWN, _faults_of_ranks), (SwitchPlace.parse("spare-only:3"), _slow_shards)):
        with ExitStack() as stack:
            topology = Topology(workers=WORKERS, link=Link(rate_bit_s=RATE_BIT_S), switch_at=place)
            fabric = stack.enter_context(Fabric(topology))
            stack.enter_context(Switches(fabric, "native", fabric.folder))
            addresses = [f"udp://{each}:{control.DEFAULT_PORT}" for each in topology.switch_addresses(0)]
            where = fabric.switch_namespace() if place is OWN else fabric.spare_namespace(0)
            job = placed_job(
                fabric, "fanin.benchmarks.planted_faults_worker", [str(fabric.folder), ",".join(addresses)]
            )
            stack.enter_context(job)
            _wait_until_running(where, addresses)
            for kind, rank, fault in faults(fabric, repeats):
                for name, wanted, planted in (("nothing", [], contextlib.nullcontext()), (kind, [(kind, rank)], fault)):
                    with planted:
                        time.sleep(SETTLES_S)
                        began_s = time.monotonic()
                        found = [(each["kind"], each["rank"]) for each in _top(where, addresses)["findings"]]
                        took_s = time.monotonic() - began_s
                    asked[name] += 1
                    right[name] += found == wanted
                    print(f"{name}, rank {rank}: {found or 'nothing'} after {took_s:.1f} s", flush=True)
    for name in asked:
        print(f"{name:<16} {right[name]} of {asked[name]}")
    return int(right != asked)


def _top(namespace: str, addresses: list[str], seconds: float = WATCHED_S) -> dict[str, Any]:
    command = running("fanin", "top", "--once", "--json", "--interval", str(seconds), ",".join(addresses))
    done = subprocess.run(in_namespace(namespace, list(command)), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _wait_until_running(namespace: str, addresses: list[str]) -> None:
    deadline = time.monotonic() + JOIN_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.CalledProcessError):
            there = _top(namespace, addresses, 0.5)["switches"]
            if all(each["jobs"] and each["jobs"][0]["rounds"] for each in there):
                return
        time.sleep(0.5)
    raise TimeoutError(f"the job did not run within {JOIN_LIMIT_S:g} s")


def _faults_of_ranks(fabric: Fabric, repeats: int) -> Iterator[Fault]:
    for repeat in range(repeats):
        rank = repeat % WORKERS
        yield "straggler", rank, _straggling(fabric, rank)
        yield "lossy uplink", rank, _losing(fabric.switch_namespace(), fabric.topology.worker_address(rank))
        yield "lossy downlink", rank, _losing(fabric.worker_namespace(rank), fabric.topology.root_address)
        yield "clogged queue", rank, _slowed(fabric, rank)


def _slow_shards(fabric: Fabric, repeats: int) -> Iterator[Fault]:
    for repeat in range(repeats):
        yield "slow shard", None, _slowed(fabric, WORKERS + repeat % 3)


@contextlib.contextmanager
def _straggling(fabric: Fabric, rank: int) -> Iterator[None]:
    mark = fabric.folder / f"slow-{rank}"
    mark.touch()
    try:
        yield
    finally:
        mark.unlink()


@contextlib.contextmanager
def _losing(namespace: str, source: str) -> Iterator[None]:
    """Packets from that address are lost where they arrive: a sender would see those that it loses itself."""
    rule = ["INPUT", "-i", "br0" if namespace.endswith("root") else WORKER_DEVICE, "-s", source, "-p", "udp"]
    rule += ["-m", "statistic", "--mode", "random", "--probability", str(LOSS), "-j", "DROP"]
    run(in_namespace(namespace, ["iptables", "-A", *rule]))
    try:
        yield
    finally:
        run(in_namespace(namespace, ["iptables", "-D", *rule]))


@contextlib.contextmanager
def _slowed(fabric: Fabric, cable: int) -> Iterator[None]:
    fabric.set_rate(fabric.cables[cable], RATE_BIT_S / SLOWER)
    try:
        yield
    finally:
        fabric.set_rate(fabric.cables[cable], RATE_BIT_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
