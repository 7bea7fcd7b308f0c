"""`fanin bench allreduce`: torch.distributed.all_reduce over fanin's lanes and over its rivals, in one run.

Every rival takes its turn in every sample, so that other load on the machine affects all alike. Each result is compared
with a float64 sum and between ranks. The ideal in the table is the ratio of the bytes that a worker sends: to a switch,
every gradient once, in lanes as narrow as asked for; around a ring, 2 (N - 1) / N times as float32.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fanin.benchmarks import mpi
from fanin.benchmarks.harness import Output, Report, alike, by, explained_error, reports, slowest, table
from fanin.benchmarks.rivals import (
    FLOAT_BYTES,
    MAX_BYTES,
    MAX_SAMPLES,
    Rival,
    Rivals,
    check_bytes,
    check_rivals,
    rivals_of,
)
from fanin.emulation.figures import FigureTable
from fanin.records.record import Row as RecordedRow
from fanin.settings import Bounds, Lanes, Named, Percentages, Words, check_bounds

WORKER = "fanin.benchmarks.allreduce_worker"
ROUNDS = 3
"""Rounds of samples; OpenMPI's ranks wait by spinning, so they run once per round, while the others are blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: Annotated[int, Bounds(2, 32)] = 4
    """Worker processes on this machine."""
    bytes: Annotated[int, Bounds(4, MAX_BYTES)] = 26_214_400
    """Bytes of float32 per worker."""
    lanes: Lanes = (32, 16, 8)
    """fanin's lane widths, separated by commas: 8 (packed), 4/8 (bits up / down)."""
    against: Words = ("gloo",)
    """Rivals: gloo, mpi, or MODULE:BACKEND, which the import of the module registers; separated by commas."""
    samples: Annotated[int, Bounds(11, MAX_SAMPLES)] = 11
    """Number of samples that are taken of each rival."""
    loss_percent: Annotated[Percentages, Named("loss")] = ()
    """Rows behind a fault injector: percent of datagrams dropped, separated by commas."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_bytes(self.bytes)
        check_rivals(self.fanin, self.against)

    @property
    def fanin(self) -> list[Rival]:
        """fanin's own rivals: one per lane width, and one with 32-bit lanes per loss."""
        clean = [Rival("fanin", lanes) for lanes in self.lanes]
        return clean + [Rival("fanin", loss_percent=percent) for percent in self.loss_percent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (allreduce_worker.py)."""

    rivals: Rivals
    count: int
    """float32 elements per worker."""
    rounds: int = ROUNDS
    samples_per_round: int


@dataclass(frozen=True, slots=True)
class Row:
    """One rival's figures, as in the JSON file."""

    backend: str
    lanes: int
    workers: int
    bytes: int
    median_s: float
    """Median time per call, of the slowest rank."""
    ratio_to_gloo: float | None
    """gloo's median over this one: above 1 is faster than gloo."""
    ideal_ratio_to_gloo: float
    """Ratio to gloo of the bytes that a worker sends: gloo's over this one's."""
    max_error: float
    """Largest difference to a float64 sum, relative to the largest contribution of any worker."""
    fastest_s: float
    slowest_s: float
    samples: int
    loss_percent: float | None
    """Percent of datagrams that a fault injector dropped; None without an injector."""


def bench(plan: Plan, output: Output) -> list[Row]:
    """Measure, check, print a table; write rows, record and page. FaninError for a wrong or differing result."""
    rivals = rivals_of(plan.fanin, plan.against, ("tcp", "shm"), output)
    asked = Asked(rivals=tuple(rivals), count=plan.bytes // FLOAT_BYTES, samples_per_round=-(-plan.samples // ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        environment = {}
        if any(rival.backend == "mpi" for rival in rivals):
            environment[mpi.PROGRAM_VARIABLE] = mpi.compile_program(folder)
        words = f"{plan.workers} workers, {plan.bytes:,} bytes"
        found = by(reports(output, words, plan.workers, WORKER, asked, environment=environment), "rival")
    gloo_s = statistics.median(_seconds(plan, found["gloo"])) if "gloo" in found else None
    rows = [_row(plan, rival, found[rival.label], gloo_s) for rival in rivals]
    output.show(rows, table_of(plan, rows))
    output.publish(
        f"All-reduce on one machine, {plan.workers} workers",
        {"workers": plan.workers, "bytes": plan.bytes, "samples": rows[0].samples},
        rows=tuple(map(_recorded, rows)),
        notes=("All processes are on one machine and compete for its cores; no link limits them.",),
    )
    return rows


def checked_error(rival: Rival, found: Sequence[Report], workers: int) -> float:
    """Largest error of any rank. FaninError if it cannot be explained, or if ranks got different results."""
    error = explained_error(rival.label, found, rival.tolerated_error(workers))
    alike(rival.label, found, "checksums")
    return error


def _seconds(plan: Plan, found: Sequence[Report]) -> list[float]:
    """The requested number of samples; the ranks may have taken more, because all rounds have equally many."""
    return slowest(found)[: plan.samples]


def _row(plan: Plan, rival: Rival, found: Sequence[Report], gloo_s: float | None) -> Row:
    seconds = _seconds(plan, found)
    median_s = statistics.median(seconds)
    return Row(
        backend=rival.name,
        lanes=rival.widths[1],
        workers=plan.workers,
        bytes=plan.bytes,
        median_s=median_s,
        ratio_to_gloo=gloo_s / median_s if gloo_s else None,
        ideal_ratio_to_gloo=Rival("gloo").bytes_through_wire(plan.workers) / rival.bytes_through_wire(plan.workers),
        max_error=checked_error(rival, found, plan.workers),
        fastest_s=min(seconds),
        slowest_s=max(seconds),
        samples=len(seconds),
        loss_percent=rival.loss_percent,
    )


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""
    caption = f"{min(row.samples for row in rows)} samples each, interleaved; ideal: by bytes sent"
    if plan.loss_percent:
        caption += "; -1 %: so many datagrams dropped each way at each worker, Python's loop"
    return table(
        f"all-reduce of {plan.bytes:,} bytes of float32, {plan.workers} workers",
        rows,
        [
            ("backend", lambda row: row.backend + ("" if row.loss_percent is None else f" -{row.loss_percent:g} %")),
            ("lanes", "lanes:d"),
            ("median ms", "median_s:ms3"),
            ("fastest", "fastest_s:ms3"),
            ("slowest", "slowest_s:ms3"),
            ("to gloo", "ratio_to_gloo:.2f"),
            ("ideal", "ideal_ratio_to_gloo:.2f"),
            ("max error", "max_error:.1e"),
        ],
        caption=caption,
    )


def _recorded(row: Row) -> RecordedRow:
    """The row as in the record; without links there is no physical limit."""
    behind = "" if row.loss_percent is None else f" at {row.loss_percent:g} % loss"
    same = ("lanes", "workers", "bytes", "median_s", "fastest_s", "slowest_s", "samples", "ratio_to_gloo", "max_error")
    return RecordedRow(
        backend=row.backend + behind,
        measures="allreduce",
        rate_bit_s=None,
        ideal_s=None,
        switch="beside rank 0",
        **{name: getattr(row, name) for name in same},
    )
