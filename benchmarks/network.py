"""`fanin bench network`: all-reduces and training steps over emulated links of stated rates (root; docs/emulation.md).

Every host has a namespace and a link of its own, and the switch is where the plan says. As in `fanin bench allreduce`,
rivals take turns in every sample, on the same ranks and hosts, every result is compared with a float64 sum and between
ranks. The ideal is what the busiest link alone needs (benchmarks/ideal.py). Rows that this machine's processors bound
rather than the links are marked.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal

import fanin
from fanin.benchmarks import mpi
from fanin.benchmarks.allreduce import ROUNDS, checked_error
from fanin.benchmarks.harness import slowest
from fanin.benchmarks.ideal import ideal_s
from fanin.benchmarks.rivals import FLOAT_BYTES, Rival
from fanin.emulation.announced import Tell, announced, reports_of
from fanin.emulation.dataclass_files import write_rows
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.machine import machine
from fanin.emulation.network.cross_traffic import CrossTraffic, check_flows
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.placed_job import MASTER_PORT, placed_job
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.network.traffic import LinkWatch
from fanin.emulation.record import VERSION, Row, RunRecord
from fanin.emulation.report import publish
from fanin.errors import ConfigurationError, FaninError
from fanin.options import Options

MIN_SAMPLES = 5
MAX_WORKERS = 100
BOUND_MARK = " !"
"""Behind the processors' share, where it is what bounds the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: int
    """Number of ranks in all."""
    sizes: tuple[int, ...]
    """Bytes of float32 per worker, each a multiple of 4."""
    link: Link
    lanes: tuple[int | str, ...]
    against: tuple[str, ...]
    """Rivals out of `gloo` and `mpi`."""
    samples: int
    """Per rival and size."""
    steps: int = 0
    """Whole training steps to time per rival (DDP, the text transformer of the demo); 0: none."""
    ranks_per_host: int = 1
    switch_at: SwitchPlace = OWN
    racks: int = 1
    uplink: Link | None = None
    """Between a rack and the root; None: as `link`."""
    tcp_flows: int = 0
    """TCP flows from host to host beside the measurement."""

    @property
    def topology(self) -> Topology:
        """The cluster to build."""
        return Topology(
            workers=self.workers,
            link=self.link,
            ranks_per_host=self.ranks_per_host,
            switch_at=self.switch_at,
            racks=self.racks,
            uplink=self.uplink or self.link,
        )

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= MAX_WORKERS:
            raise ConfigurationError(f"workers = {self.workers}; must be in 2..{MAX_WORKERS}")
        if self.uplink is not None and self.racks == 1:
            raise ConfigurationError("uplink: there is none with racks = 1; expected racks = 2 or more")
        check_flows(self.tcp_flows, self.topology.hosts)
        if "mpi" in self.against and self.ranks_per_host > 1:
            raise ConfigurationError("against = mpi: OpenMPI is measured with ranks_per_host = 1 only")
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
    topology, place = plan.topology, str(plan.switch_at)
    rows: list[Row] = []
    with ExitStack() as stack:
        fabric = stack.enter_context(Fabric(topology))
        stack.enter_context(Switches(fabric, "native", fabric.folder))
        watch = stack.enter_context(LinkWatch(fabric, clock))
        cluster = _Cluster(fabric, fabric.folder)
        if plan.tcp_flows:
            traffic = stack.enter_context(CrossTraffic(fabric, plan.tcp_flows))
        for size in plan.sizes:
            with announced(console, f"{plan.workers} workers, {size:,} bytes") as tell:
                rows += cluster.all_reduces(plan, rivals, size, tell)
        if plan.steps:
            with announced(console, f"{plan.workers} workers, {plan.steps} training steps") as tell:
                rows += cluster.training_steps(plan, [rival for rival in rivals if rival.backend != "mpi"], tell)
        if plan.tcp_flows:
            notes.append(traffic.in_words())
    console.print(table_of(plan, rows, notes))
    if json_file:
        write_rows(json_file, rows)
    record = RunRecord(
        version=VERSION,
        kind="bench",
        title=f"All-reduce over emulated links, {plan.workers} workers, switch: {plan.switch_at.in_words}",
        command=command,
        started=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - clock,
        outcome="finished",
        software=fanin.__version__,
        kernel=platform.release(),
        machine=machine(),
        settings={
            "workers": plan.workers,
            "ranks_per_host": plan.ranks_per_host,
            "switch_at": place,
            "racks": plan.racks,
            "rate_bit_s": plan.link.rate_bit_s,
            "uplink_bit_s": topology.uplink.rate_bit_s,
            "mtu": plan.link.mtu,
            "queue_bytes": plan.link.queue_bytes,
            "tcp_flows": plan.tcp_flows,
        },
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

    def __init__(self, fabric: Fabric, folder: Path) -> None:
        self._fabric = fabric
        self._folder = folder
        self._jobs = 0

    def all_reduces(self, plan: Plan, rivals: list[Rival], size: int, tell: Tell) -> list[Row]:
        """A row per rival. FaninError where a result is wrong or differs between ranks."""
        arguments = ["--rivals", ",".join(rival.label for rival in rivals), "--count", str(size // FLOAT_BYTES)]
        arguments += ["--rounds", str(ROUNDS), "--samples-per-round", str(-(-plan.samples // ROUNDS))]
        environment = {}
        if any(rival.backend == "mpi" for rival in rivals):
            environment = self._mpi(plan.workers)
        reports = self._run("fanin.benchmarks.allreduce_worker", arguments, environment, tell)
        # Rounds are of equal length, so the last one may have measured more than was asked for.
        seconds = {rival: slowest(reports[rival.label])[: plan.samples] for rival in rivals}
        gloo_s = next((statistics.median(seconds[rival]) for rival in rivals if rival.backend == "gloo"), None)
        return [_row(plan, rival, size, reports[rival.label], seconds[rival], gloo_s) for rival in rivals]

    def training_steps(self, plan: Plan, rivals: list[Rival], tell: Tell) -> list[Row]:
        """A row per rival; FaninError where replicas differ."""
        arguments = ["--rivals", ",".join(rival.label for rival in rivals), "--steps", str(plan.steps)]
        reports = self._run("fanin.benchmarks.step_worker", arguments, {}, tell)
        gloo_s = next(
            (statistics.median(slowest(reports[rival.label])) for rival in rivals if rival.backend == "gloo"),
            None,
        )
        rows = []
        for rival in rivals:
            if len({report["replica"] for report in reports[rival.label]}) != 1:
                raise FaninError(f"{rival.label}: the ranks' parameters differ after {plan.steps} steps")
            seconds = slowest(reports[rival.label])
            rows.append(
                Row(
                    backend=rival.name,
                    lanes=rival.widths[1],
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
                    switch=plan.switch_at.in_words,
                    ranks_per_host=plan.ranks_per_host,
                    processor=_processor(reports[rival.label]),
                )
            )
        return rows

    def _run(
        self, module: str, arguments: list[str], environment: dict[str, str], tell: Tell
    ) -> dict[str, list[dict[str, Any]]]:
        self._jobs += 1
        job = placed_job(self._fabric, module, arguments, environment, master_port=MASTER_PORT + self._jobs)
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
        backend=rival.name,
        lanes=rival.widths[1],
        workers=plan.workers,
        bytes=size,
        rate_bit_s=plan.link.rate_bit_s,
        measures="allreduce",
        median_s=median_s,
        fastest_s=min(seconds),
        slowest_s=max(seconds),
        samples=len(seconds),
        ideal_s=ideal_s(plan.topology, rival, size),
        ratio_to_gloo=gloo_s / median_s if gloo_s else None,
        max_error=max_error,
        retransmissions=sum(resent) if resent else None,
        switch=plan.switch_at.in_words,
        ranks_per_host=plan.ranks_per_host,
        processor=_processor(reports),
    )


def _processor(reports: list[dict[str, Any]]) -> float | None:
    """Load of the processors as rank 0 saw it; all ranks share the machine."""
    return next((report["processor"] for report in reports if report.get("processor") is not None), None)


def table_of(plan: Plan, rows: list[Row], notes: Sequence[str] = ()) -> FigureTable:
    """The rows as a table for people."""
    rate = "without limit" if plan.link.rate_bit_s is None else f"{plan.link.rate_bit_s / 1e6:g} Mbit/s"
    headings = ("what", "size", "backend", "median ms", "ideal", "of ideal", "to gloo", "resent", "processors")
    hosts = f" on {plan.topology.hosts} hosts" if plan.ranks_per_host > 1 else ""
    racks = f" in {plan.racks} racks" if plan.racks > 1 else ""
    where = f"{plan.workers} workers{hosts}{racks}, links of {rate}, MTU {plan.link.mtu}"
    table = FigureTable(f"{where}; switch: {plan.switch_at.in_words}", headings, left=("backend",))
    for row in rows:
        table.add(
            row.measures,
            decimal(row.bytes),
            f"{row.backend} {row.lanes}" if row.backend == "fanin" else row.backend,
            milliseconds(row.median_s),
            milliseconds(row.ideal_s),
            "" if row.ideal_s is None else f"{row.ideal_s / row.median_s:.2f}",
            "" if row.ratio_to_gloo is None else f"{row.ratio_to_gloo:.2f}",
            "" if row.retransmissions is None else f"{row.retransmissions:,}",
            "" if row.processor is None else f"{row.processor:.0%}{BOUND_MARK if row.processor_bound else ''}",
        )
    table.caption = (
        f"{min(row.samples for row in rows)} samples each, interleaved; ideal: what the busiest link alone needs, "
        "headers and all; processors: how busy this machine's were"
    )
    if any(row.processor_bound for row in rows):
        table.caption += f"; {BOUND_MARK.strip()}: they, not the links, set the time"
    table.caption = "\n".join([table.caption, *notes])
    return table
