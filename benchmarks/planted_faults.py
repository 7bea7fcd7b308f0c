"""Are planted faults named by `fanin top` and `fanin stats`? `sudo python -m fanin.benchmarks.planted_faults [5]`

A job of four hosts computes and sums over links of 100 Mbit/s, at one switch and then at three. Faults: a rank that
computes twice as long, a path that loses one packet in fifty on the way to the switch or back, a link at an eighth of
its rate, the link of a switch at an eighth of its rate.
* `fanin top --json --interval 3` watches a running job: one fault after another is planted and removed again, and
  between faults nothing may be named. Its last view within LIMIT_S of the fault counts.
* `fanin stats`, which covers the whole life of a job, is asked about jobs that have had a fault since they began, and
  about sound ones. Its answer must come within LIMIT_S of the job's first rounds.
Both run in the switch's namespace, as an operator would run them, and must name the fault, with its rank, and nothing
else. The argument is how often each fault is planted, by default five times. Prints a line per question and a table;
the exit status is 1 if an answer was wrong. On a machine with other load, that load makes stragglers of its own:
`sudo chrt -f 10 python -m ...` keeps it away from these processes, which need a small part of a core.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue

from rich.console import Console

from fanin.benchmarks.harness import table
from fanin.emulation.network.commands import in_namespace, run
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob
from fanin.modules import running
from fanin.protocol import control
from fanin.watching.findings import KINDS

WORKER = "fanin.benchmarks.planted_faults_worker"
WORKERS = 4
RATE_BIT_S = 1e8
SLOWER = 8
LOSS = 0.02
LIMIT_S = 10.0
INTERVAL_S = 3.0
"""Time between views of `fanin top`."""
RECOVERS_S = 30.0
"""Time in which the window of a rank grows again whose path has lost packets; until then the others do wait for the
rank, and naming it would be right."""
LIVED_S = 5.0
"""Age of a job at which `fanin stats` is asked; the command's own start takes the rest of LIMIT_S on a busy machine."""
JOIN_LIMIT_S = 60.0
HEALTHY = "nothing"
NEXT = "}\n{"
"""Text between the JSON objects of two switches."""

Named = list[tuple[str, int | None]]
"""Findings: (kind as in fanin.watching.findings, rank or None for a switch)."""
Fault = tuple[str, int | None, Callable[[], AbstractContextManager[None]]]
"""A fault: kind, rank, and a function whose context manager keeps the fault planted from entry to exit."""
SOUND: Fault = (HEALTHY, None, contextlib.nullcontext)


@dataclass(slots=True)
class Row:
    """Counts of one command's answers about one kind of fault."""

    command: str
    kind: str
    asked: int = 0
    right: int = 0
    longest_s: float = 0.0
    """Longest time from the fault, or from the job's first rounds, to the answer."""


class Place:
    """A cluster with its switches, and the commands that are run there."""

    def __init__(self, place: SwitchPlace, stack: ExitStack) -> None:
        self.topology = Topology(workers=WORKERS, link=Link(rate_bit_s=RATE_BIT_S), switch_at=place)
        self.fabric = stack.enter_context(Fabric(self.topology))
        stack.enter_context(Switches(self.fabric, "native", self.fabric.folder))
        self.switches = ",".join(f"udp://{each}:{control.DEFAULT_PORT}" for each in self.topology.switch_addresses(0))
        self._where = self.fabric.switch_namespace() if place is OWN else self.fabric.spare_namespace(0)

    def job(self, name: str) -> LocalJob:
        """The ranks of a job that computes and sums from entry to exit."""
        return placed_job(self.fabric, WORKER, [str(self.fabric.folder), self.switches, name])

    def until_running(self, name: str) -> None:
        """Wait for the job's first rounds at every switch; TimeoutError after JOIN_LIMIT_S."""
        deadline = time.monotonic() + JOIN_LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.CalledProcessError):
                answers = json.loads(f"[{self._says('stats', '--json').replace(NEXT, '},{')}]")
                jobs = [[job for job in each["jobs"] if job["name"] == name] for each in answers]
                if all(there and there[0]["counters"].get("rounds") for there in jobs):
                    return
        raise TimeoutError(f"the job did not run within {JOIN_LIMIT_S:g} s")

    def watched(self, name: str) -> Views:
        """A `fanin top` that watches the job, from entry to exit."""
        return Views(in_namespace(self._where, self._line("top", "--json", "--interval", str(INTERVAL_S))), name)

    def stats(self, name: str) -> Named:
        """Run `fanin stats`; returns its findings on the job."""
        found = re.findall(rf"^({'|'.join(KINDS)}): {re.escape(name)}: (.*)$", self._says("stats"), re.MULTILINE)
        ranks = [(kind, re.search(r"\brank (\d+)\b", text)) for kind, text in found]
        return [(kind, None if rank is None else int(rank[1])) for kind, rank in ranks]

    def _says(self, *words: str) -> str:
        line = in_namespace(self._where, self._line(*words))
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    def _line(self, command: str, *words: str) -> list[str]:
        return [*running("fanin", command), *words, self.switches]


class Views:
    """A running `fanin top`, and the findings of its views on one job; it runs from entry to exit."""

    def __init__(self, line: list[str], name: str) -> None:
        self._line, self._name = line, name
        self._seen: Queue[tuple[float, Named]] = Queue()

    def __enter__(self) -> Views:
        self._process = subprocess.Popen(self._line, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)["findings"]
            named = [(each["kind"], each["rank"]) for each in found if each["job"] == self._name]
            self._seen.put((time.monotonic(), named))

    def until(self, end_s: float) -> Iterator[tuple[float, Named]]:
        """Yield the views that appear from now to `end_s`, each with its time; times are of time.monotonic()."""
        while not self._seen.empty():
            self._seen.get()
        with contextlib.suppress(Empty):
            while True:
                yield self._seen.get(timeout=max(0.0, end_s - time.monotonic()))


class Questions:
    """Counts answers by command and kind of fault."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def judge(self, command: str, fault: Fault, found: Named | None, took_s: float) -> None:
        """Count an answer, None if it came too late. `took_s`: time to it from the fault, or the job's first rounds."""
        kind, rank, _ = fault
        row = self.rows.setdefault((command, kind), Row(command, kind))
        row.asked += 1
        row.longest_s = max(row.longest_s, took_s)
        row.right += found == ([] if kind == HEALTHY else [(kind, rank)])
        print(f"fanin {command}: {kind}, rank {rank}: {found or HEALTHY} after {took_s:.1f} s", flush=True)


def main(repeats: int) -> int:
    """Plant every fault `repeats` times; returns the exit status."""
    asked = Questions()
    for at, faults_at in ((OWN, _faults_of_ranks), (SwitchPlace.parse("spare-only:3"), _slow_shards)):
        with ExitStack() as stack:
            place = Place(at, stack)
            faults = list(faults_at(place.fabric, repeats))
            _ask_top(place, [each for fault in faults for each in (SOUND, fault)], asked)
            _ask_stats(place, [SOUND] * repeats + faults, asked)
    Console().print(
        table(
            f"planted faults that are named, alone and within {LIMIT_S:g} s, on {platform.node()}",
            asked.rows.values(),
            [
                ("fanin", "command"),
                ("fault", "kind"),
                ("right", lambda row: f"{row.right} of {row.asked}"),
                ("first after at most s", "longest_s:.1f"),
            ],
            left=("fault",),
        )
    )
    return int(any(row.right != row.asked for row in asked.rows.values()))


def _ask_top(place: Place, faults: list[Fault], asked: Questions) -> None:
    with place.job("running"):
        place.until_running("running")
        with place.watched("running") as views:
            for fault in faults:
                kind, rank, planted = fault
                with planted():
                    if kind == HEALTHY:
                        time.sleep(RECOVERS_S)
                    since_s = time.monotonic()
                    lasts_s = 2 * INTERVAL_S if kind == HEALTHY else LIMIT_S  # at least one whole view
                    seen = [(at_s - since_s, named) for at_s, named in views.until(since_s + lasts_s)]
                rightly = [at_s for at_s, named in seen if named == [(kind, rank)]]
                last_s, found = seen[-1] if seen else (LIMIT_S, None)
                asked.judge("top", fault, found, rightly[0] if rightly else last_s)


def _ask_stats(place: Place, faults: list[Fault], asked: Questions) -> None:
    for number, fault in enumerate(faults):
        name = f"young-{number}"
        with fault[2](), place.job(name):
            place.until_running(name)
            since_s = time.monotonic()
            time.sleep(LIVED_S)
            found, took_s = place.stats(name), time.monotonic() - since_s
        asked.judge("stats", fault, found if took_s <= LIMIT_S else None, took_s)


def _faults_of_ranks(fabric: Fabric, repeats: int) -> Iterator[Fault]:
    for repeat in range(repeats):
        rank = repeat % WORKERS
        root, host = fabric.switch_namespace(), fabric.worker_namespace(rank)
        yield "straggler", rank, partial(_straggling, fabric, rank)
        yield "lossy uplink", rank, partial(_losing, root, "br0", fabric.topology.worker_address(rank))
        yield "lossy downlink", rank, partial(_losing, host, WORKER_DEVICE, fabric.topology.root_address)
        yield "clogged queue", rank, partial(_slowed, fabric, rank)


def _slow_shards(fabric: Fabric, repeats: int) -> Iterator[Fault]:
    for repeat in range(repeats):
        yield "slow shard", None, partial(_slowed, fabric, WORKERS + repeat % 3)


@contextlib.contextmanager
def _straggling(fabric: Fabric, rank: int) -> Iterator[None]:
    mark = fabric.folder / f"slow-{rank}"
    mark.touch()
    try:
        yield
    finally:
        mark.unlink()


@contextlib.contextmanager
def _losing(namespace: str, device: str, source: str) -> Iterator[None]:
    """Drop packets from `source` where they arrive, because a sender notices those that it drops itself."""
    rule = ["INPUT", "-i", device, "-s", source, "-p", "udp"]
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
