"""`fanin bench network`: all-reduces and training steps over emulated links of stated rates (root; docs/emulation.md).

Every worker has a namespace and a link of its own, the switch has one port per worker. As in `fanin bench allreduce`,
rivals take turns in every sample, every result is compared with a float64 sum and between ranks. The ideal is what the
link alone needs: all packets that a worker must receive, with all their headers, over the rate.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal

import fanin
from fanin import files
from fanin.benchmarks import mpi
from fanin.benchmarks.allreduce import FLOAT_BYTES, ROUNDS, checked_error, slowest_ranks
from fanin.benchmarks.rivals import Rival
from fanin.emulation.announced import Tell, announced, reports_of
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.machine import machine
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.network.traffic import LinkWatch
from fanin.emulation.processes import LocalJob
from fanin.emulation.record import VERSION, Row, RunRecord
from fanin.emulation.report import publish
from fanin.errors import ConfigurationError, FaninError
from fanin.numerics.fixed_point import Codec
from fanin.numerics.reduction import Element
from fanin.options import Options
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import HEADER_BYTES, WORD_BYTES, codes_bytes

ETHERNET_IP_UDP_BYTES = 14 + 20 + 8
TCP_HEADERS_BYTES = 14 + 20 + 32
"""Ethernet, IPv4, and TCP with timestamps (RFC 7323)."""
MASTER_PORT = 29_500
MIN_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    workers: int
    sizes: tuple[int, ...]
    """Bytes of float32 per worker, each a multiple of 4."""
    link: Link
    lanes: tuple[int, ...]
    against: tuple[str, ...]
    """Of `gloo` and `mpi`."""
    samples: int
    """Per rival and size."""
    steps: int = 0
    """Whole training steps to time per rival (DDP, the text transformer of the demo); 0: none."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= 32:
            raise ConfigurationError(f"workers = {self.workers}; must be in 2..32")
        if any(size <= 0 or size % FLOAT_BYTES for size in self.sizes):
            raise ConfigurationError(f"bytes = {self.sizes}; must be positive multiples of {FLOAT_BYTES}")
        if self.samples < MIN_SAMPLES:
            raise ConfigurationError(f"samples = {self.samples}; must be at least {MIN_SAMPLES}")
        for lanes in self.lanes:
            Options(lanes=lanes)
        unknown = set(self.against) - {"gloo", "mpi"}
        if unknown or not (self.lanes or self.against):
            raise ConfigurationError(f"against = {','.join(self.against)!r}; name some of gloo and mpi")


def bench(
    plan: Plan, *, json_file: Path | None, record_file: Path | None, html: Path | None, console: Console, command: str
) -> list[Row]:
    """Measure, check, print a table; write a JSON list of rows, the run's record and its report."""
    started, clock = datetime.now(timezone.utc), time.monotonic()
    rivals = [Rival("fanin", lanes) for lanes in plan.lanes]
    rivals += [Rival("gloo")] if "gloo" in plan.against else []
    notes = []
    if "mpi" in plan.against:
        absent = mpi.missing()
        if absent:
            notes.append(f"OpenMPI is absent from the comparison: {absent}")
            console.print(notes[-1])
        else:
            rivals.append(Rival("mpi", transport="tcp"))
    topology = Topology(workers=plan.workers, link=plan.link)
    rows: list[Row] = []
    with (
        Fabric(topology) as fabric,
        Switches(fabric, "native", fabric.folder) as switches,
        LinkWatch(fabric, clock) as watch,
    ):
        cluster = _Cluster(fabric, switches.root.url, fabric.folder)
        for size in plan.sizes:
            with announced(console, f"{plan.workers} workers, {size:,} bytes") as tell:
                rows += cluster.all_reduces(plan, rivals, size, tell)
        if plan.steps:
            with announced(console, f"{plan.workers} workers, {plan.steps} training steps") as tell:
                rows += cluster.training_steps(plan, [rival for rival in rivals if rival.backend != "mpi"], tell)
    console.print(table_of(plan, rows))
    if json_file:
        files.write(json_file, json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n", "the figures")
    record = RunRecord(
        version=VERSION,
        kind="bench",
        title=f"All-reduce over emulated links, {plan.workers} workers",
        command=command,
        started=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - clock,
        outcome="finished",
        software=fanin.__version__,
        kernel=platform.release(),
        machine=machine(),
        settings={"workers": plan.workers, "rate_bit_s": plan.link.rate_bit_s, "mtu": plan.link.mtu},
        links=watch.links(),
        rows=tuple(rows),
        notes=tuple(notes),
    )
    if record_file:
        record.write(record_file)
    publish(record, html, console)
    return rows


class _Cluster:
    """Runs worker programs in a fabric."""

    def __init__(self, fabric: Fabric, switch_url: str, folder: Path) -> None:
        self._fabric = fabric
        self._folder = folder
        self._jobs = 0
        self._environment = {
            "FANIN_SWITCH": switch_url,
            "GLOO_SOCKET_IFNAME": WORKER_DEVICE,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": fabric.topology.worker_address(0),
        }

    def all_reduces(self, plan: Plan, rivals: list[Rival], size: int, tell: Tell) -> list[Row]:
        """A row per rival. FaninError where a result is wrong or differs between ranks."""
        arguments = ["--rivals", ",".join(rival.label for rival in rivals), "--count", str(size // FLOAT_BYTES)]
        arguments += ["--rounds", str(ROUNDS), "--samples-per-round", str(-(-plan.samples // ROUNDS))]
        environment = {}
        if any(rival.backend == "mpi" for rival in rivals):
            environment = self._mpi(plan.workers)
        reports = self._run("fanin.benchmarks.allreduce_worker", arguments, environment, tell)
        seconds = {rival: slowest_ranks(reports[rival.label]) for rival in rivals}
        gloo_s = next((statistics.median(seconds[rival]) for rival in rivals if rival.backend == "gloo"), None)
        return [_row(plan, rival, size, reports[rival.label], seconds[rival], gloo_s) for rival in rivals]

    def training_steps(self, plan: Plan, rivals: list[Rival], tell: Tell) -> list[Row]:
        """A row per rival; FaninError where replicas differ."""
        arguments = ["--rivals", ",".join(rival.label for rival in rivals), "--steps", str(plan.steps)]
        reports = self._run("fanin.benchmarks.step_worker", arguments, {}, tell)
        gloo_s = next(
            (statistics.median(slowest_ranks(reports[rival.label])) for rival in rivals if rival.backend == "gloo"),
            None,
        )
        rows = []
        for rival in rivals:
            if len({report["replica"] for report in reports[rival.label]}) != 1:
                raise FaninError(f"{rival.label}: the ranks' parameters differ after {plan.steps} steps")
            seconds = slowest_ranks(reports[rival.label])
            rows.append(
                Row(
                    backend=rival.backend,
                    lanes=rival.lanes,
                    workers=plan.workers,
                    bytes=reports[rival.label][0]["gradient_bytes"],
                    rate_bit_s=plan.link.rate_bit_s,
                    measures="step",
                    median_s=statistics.median(seconds),
                    fastest_s=min(seconds),
                    slowest_s=max(seconds),
                    samples=len(seconds),
                    ideal_s=None,
                    ratio_to_gloo=gloo_s / statistics.median(seconds) if gloo_s else None,
                    max_error=None,
                )
            )
        return rows

    def _run(
        self, module: str, arguments: list[str], environment: dict[str, str], tell: Tell
    ) -> dict[str, list[dict[str, Any]]]:
        fabric = self._fabric
        self._jobs += 1
        given = {**self._environment, **environment, "MASTER_PORT": str(MASTER_PORT + self._jobs)}
        job = LocalJob(
            module,
            arguments,
            fabric.topology.workers,
            given,
            lambda rank, line: in_namespace(fabric.worker_namespace(rank), line),
        )
        reports: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with job:
            for _, record in reports_of(job, tell):
                reports[record["rival"]].append(record)
        return reports

    def _mpi(self, workers: int) -> dict[str, str]:
        """For OpenMPI, which starts its daemons through an agent (address, command line): ours enters a namespace."""
        agent = self._folder / "mpi-agent"
        if not agent.exists():
            cases = "\n".join(
                f"{self._fabric.topology.worker_address(rank)}) namespace={self._fabric.worker_namespace(rank)};;"
                for rank in range(workers)
            )
            agent.write_text(
                f'#!/bin/sh\ncase "$1" in\n{cases}\n*) exit 1;;\nesac\nshift\n'
                'exec ip netns exec "$namespace" sh -c "$*"\n',
                encoding="utf-8",
            )
            agent.chmod(0o755)
        return {
            mpi.PROGRAM_VARIABLE: mpi.compile_program(str(self._folder)),
            mpi.AGENT_VARIABLE: str(agent),
            mpi.HOSTS_VARIABLE: ",".join(self._fabric.topology.worker_address(rank) for rank in range(workers)),
            mpi.DEVICE_VARIABLE: WORKER_DEVICE,
        }


def _row(
    plan: Plan, rival: Rival, size: int, reports: list[dict[str, Any]], seconds: list[float], gloo_s: float | None
) -> Row:
    """The rival's figures, if its results deserve any."""
    max_error = checked_error(rival, reports, plan.workers)
    median_s = statistics.median(seconds)
    resent = [report["retransmissions"] for report in reports if report.get("retransmissions") is not None]
    return Row(
        backend=rival.backend + (f"-{rival.transport}" if rival.transport else ""),
        lanes=rival.lanes,
        workers=plan.workers,
        bytes=size,
        rate_bit_s=plan.link.rate_bit_s,
        measures="allreduce",
        median_s=median_s,
        fastest_s=min(seconds),
        slowest_s=max(seconds),
        samples=len(seconds),
        ideal_s=ideal_s(plan.link, rival, plan.workers, size),
        ratio_to_gloo=gloo_s / median_s if gloo_s else None,
        max_error=max_error,
        retransmissions=sum(resent) if resent else None,
    )


def ideal_s(link: Link, rival: Rival, workers: int, size: int) -> float | None:
    """Seconds that a link is busy, each way, with what one worker must send and receive, all headers included."""
    if link.rate_bit_s is None:
        return None
    if rival.backend == "fanin":
        words, codes = packet_shape(link.mtu)
        elements = Codec(Element.FLOAT32, rival.lanes, workers).elements_per_packet(words)
        packets = -(-size // FLOAT_BYTES // elements)
        total = packets * (ETHERNET_IP_UDP_BYTES + HEADER_BYTES + codes_bytes(codes) + words * WORD_BYTES)
    else:
        payload = link.mtu - (TCP_HEADERS_BYTES - 14)
        total = rival.bytes_through_wire(workers) * size * (1 + TCP_HEADERS_BYTES / payload)  # type: ignore[assignment]
    return total * 8 / link.rate_bit_s


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """For people."""
    rate = "without limit" if plan.link.rate_bit_s is None else f"{plan.link.rate_bit_s / 1e6:g} Mbit/s"
    headings = ("what", "size", "backend", "median ms", "ideal", "of ideal", "to gloo", "resent")
    title = f"{plan.workers} workers, links of {rate}, MTU {plan.link.mtu}"
    table = FigureTable(title, headings, left=("backend",))
    for row in rows:
        table.add(
            row.measures,
            decimal(row.bytes),
            f"{row.backend} {row.lanes}" if row.backend == "fanin" else row.backend,
            f"{row.median_s * 1e3:.4g}",
            "" if row.ideal_s is None else f"{row.ideal_s * 1e3:.4g}",
            "" if row.ideal_s is None else f"{row.ideal_s / row.median_s:.2f}",
            "" if row.ratio_to_gloo is None else f"{row.ratio_to_gloo:.2f}",
            "" if row.retransmissions is None else f"{row.retransmissions:,}",
        )
    table.caption = (
        f"{min(row.samples for row in rows)} samples each, interleaved; ideal: what a link alone needs, headers and all"
    )
    return table
