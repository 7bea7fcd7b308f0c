"""Runs of `fanin bench` and `fanin demo` as records, for the report."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import fanin
from fanin.records import record
from fanin.records.machine import machine


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
