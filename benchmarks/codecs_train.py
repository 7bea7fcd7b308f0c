"""`fanin bench codecs --train`: loss and accuracy against wall-clock, for every codec, over slow star links (root).

Each worker has a namespace and a link of its own, and the switch a port for each, as in `fanin bench network`. All
codecs, and gloo's float32 beside them, train the same network on the same samples in the same order, one after the
other; replicas must be bit-identical in the end. Bytes are those of the worker's device, all headers included, gloo's
barrier between steps too. The target is what float32 over gloo reaches in the end, plus TARGET_SHARE of it.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import fanin
from fanin import files
from fanin.benchmarks.codecs_train_worker import GLOO
from fanin.emulation import record, report
from fanin.emulation.announced import Tell, announced, reports_of
from fanin.emulation.figures import FigureTable
from fanin.emulation.machine import machine
from fanin.emulation.network.commands import in_namespace, require_privileges
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob
from fanin.emulation.recording import Beginning
from fanin.errors import ConfigurationError, FaninError
from fanin.examples.tasks import TASKS
from fanin.host.codecs import make, table
from fanin.host.codecs.codec import Place

WORKER = "fanin.benchmarks.codecs_train_worker"
MASTER_PORT = 29_600
TARGET_SHARE = 0.01
MIN_STEPS = 4
DEFAULTS = ("lanes:32", "lanes:8/8", "rotated:4/8", "rotated:4/4", "by_layer:4/8", "adaptive:4/8")
"""Beside every codec of the table with its own defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to train, and how."""

    workers: int
    task: str
    steps: int
    repeats: int
    rates_bit_s: tuple[float, ...]
    codecs: tuple[str, ...] = ()
    points: int = 20
    """Evaluations in each run."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= 32:
            raise ConfigurationError(f"workers = {self.workers}; must be in 2..32")
        if self.task not in TASKS:
            raise ConfigurationError(f"task = {self.task!r}; must be one of {', '.join(TASKS)}")
        if TASKS[self.task].batch % self.workers:
            raise ConfigurationError(f"workers = {self.workers}; must divide the batch of {TASKS[self.task].batch}")
        if self.steps < MIN_STEPS or self.repeats < 1:
            raise ConfigurationError(f"{self.repeats} runs of {self.steps} steps; at least 1 of {MIN_STEPS}")
        if not self.rates_bit_s or min(self.rates_bit_s) <= 0:
            raise ConfigurationError("rates: expected some, as in 100mbit,1gbit")
        for text in self.texts:
            make(text).encoder(Place(0, self.workers, ()))

    @property
    def texts(self) -> list[str]:
        """The codecs."""
        return list(dict.fromkeys(self.codecs or (*DEFAULTS, *sorted(set(table()) - {"lanes"}))))

    @property
    def rivals(self) -> list[str]:
        """The codecs, and float32 over gloo before them."""
        return [GLOO, *self.texts]


@dataclass(frozen=True, slots=True)
class Row:
    """One codec over links of one rate, as in the JSON file. Means over the repeats."""

    codec: str
    rate_bit_s: float
    workers: int
    task: str
    steps: int
    repeats: int
    step_s: float
    """Median of a run's steps, of the slowest rank."""
    bytes_out: float
    """Per step, of the worker that sent most."""
    saved: float
    """How many times fewer bytes leave a worker than with gloo."""
    loss: float
    accuracy: float
    """At the end, on the test set."""
    target_loss: float
    to_target_s: float | None
    """None: in one of the repeats it was not reached."""
    speed_up: float | None
    """gloo's time to the target over this one's."""
    points: tuple[tuple[float, float, float], ...]
    """Seconds, loss, accuracy at rank 0, in the first repeat."""


Told = dict[tuple[str, int], list[dict[str, Any]]]
"""What the ranks told, by codec and seed."""


def bench(
    plan: Plan, *, json_file: Path | None, record_file: Path | None, html: Path | None, console: Console, command: str
) -> list[Row]:
    """Train, check, print a table; write a JSON list of rows, the record and the page with all curves."""
    require_privileges()
    beginning = Beginning()
    rows: list[Row] = []
    for rate in plan.rates_bit_s:
        with announced(console, f"{plan.workers} workers, {plan.task}, links of {_rate(rate)}") as tell:
            rows += rows_of(plan, rate, _run(plan, rate, tell))
    console.print(table_of(plan, rows))
    if json_file is not None:
        files.write(json_file, json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n", "the figures")
    run = record_of(plan, rows, command, beginning)
    if record_file is not None:
        run.write(record_file)
    report.publish(run, html, console)
    return rows


def _run(plan: Plan, rate_bit_s: float, tell: Tell) -> Told:
    topology = Topology(workers=plan.workers, link=Link(rate_bit_s=rate_bit_s))
    arguments = ["--codecs", "|".join(plan.rivals), "--task", plan.task, "--steps", str(plan.steps)]
    arguments += ["--points", str(plan.points), "--repeats", str(plan.repeats)]
    told: Told = defaultdict(list)
    with Fabric(topology) as fabric, Switches(fabric, "native", fabric.folder) as switches:
        environment = {
            "FANIN_SWITCH": switches.root.url,
            "GLOO_SOCKET_IFNAME": WORKER_DEVICE,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": topology.worker_address(0),
            "MASTER_PORT": str(MASTER_PORT),
        }
        job = LocalJob(
            WORKER,
            arguments,
            plan.workers,
            environment,
            lambda rank, line: in_namespace(fabric.worker_namespace(rank), line),
        )
        with job:
            for _, said in reports_of(job, tell):
                told[said["codec"], said["seed"]].append(said)
    return told


def rows_of(plan: Plan, rate_bit_s: float, told: Told) -> list[Row]:
    """A row per codec; FaninError where replicas differ or a rank said nothing."""
    curves: dict[tuple[str, int], list[tuple[float, int, float, float]]] = {}
    for codec in plan.rivals:
        for seed in range(plan.repeats):
            reports = told.get((codec, seed), [])
            if len(reports) != plan.workers or len({each["replica"] for each in reports}) != 1:
                raise FaninError(
                    f"{codec}, {_rate(rate_bit_s)}, seed {seed}: the replicas differ at the end, or a rank is missing"
                )
            curves[codec, seed] = next(each["points"] for each in reports if each["points"])
    rows: list[Row] = []
    seeds = range(plan.repeats)
    targets = [curves[GLOO, seed][-1][2] * (1 + TARGET_SHARE) for seed in seeds]
    for codec in plan.rivals:
        reports = [each for seed in seeds for each in told[codec, seed]]
        times = [to_target(curves[codec, seed], targets[seed]) for seed in seeds]
        reached = [at for at in times if at is not None]
        to_target_s = statistics.mean(reached) if len(reached) == plan.repeats else None
        gloo_s = rows[0].to_target_s if rows else to_target_s
        bytes_out = max(each["bytes_out"] for each in reports)
        rows.append(
            Row(
                codec=codec,
                rate_bit_s=rate_bit_s,
                workers=plan.workers,
                task=plan.task,
                steps=plan.steps,
                repeats=plan.repeats,
                step_s=statistics.mean(max(each["step_s"] for each in told[codec, seed]) for seed in seeds),
                bytes_out=bytes_out,
                saved=(rows[0].bytes_out if rows else bytes_out) / bytes_out,
                loss=statistics.mean(curves[codec, seed][-1][2] for seed in seeds),
                accuracy=statistics.mean(curves[codec, seed][-1][3] for seed in seeds),
                target_loss=statistics.mean(targets),
                to_target_s=to_target_s,
                speed_up=gloo_s / to_target_s if gloo_s and to_target_s else None,
                points=tuple((at, loss, right) for at, _, loss, right in curves[codec, 0]),
            )
        )
    return rows


def to_target(points: list[tuple[float, int, float, float]], target: float) -> float | None:
    """When the loss was first at the target."""
    return next((at for at, _, loss, _ in points if loss <= target), None)


def _rate(rate_bit_s: float) -> str:
    return f"{rate_bit_s / 1e6:g} Mbit/s"


def record_of(plan: Plan, rows: list[Row], command: str, beginning: Beginning) -> record.RunRecord:
    """For the page: the curves, times to the target, and the table as notes."""
    return record.RunRecord(
        version=record.VERSION,
        kind="bench",
        title=_title(plan),
        command=command,
        started=beginning.moment.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - beginning.clock_s,
        outcome="finished",
        software=fanin.__version__,
        kernel=platform.release(),
        machine=machine(),
        settings={"workers": plan.workers, "task": plan.task, "steps": plan.steps, "repeats": plan.repeats},
        progress=tuple(
            record.Progress(
                time_s=at, rank=0, loss=loss, accuracy=right, label=row.codec, group=f"links of {_rate(row.rate_bit_s)}"
            )
            for row in rows
            for at, loss, right in row.points
        ),
        quantities=tuple(
            record.Quantity(
                plot="Time to the loss of float32 over gloo",
                name=row.codec,
                value=row.to_target_s,
                unit="s",
                group=f"links of {_rate(row.rate_bit_s)}",
            )
            for row in rows
        ),
        notes=tuple(map(_in_words, rows)),
    )


def _title(plan: Plan) -> str:
    runs = f", {plan.repeats} runs" if plan.repeats > 1 else ""
    return f"codecs: {plan.task}, {plan.workers} workers, {plan.steps} steps{runs}"


def _in_words(row: Row) -> str:
    """A line of the table."""
    reached = "target never" if row.to_target_s is None else f"target after {row.to_target_s:.1f} s"
    times = "" if row.speed_up is None else f", {row.speed_up:.1f} times as fast as gloo"
    return (
        f"{_rate(row.rate_bit_s)}, {row.codec}: {reached}{times}; {row.step_s * 1e3:.0f} ms per step, "
        f"{row.saved:.1f} times fewer bytes; in the end loss {row.loss:.3f}, accuracy {row.accuracy:.1%}"
    )


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """For people."""
    headings = ("codec", "ms/step", "bytes out", "saved", "loss", "accuracy", "to target", "to gloo")
    found = FigureTable(_title(plan), headings)
    rate = None
    for row in rows:
        if row.rate_bit_s != rate:
            rate = row.rate_bit_s
            found.add_section(f"links of {_rate(rate)}, target loss {row.target_loss:.3f}")
        found.add(
            row.codec,
            f"{row.step_s * 1e3:.0f}",
            f"{row.bytes_out:,.0f}",
            f"{row.saved:.1f}",
            f"{row.loss:.3f}",
            f"{row.accuracy:.1%}",
            "never" if row.to_target_s is None else f"{row.to_target_s:.1f} s",
            "" if row.speed_up is None else f"{row.speed_up:.1f}",
        )
    found.caption = "bytes per step of the worker's device, headers included; target: gloo's loss in the end, plus 1 %"
    return found
