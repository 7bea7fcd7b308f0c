"""`fanin bench sharded`: FSDP2 of the text transformer with exact and with quantized moves.

Steps: every rival takes a step in turn on the same ranks, over links of a stated rate (namespaces, root), or on this
machine alone; a step's time is the slowest rank's. Bytes are from counters. Epochs: every rival trains from the same
seeds, and the losses stand beside each other.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fanin import files
from fanin.benchmarks.sharded_rivals import RIVALS, ShardedRival
from fanin.emulation.announced import announced, reports_of
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob
from fanin.errors import ConfigurationError, FaninError

WORKER = "fanin.benchmarks.sharded_worker"
EXACT = "fanin-32"
"""What bytes are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    workers: int
    """Hosts, of one rank each."""
    link: Link | None
    """Of every host; None: all ranks on this machine, without links."""
    switch_at: SwitchPlace
    rivals: tuple[str, ...]
    steps: int
    """To time, per rival; 0: none."""
    epochs: int
    """To train, per rival and seed; 0: none."""
    seeds: int

    def __post_init__(self) -> None:
        for label in self.rivals:
            ShardedRival.parse(label)
        if not self.rivals or len(set(self.rivals)) != len(self.rivals):
            raise ConfigurationError(f"rivals = {','.join(self.rivals)!r}; name some of {', '.join(RIVALS)}, once each")
        if not self.steps and not self.epochs:
            raise ConfigurationError("steps = 0 and epochs = 0: nothing to measure; expected one of them above 0")


@dataclass(frozen=True, slots=True)
class Row:
    """One rival, as in the JSON file."""

    rival: str
    workers: int
    rate_bit_s: float | None
    parameter_bytes: int | None = None
    """Of the whole model in float32."""
    seconds: tuple[float, ...] = ()
    """Of every step, the slowest rank's."""
    median_s: float | None = None
    to_gloo: float | None = None
    """gloo's float32 time / this one's."""
    sent_bytes: float | None = None
    """Per step, of the rank that sent most; None where nothing counts them."""
    share_of_exact: float | None = None
    """Of fanin's with exact moves."""
    losses: tuple[float, ...] = ()
    """Mean training loss of the last epoch, per seed."""
    test_losses: tuple[float, ...] = ()
    apart_step: float | None = None
    """After one step from the first seed: of the parameter that is farthest from the first rival's, the norm of the
    difference, by the parameter's own."""
    apart: float | None = None
    """The same in the end, when every rounding has grown through all steps."""


def bench(plan: Plan, *, json_file: Path | None, console: Console) -> list[Row]:
    """Measure, print a table; write a JSON list of rows. FaninError where ranks disagree on a loss."""
    arguments = ["--rivals", ",".join(plan.rivals), "--steps", str(plan.steps)]
    arguments += ["--epochs", str(plan.epochs), "--seeds", str(plan.seeds)]
    reports: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with ExitStack() as stack:
        job = _job(plan, arguments, stack)
        tell = stack.enter_context(announced(console, f"{plan.workers} workers, FSDP2"))
        stack.enter_context(job)
        for _, record in reports_of(job, tell):
            reports[record["rival"]].append(record)
    rows = [_row(plan, label, reports) for label in plan.rivals]
    console.print(table_of(plan, rows))
    if json_file:
        files.write(json_file, json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n", "the figures")
    return rows


def _job(plan: Plan, arguments: list[str], stack: ExitStack) -> LocalJob:
    if plan.link is None:
        return LocalJob(WORKER, arguments, plan.workers, {})
    fabric = stack.enter_context(Fabric(Topology(workers=plan.workers, link=plan.link, switch_at=plan.switch_at)))
    stack.enter_context(Switches(fabric, "native", fabric.folder))
    return placed_job(fabric, WORKER, arguments)


def _row(plan: Plan, label: str, reports: dict[str, list[dict[str, Any]]]) -> Row:
    row = Row(label, plan.workers, None if plan.link is None else plan.link.rate_bit_s)
    timed = [record for record in reports[label] if "seconds" in record]
    if timed:
        seconds = _slowest(timed)
        gloo = [record for record in reports["gloo"] if "seconds" in record]
        sent = max(record["sent_bytes"] for record in timed) or None
        exact = max((record["sent_bytes"] for record in reports[EXACT] if "seconds" in record), default=0.0)
        row = dataclasses.replace(
            row,
            parameter_bytes=timed[0]["parameter_bytes"],
            seconds=tuple(seconds),
            median_s=statistics.median(seconds),
            to_gloo=statistics.median(_slowest(gloo)) / statistics.median(seconds) if gloo else None,
            sent_bytes=sent,
            share_of_exact=sent / exact if sent and exact else None,
        )
    trained = [record for record in reports[label] if "loss" in record]
    if trained:
        by_seed = [[record for record in trained if record["seed"] == seed] for seed in range(plan.seeds)]
        if any(len({record["loss"] for record in each}) != 1 for each in by_seed):
            raise FaninError(f"{label}: the ranks have different losses after {plan.epochs} epochs")
        row = dataclasses.replace(
            row,
            losses=tuple(each[0]["loss"] for each in by_seed),
            test_losses=tuple(each[0]["test_loss"] for each in by_seed),
            apart_step=max(record["apart_step"] for record in by_seed[0]),
            apart=max(record["apart"] for record in by_seed[0]),
        )
    return row


def _slowest(reports: list[dict[str, Any]]) -> list[float]:
    """Of every step, the slowest rank's time."""
    return [max(each) for each in zip(*(record["seconds"] for record in reports), strict=True)]


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """For people."""
    headings = (
        "moves",
        "median ms",
        "to gloo",
        "MB sent",
        "of exact",
        "loss",
        "test loss",
        "to the first",
        "apart",
        "in the end",
    )
    rate = (
        "" if plan.link is None or plan.link.rate_bit_s is None else f", links of {plan.link.rate_bit_s / 1e6:g} Mbit/s"
    )
    table = FigureTable(f"FSDP2, text transformer, {plan.workers} workers{rate}", headings, left=("moves",))
    for row in rows:
        loss = statistics.mean(row.losses) if row.losses else None
        first = statistics.mean(rows[0].losses) if rows[0].losses else None
        table.add(
            row.rival,
            "" if row.median_s is None else f"{row.median_s * 1e3:.4g}",
            "" if row.to_gloo is None else f"{row.to_gloo:.2f}",
            "" if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.1f}",
            "" if row.share_of_exact is None else f"{row.share_of_exact:.3f}",
            "" if loss is None else f"{loss:.4f}",
            "" if not row.test_losses else f"{statistics.mean(row.test_losses):.4f}",
            "" if loss is None or first is None else f"{loss / first - 1:+.2%}",
            "" if row.apart_step is None else f"{row.apart_step:.2g}",
            "" if row.apart is None else f"{row.apart:.2g}",
        )
    table.caption = (
        f"{plan.steps} steps each, interleaved; {plan.epochs} epochs from {plan.seeds} seeds; MB sent: per step, "
        "by the rank that sent most, from counters; apart: how far a parameter is from the first rival's after one "
        "step, in norms"
    )
    return table
