"""Runs of `fanin bench` and `fanin demo` as records, for the report."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import fanin
from fanin.emulation import record
from fanin.emulation.network.machine import machine

if TYPE_CHECKING:
    from fanin.benchmarks.allreduce import Row


@dataclass(frozen=True, slots=True)
class Beginning:
    """When a run began, on the calendar and on the clock."""

    moment: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    clock_s: float = field(default_factory=time.monotonic)


def finished(
    beginning: Beginning,
    *,
    kind: record.Kind,
    title: str,
    command: str,
    settings: Mapping[str, record.Scalar],
    notes: Sequence[str] = (),
    rows: Sequence[record.Row] = (),
    quantities: Sequence[record.Quantity] = (),
    progress: Sequence[record.Progress] = (),
    workers: Sequence[record.WorkerRecord] = (),
    links: Sequence[record.LinkRecord] = (),
) -> record.RunRecord:
    """The record of a run that ended well just now, on this machine, with what was measured in it."""
    return record.RunRecord(
        version=record.VERSION,
        kind=kind,
        title=title,
        command=command,
        started=beginning.moment.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - beginning.clock_s,
        outcome="finished",
        software=fanin.__version__,
        kernel=f"{platform.system()} {platform.release()}",
        machine=machine(),
        settings=dict(settings),
        workers=tuple(workers),
        links=tuple(links),
        progress=tuple(progress),
        rows=tuple(rows),
        quantities=tuple(quantities),
        notes=tuple(notes),
    )


def record_of(rows: Sequence[Row], command: str, beginning: Beginning, notes: Sequence[str]) -> record.RunRecord:
    """Of `fanin bench allreduce`. Nothing limits the links of one machine, so no row has a physical limit."""
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


def _recorded(row: Row) -> record.Row:
    behind = "" if row.loss_percent is None else f" at {row.loss_percent:g} % loss"
    return record.Row(
        backend=row.backend + behind, lanes=row.lanes, workers=row.workers, bytes=row.bytes, rate_bit_s=None,
        measures="allreduce", median_s=row.median_s, fastest_s=row.fastest_s, slowest_s=row.slowest_s,
        samples=row.samples, ideal_s=None, ratio_to_gloo=row.ratio_to_gloo, max_error=row.max_error,
    )  # fmt: skip
