"""`fanin bench allreduce`: torch.distributed.all_reduce over fanin's lanes and over its rivals, in one run.

Every rival takes its turn in every sample, so that whatever else the machine does hits all alike. Each result is
compared with a float64 sum and between ranks. The ideal that the table names is the ratio of the bytes that a worker
sends: a switch takes every gradient once, in lanes as narrow as asked for; a ring takes it 2 (N - 1) / N times.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fanin.benchmarks import mpi
from fanin.benchmarks.rivals import Rival
from fanin.emulation.announced import announced, reports_of
from fanin.emulation.dataclass_files import write_rows
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.processes import LocalJob
from fanin.emulation.record import Row as RecordedRow
from fanin.emulation.record import RunRecord
from fanin.emulation.recording import Beginning, finished
from fanin.emulation.report import publish
from fanin.errors import ConfigurationError, FaninError

FLOAT_BYTES = 4
ROUNDS = 3
"""OpenMPI's ranks wait by spinning, so they run only while the others are blocked: once in each round."""
MIN_SAMPLES = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: int
    bytes: int
    """Bytes of float32 per worker; multiples of 4."""
    lanes: tuple[int | str, ...]
    against: tuple[str, ...]
    """Rivals: `gloo` and `mpi`."""
    samples: int
    """At least this many per rival."""
    loss_percent: tuple[float, ...] = ()
    """More rows of 32-bit fanin, behind a fault injector that drops this share of all datagrams."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= 32:
            raise ConfigurationError(f"workers = {self.workers}; must be in 2..32")
        if self.bytes <= 0 or self.bytes % FLOAT_BYTES:
            raise ConfigurationError(f"bytes = {self.bytes}; must be a positive multiple of {FLOAT_BYTES}")
        if self.samples < MIN_SAMPLES:
            raise ConfigurationError(f"samples = {self.samples}; a median needs at least {MIN_SAMPLES}")
        for rival in self.fanin:
            rival.options(rank=0, environment={})
        unknown = set(self.against) - {"gloo", "mpi"}
        if unknown or not (self.fanin or self.against):
            raise ConfigurationError(f"against = {','.join(self.against)!r}; name some of gloo and mpi")

    @property
    def fanin(self) -> list[Rival]:
        """The rows of fanin itself."""
        clean = [Rival("fanin", lanes) for lanes in self.lanes]
        return clean + [Rival("fanin", loss_percent=percent) for percent in self.loss_percent]


@dataclass(frozen=True, slots=True)
class Row:
    """One rival's figures, as in the JSON file."""

    backend: str
    lanes: int
    workers: int
    bytes: int
    median_s: float
    """Per call, of the slowest rank."""
    ratio_to_gloo: float | None
    """gloo's median over this one: above 1 is faster than gloo."""
    ideal_ratio_to_gloo: float
    """The same for the bytes that a worker sends."""
    max_error: float
    """Largest difference to a float64 sum, relative to the largest contribution of any worker."""
    fastest_s: float
    slowest_s: float
    samples: int
    loss_percent: float | None
    """Datagrams that a fault injector dropped; None where there was no injector."""


def bench(
    plan: Plan, *, json_file: Path | None, record_file: Path | None, html: Path | None, console: Console, command: str
) -> list[Row]:
    """Measure, check, print a table; write a JSON list of rows, the run's record and its report."""
    beginning, notes = Beginning(), []
    rivals = list(plan.fanin)
    rivals += [Rival("gloo")] if "gloo" in plan.against else []
    if "mpi" in plan.against:
        absent = mpi.missing()
        rivals += [] if absent else [Rival("mpi", transport="tcp"), Rival("mpi", transport="shm")]
        if absent:
            notes.append(f"OpenMPI is absent from the comparison: {absent}")
            console.print(notes[-1])
    rows = measure(plan, rivals, console)
    console.print(table_of(plan, rows))
    if json_file:
        write_rows(json_file, rows)
    record = record_of(rows, command, beginning, notes)
    if record_file:
        record.write(record_file)
    publish(record, html, console)
    return rows


def measure(plan: Plan, rivals: list[Rival], console: Console) -> list[Row]:
    """Run all of them to the end. FaninError where a result is wrong or differs between ranks."""
    reports: dict[str, list[dict[str, Any]]] = defaultdict(list)
    arguments = ["--rivals", ",".join(rival.label for rival in rivals), "--count", str(plan.bytes // FLOAT_BYTES)]
    arguments += ["--rounds", str(ROUNDS), "--samples-per-round", str(-(-plan.samples // ROUNDS))]
    with tempfile.TemporaryDirectory() as folder:
        environment = {}
        if any(rival.backend == "mpi" for rival in rivals):
            environment[mpi.PROGRAM_VARIABLE] = mpi.compile_program(folder)
        job = LocalJob("fanin.benchmarks.allreduce_worker", arguments, plan.workers, environment)
        with announced(console, f"{plan.workers} workers, {plan.bytes:,} bytes") as tell, job:
            for _, record in reports_of(job, tell):
                reports[record["rival"]].append(record)
    seconds = {rival: slowest_ranks(reports[rival.label]) for rival in rivals}
    gloo_s = next((statistics.median(seconds[rival]) for rival in rivals if rival.backend == "gloo"), None)
    return [checked_row(plan, rival, reports[rival.label], seconds[rival], gloo_s) for rival in rivals]


def slowest_ranks(reports: list[dict[str, Any]]) -> list[float]:
    """Seconds per sample: a collective is over when its last rank has the result."""
    return [max(values) for values in zip(*(report["seconds"] for report in reports), strict=True)]


def checked_error(rival: Rival, reports: list[dict[str, Any]], workers: int) -> float:
    """The largest error of any rank. FaninError where it has no explanation, or where ranks got different results."""
    max_error: float = max(report["max_error"] for report in reports)
    tolerated = rival.tolerated_error(workers)
    if not max_error <= tolerated:
        raise FaninError(f"{rival.label}: an error of {max_error:.3g} where at most {tolerated:.3g} is explained")
    if any(report["checksums"] != reports[0]["checksums"] for report in reports):
        raise FaninError(f"{rival.label}: the ranks got different results")
    return max_error


def checked_row(
    plan: Plan, rival: Rival, reports: list[dict[str, Any]], seconds: list[float], gloo_s: float | None
) -> Row:
    """The rival's figures, if its results deserve any."""
    max_error = checked_error(rival, reports, plan.workers)
    median_s = statistics.median(seconds)
    return Row(
        backend=rival.name,
        lanes=rival.widths[1],
        workers=plan.workers,
        bytes=plan.bytes,
        median_s=median_s,
        ratio_to_gloo=gloo_s / median_s if gloo_s else None,
        ideal_ratio_to_gloo=Rival("gloo").bytes_through_wire(plan.workers) / rival.bytes_through_wire(plan.workers),
        max_error=max_error,
        fastest_s=min(seconds),
        slowest_s=max(seconds),
        samples=len(seconds),
        loss_percent=rival.loss_percent,
    )


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """The rows as a table for people."""
    headings = ("backend", "lanes", "median ms", "fastest", "slowest", "to gloo", "ideal", "max error")
    table = FigureTable(f"all-reduce of {plan.bytes:,} bytes of float32, {plan.workers} workers", headings)
    for row in rows:
        table.add(
            row.backend if row.loss_percent is None else f"{row.backend} -{row.loss_percent:g} %",
            str(row.lanes),
            *(milliseconds(value, 3) for value in (row.median_s, row.fastest_s, row.slowest_s)),
            "" if row.ratio_to_gloo is None else f"{row.ratio_to_gloo:.2f}",
            f"{row.ideal_ratio_to_gloo:.2f}",
            f"{row.max_error:.1e}",
        )
    table.caption = f"{min(row.samples for row in rows)} samples each, interleaved; ideal: by bytes sent"
    if plan.loss_percent:
        table.caption += "; -1 %: so many datagrams dropped each way at each worker, Python's loop"
    return table


def record_of(rows: Sequence[Row], command: str, beginning: Beginning, notes: Sequence[str]) -> RunRecord:
    """The record of `fanin bench allreduce`. One machine has no links, so no row has a physical limit."""
    first = rows[0]
    return finished(
        beginning,
        kind="bench",
        title=f"All-reduce on one machine, {first.workers} workers",
        command=command,
        settings={"workers": first.workers, "bytes": first.bytes, "samples": first.samples},
        rows=tuple(map(_recorded, rows)),
        notes=("All processes are on one machine and compete for its cores; no link limits them.", *notes),
    )


def _recorded(row: Row) -> RecordedRow:
    behind = "" if row.loss_percent is None else f" at {row.loss_percent:g} % loss"
    return RecordedRow(
        backend=row.backend + behind,
        lanes=row.lanes,
        workers=row.workers,
        bytes=row.bytes,
        rate_bit_s=None,
        measures="allreduce",
        median_s=row.median_s,
        fastest_s=row.fastest_s,
        slowest_s=row.slowest_s,
        samples=row.samples,
        ideal_s=None,
        ratio_to_gloo=row.ratio_to_gloo,
        max_error=row.max_error,
        switch="beside rank 0",
    )
