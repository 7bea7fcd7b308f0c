"""`fanin bench sharded`: FSDP2 of the text transformer with exact and with quantized moves.

Steps: every rival takes a step in turn on the same ranks, over links of a stated rate (namespaces, root), or on this
machine alone; a step's time is the slowest rank's. Bytes are from counters. Epochs: every rival trains from the same
seeds, and the losses stand beside each other; a file keeps each training, so that hours of them can be interrupted.
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

from fanin.benchmarks.collectives import DEVICES, require_device, tell_unusable
from fanin.benchmarks.linked_job import linked_job, slowest
from fanin.benchmarks.processor import busy_in_words
from fanin.benchmarks.sharded_rivals import RIVALS, ShardedRival
from fanin.benchmarks.sharded_runs import COMPARED_SEED, Run, Trainings, outcome_of, to_do
from fanin.benchmarks.usable import UNUSABLE
from fanin.emulation.announced import announced, reports_of
from fanin.emulation.dataclass_files import write_rows
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Link
from fanin.errors import ConfigurationError

WORKER = "fanin.benchmarks.sharded_worker"
EXACT = "fanin-32"
"""The rival that bytes are compared with."""

Reports = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: int
    """Hosts, of one rank each."""
    link: Link | None
    """Link of every host; None: all ranks on this machine, without links."""
    switch_at: SwitchPlace
    rivals: tuple[str, ...]
    steps: int
    """To time, per rival; 0: none."""
    epochs: int
    """To train, per rival and seed; 0: none."""
    seeds: int
    device: str = "cpu"
    """Device of weights and gradients; with "cuda", ranks share devices where there are fewer."""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigurationError(f"device = {self.device!r}; must be one of {', '.join(DEVICES)}")
        for label in self.rivals:
            ShardedRival.parse(label)
        if not self.rivals or len(set(self.rivals)) != len(self.rivals):
            raise ConfigurationError(f"rivals = {','.join(self.rivals)!r}; name some of {', '.join(RIVALS)}, once each")
        if not self.steps and not self.epochs:
            raise ConfigurationError("steps = 0 and epochs = 0: nothing to measure; expected one of them above 0")

    @property
    def rate_bit_s(self) -> float | None:
        """Rate of every link; None: without links, or as fast as they go."""
        return None if self.link is None else self.link.rate_bit_s

    def training(self, rival: str, seed: int) -> Run:
        """The training of one rival with one seed."""
        place = "" if self.link is None else str(self.switch_at)
        return Run(rival, self.workers, self.epochs, seed, self.rate_bit_s, place, self.device)

    @property
    def trainings(self) -> list[Run]:
        """All trainings, seed by seed."""
        seeds = range(self.seeds if self.epochs else 0)
        return [self.training(rival, seed) for seed in seeds for rival in self.rivals]


@dataclass(frozen=True, slots=True)
class Row:
    """One rival, as in the JSON file."""

    rival: str
    workers: int
    rate_bit_s: float | None
    parameter_bytes: int | None = None
    """Bytes of the whole model in float32."""
    seconds: tuple[float, ...] = ()
    """The slowest rank's time of every step."""
    median_s: float | None = None
    to_gloo: float | None = None
    """gloo's float32 time / this one's."""
    sent_bytes: float | None = None
    """Per step, of the rank that sent most; None where nothing counts them."""
    share_of_exact: float | None = None
    """Bytes as a share of those of fanin's exact moves."""
    processor: float | None = None
    """How busy this machine's processors were in these steps, with all ranks on them."""
    used_s: float | None = None
    """Processor time of one rank in a step, with all of its threads; the most of any rank. A host's shard is a process
    of its own and not in it.
    """
    waited_s: float | None = None
    """Time in the last step spent on gathers and reductions that were not done when their results were needed."""
    link_bytes: float | None = None
    """Per step, that passed a host's link in the direction that had more of them, the shard's included."""
    losses: tuple[float, ...] = ()
    """Mean training loss of the last epoch, per seed."""
    test_losses: tuple[float, ...] = ()
    apart_step: float | None = None
    """After one step from the first seed: of the parameter that is farthest from the first rival's, the norm of the
    difference, by the parameter's own."""
    apart: float | None = None
    """The same in the end, when every rounding has grown through all steps."""

    @property
    def link_s(self) -> float | None:
        """Time that the bytes take on a link alone."""
        return self.link_bytes * 8 / self.rate_bit_s if self.link_bytes and self.rate_bit_s else None

    @property
    def own_core_s(self) -> float | None:
        """A step of ranks that have a core each, if nothing of the link's time and of theirs overlaps."""
        return None if self.link_s is None or self.used_s is None else self.link_s + self.used_s


def bench(plan: Plan, *, runs_file: Path | None = None, json_file: Path | None, console: Console) -> list[Row]:
    """Measure, print a table; write a JSON list of rows. FaninError where ranks disagree on a loss.

    `runs_file` keeps every training; those that it has are not done again. Steps are timed anew.
    """
    require_device(plan.device)
    kept = Trainings(runs_file)
    unusable: dict[str, str] = {}
    timed = _carry_out(plan, to_do(plan.trainings, kept), kept, unusable, console)
    rows = [_learned(plan, _timed(plan, label, timed), kept) for label in plan.rivals if label not in unusable]
    console.print(table_of(plan, rows))
    tell_unusable(unusable, console)
    if plan.steps:
        console.print(bounds_of(rows))
    if json_file:
        write_rows(json_file, rows)
    return rows


def _carry_out(plan: Plan, runs: list[Run], kept: Trainings, unusable: dict[str, str], console: Console) -> Reports:
    """Keep what trainings bring, and note rivals that do not run; what all ranks say of the steps, by rival."""
    timed: Reports = defaultdict(list)
    if not plan.steps and not runs:
        return timed
    arguments = ["--rivals", ",".join(plan.rivals), "--steps", str(plan.steps), "--device", plan.device]
    arguments += ["--trainings", json.dumps([dataclasses.asdict(run) for run in runs])]
    said: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with ExitStack() as stack:
        job = linked_job(stack, plan.workers, plan.link, WORKER, arguments, switch_at=plan.switch_at)
        tell = stack.enter_context(announced(console, f"{plan.workers} workers, FSDP2"))
        stack.enter_context(job)
        for _, record in reports_of(job, tell):
            if UNUSABLE in record:
                unusable[record["rival"]] = record[UNUSABLE]
            elif "training" not in record:
                timed[record["rival"]].append(record)
            else:
                number = record["training"]
                said[number].append(record)
                if len(said[number]) == plan.workers:
                    kept.add(outcome_of(runs[number], said[number]))
    return timed


def _timed(plan: Plan, label: str, timed: Reports) -> Row:
    row = Row(label, plan.workers, plan.rate_bit_s)
    own = timed[label]
    if not own:
        return row
    seconds, gloo = slowest(own), timed["gloo"]
    sent = max(record["sent_bytes"] for record in own) or None
    exact = max((record["sent_bytes"] for record in timed[EXACT]), default=0.0)
    return dataclasses.replace(
        row,
        parameter_bytes=own[0]["parameter_bytes"],
        seconds=tuple(seconds),
        median_s=statistics.median(seconds),
        to_gloo=statistics.median(slowest(gloo)) / statistics.median(seconds) if gloo else None,
        sent_bytes=sent,
        share_of_exact=sent / exact if sent and exact else None,
        processor=max((record["processor"] or 0.0 for record in own), default=0.0) or None,
        used_s=max(record["used_s"] for record in own),
        waited_s=max(record["waited_s"] for record in own) or None,
        link_bytes=max(record["link_bytes"] for record in own) or None,
    )


def _learned(plan: Plan, row: Row, kept: Trainings) -> Row:
    if not plan.epochs:
        return row
    own = [kept[plan.training(row.rival, seed)] for seed in range(plan.seeds)]
    return dataclasses.replace(
        row,
        losses=tuple(each.loss for each in own),
        test_losses=tuple(each.test_loss for each in own),
        apart_step=own[COMPARED_SEED].apart_step,
        apart=own[COMPARED_SEED].apart,
    )


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """The rows as a table for people."""
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
    rate = "" if plan.rate_bit_s is None else f", links of {plan.rate_bit_s / 1e6:g} Mbit/s"
    where = "" if plan.device == "cpu" else f", weights on {plan.device}"
    table = FigureTable(f"FSDP2, text transformer, {plan.workers} workers{rate}{where}", headings, left=("moves",))
    for row in rows:
        loss = statistics.mean(row.losses) if row.losses else None
        first = statistics.mean(rows[0].losses) if rows[0].losses else None
        table.add(
            row.rival,
            milliseconds(row.median_s),
            "" if row.to_gloo is None else f"{row.to_gloo:.2f}",
            "" if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.1f}",
            "" if row.share_of_exact is None else f"{row.share_of_exact:.3f}",
            "" if loss is None else f"{loss:.4f}",
            "" if not row.test_losses else f"{statistics.mean(row.test_losses):.4f}",
            "" if loss is None or first is None else f"{loss / first - 1:+.2%}",
            "" if row.apart_step is None else f"{row.apart_step:.2g}",
            "" if row.apart is None else f"{row.apart:.2g}",
        )
    timed = f"{plan.steps} steps each, interleaved; MB sent: per step, by the rank that sent most, from counters"
    trained = (
        f"{plan.epochs} epochs from {plan.seeds} seeds; apart: how far a parameter is from the first rival's after one "
        "step, in norms"
    )
    table.caption = "; ".join([timed] * bool(plan.steps) + [trained] * bool(plan.epochs))
    return table


def bounds_of(rows: list[Row]) -> FigureTable:
    """A table of the bounds of a step: the link, or the processors that all ranks share."""
    headings = ("moves", "median ms", "busy", "link ms", "rank's ms", "waited ms", "with own core", "to gloo")
    table = FigureTable("what bounds a step", headings, left=("moves",))
    gloo = next((row.own_core_s for row in rows if row.rival == "gloo"), None)
    for row in rows:
        times = (row.link_s, row.used_s, row.waited_s, row.own_core_s)
        table.add(
            row.rival,
            milliseconds(row.median_s),
            busy_in_words(row.processor),
            *("" if each is None else f"{each * 1e3:.0f}" for each in times),
            "" if gloo is None or row.own_core_s is None else f"{gloo / row.own_core_s:.2f}",
        )
    table.caption = (
        "of a step; busy: this machine's processors, with all ranks on them (*: they set the time); link: "
        "what the bytes alone take, by a host's device; rank's: what one rank used of a processor, without its host's "
        "shard; waited: for gathers and reductions; with own core: link and rank's, a step of ranks with a core each "
        "if nothing overlaps, and by that gloo's time / this one's"
    )
    return table
