"""`fanin bench staleness`: does staleness pay? Loss and accuracy against wall-clock time, in one table and one plot.

Real processes train a small network on handwritten digits, or the text transformer, in every mode under every
condition. Compute time is emulated (staleness_worker.py): on a machine with fewer cores than workers real computing
would be dominated by contention. All modes of a condition run in the same processes, one after the other, with one seed
and then with the next. Replicas must be bit-identical in the end. A second table has what a step takes of the workers
that are not slow, beside gloo's.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

import fanin
from fanin import files
from fanin.benchmarks.linked_job import linked_job
from fanin.benchmarks.staleness_worker import MODES, NARROW, SLOW_WORKER, SUBJECTS
from fanin.emulation import record, report
from fanin.emulation.announced import Tell, announced, reports_of
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.machine import machine
from fanin.emulation.network.commands import require_privileges
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.topology import Link
from fanin.emulation.processes import LocalJob
from fanin.emulation.recording import Beginning
from fanin.errors import ConfigurationError, FaninError

CONDITIONS = {
    "even": "even workers",
    "random": "each step 5 times longer with probability 0.1",
    "slow-worker": "one of them slower, always",
    "slow-link": "links of a stated rate",
    "slow-worker-over-links": "one of them slower, always, and links of a stated rate",
}
OVER_LINKS = ("slow-link", "slow-worker-over-links")
"""Conditions with a namespace and a link for each worker; root only."""
USUAL_MODES = tuple(mode for mode in MODES if not mode.endswith(NARROW))
USUAL_CONDITIONS = tuple(name for name in CONDITIONS if name != "slow-worker-over-links")
"""The last one is for models whose sums take time."""
WORKER = "fanin.benchmarks.staleness_worker"
SMOOTHED = 3
"""Points over which accuracy is averaged before it is compared with the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: int = 4
    steps: int = 160
    """Synchronous steps; the asynchronous modes take as many gradients."""
    step_ms: float = 30.0
    """Emulated compute time of an ordinary step."""
    repeats: int = 2
    """Runs of each mode under each condition, each with a seed of its own."""
    target: float = 0.9
    """Test accuracy whose time is compared."""
    modes: tuple[str, ...] = USUAL_MODES
    conditions: tuple[str, ...] = USUAL_CONDITIONS
    rate_bit_s: float = 4e6
    """Rate of the slow links."""
    task: str = "digits"
    """Name of the task, out of SUBJECTS."""
    slow: float = 3.0
    """How many times longer than an ordinary one a slow worker's step is."""
    switch_at: SwitchPlace = OWN
    """Place of the sums, over links."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= 32:
            raise ConfigurationError(f"workers = {self.workers}; must be in 2..32")
        if self.steps < 5 or self.step_ms <= 0 or self.repeats < 1 or self.slow < 1:
            raise ConfigurationError(
                f"{self.repeats} runs of {self.steps} steps of {self.step_ms} ms, a slow worker's {self.slow} times as "
                "long; at least 1 of 5, of more than 0 ms, 1 time"
            )
        for name, known in ((self.modes, MODES), (self.conditions, tuple(CONDITIONS)), ((self.task,), tuple(SUBJECTS))):
            if unknown := set(name) - set(known):
                raise ConfigurationError(f"{', '.join(sorted(unknown))}: none of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Row:
    """One mode under one condition."""

    condition: str
    mode: str
    to_target_s: float | None
    """Seconds until rank 0's smoothed accuracy reached the target, mean over the repeats; None: in one it did not."""
    fastest_s: float | None
    slowest_s: float | None
    """Fastest and slowest of the repeats."""
    speed_up: float | None
    """The synchronous mode's time to the target over this one's."""
    seconds: float
    """Duration of the whole run."""
    accuracy: float
    loss: float
    """At the end, on the test set."""
    choices: tuple[int, ...]
    """S or K as chosen at run time."""
    points: tuple[tuple[float, float, float], ...]
    """Seconds, loss, accuracy at rank 0, in the first repeat."""
    step_s: float
    """Median over the steps of all ranks that are not slow; an asynchronous one is from a gradient to the next."""
    samples_per_s: float
    """Samples of all ranks together, mean over the repeats, without those whose gradients were dropped."""
    dropped: float | None
    """Share of the gradients handed in, by the ranks' accounts; None: the mode drops none."""
    step_to_gloo: float | None
    """gloo's `step_s` over this one's."""
    samples_to_gloo: float | None
    """This one's `samples_per_s` over gloo's."""


Told = dict[tuple[str, int], list[dict[str, Any]]]
"""The ranks' reports, in their order, by mode and seed."""


def bench(
    plan: Plan,
    *,
    json_file: Path | None,
    plot_file: Path,
    record_file: Path | None,
    html: Path | None,
    console: Console,
    command: str,
) -> list[Row]:
    """Measure, check, print a table; write the curves as PNG, the report, and rows and record where asked to."""
    report.check_available()  # a plot that cannot be made is told of before a run of minutes
    beginning = Beginning()
    rows: list[Row] = []
    for condition in plan.conditions:
        with announced(console, f"{plan.workers} workers, {CONDITIONS[condition]}") as tell:
            if condition in OVER_LINKS:
                try:
                    require_privileges()
                except FaninError as error:
                    console.print(f"{condition} is left out: {error}")
                    continue
            told = _run(plan, condition, tell)
        rows += rows_of(plan, condition, told)
    console.print(table_of(plan, rows))
    console.print(steps_of(plan, rows))
    if json_file is not None:
        files.write(json_file, json.dumps([asdict(row) for row in rows], indent=1) + "\n", "the figures")
    plot(plan, rows, plot_file)
    console.print(f"plot: {plot_file}")
    run = record_of(plan, rows, command, beginning)
    if record_file is not None:
        run.write(record_file)
    report.publish(run, html, console)
    return rows


def rows_of(plan: Plan, condition: str, told: Told) -> list[Row]:
    """The rows of one condition; FaninError where replicas differ or a rank said nothing."""
    reached: dict[str, list[float | None]] = defaultdict(list)
    for mode in plan.modes:
        for seed in range(plan.repeats):
            reports = told.get((mode, seed), [])
            if len(reports) != plan.workers or len({each["replica"] for each in reports}) != 1:
                raise FaninError(
                    f"{mode}, {condition}, seed {seed}: the replicas differ at the end, or a rank is missing"
                )
            reached[mode].append(to_target(reports[0]["points"], plan.target))
    synchronous_s = _mean(reached.get("synchronous", [None]))
    quick = plan.workers - 1 if condition in SLOW_WORKER else plan.workers
    every = {mode: [told[mode, seed] for seed in range(plan.repeats)] for mode in plan.modes}
    step_s = {mode: _step_s(runs, quick) for mode, runs in every.items()}
    rates = {
        mode: statistics.mean(sum(each["samples_per_s"] for each in reports) for reports in runs)
        for mode, runs in every.items()
    }
    rows = []
    for mode in plan.modes:
        firsts = [told[mode, seed][0] for seed in range(plan.repeats)]
        ends = [first["points"][-1] for first in firsts]
        times, reached_s = [at for at in reached[mode] if at is not None], _mean(reached[mode])
        rows.append(
            Row(
                condition=condition,
                mode=mode,
                to_target_s=reached_s,
                fastest_s=min(times, default=None),
                slowest_s=max(times, default=None),
                speed_up=synchronous_s / reached_s if synchronous_s and reached_s else None,
                seconds=statistics.mean(end[0] for end in ends),
                accuracy=statistics.mean(end[3] for end in ends),
                loss=statistics.mean(end[2] for end in ends),
                choices=tuple(firsts[0].get("choices", ())),
                points=tuple((at, loss, right) for at, _, loss, right in firsts[0]["points"]),
                step_s=step_s[mode],
                samples_per_s=rates[mode],
                dropped=_dropped([each for reports in every[mode] for each in reports]),
                step_to_gloo=step_s["gloo"] / step_s[mode] if "gloo" in step_s else None,
                samples_to_gloo=rates[mode] / rates["gloo"] if "gloo" in rates else None,
            )
        )
    return rows


def _step_s(runs: list[list[dict[str, Any]]], quick: int) -> float:
    """Median time of a step over the first `quick` ranks."""
    taken: list[float] = [step for reports in runs for each in reports[:quick] for step in each["step_s"]]
    return statistics.median(taken)


def _dropped(reports: list[dict[str, Any]]) -> float | None:
    """Share of the gradients; None where no rank may drop any."""
    accounts = [each for each in reports if "handed_in" in each]
    handed_in: int = sum(each["handed_in"] for each in accounts)
    dropped: int = sum(each["dropped"] for each in accounts)
    return dropped / handed_in if handed_in else None


def _mean(times: list[float | None]) -> float | None:
    known = [at for at in times if at is not None]
    return statistics.mean(known) if len(known) == len(times) else None


def to_target(points: list[tuple[float, int, float, float]], target: float) -> float | None:
    """When the mean of the last few accuracies first reached the target."""
    for end in range(SMOOTHED, len(points) + 1):
        window = points[end - SMOOTHED : end]
        if sum(point[3] for point in window) / SMOOTHED >= target:
            return window[-1][0]
    return None


def _arguments(plan: Plan, condition: str) -> list[str]:
    return [
        "--task",
        plan.task,
        "--slow",
        str(plan.slow),
        "--modes",
        ",".join(plan.modes),
        "--conditions",
        condition,
        "--steps",
        str(plan.steps),
        "--step-ms",
        str(plan.step_ms),
        "--repeats",
        str(plan.repeats),
    ]


def _run(plan: Plan, condition: str, tell: Tell) -> Told:
    link = Link(rate_bit_s=plan.rate_bit_s) if condition in OVER_LINKS else None
    with ExitStack() as stack:
        arguments = _arguments(plan, condition)
        return _collect(linked_job(stack, plan.workers, link, WORKER, arguments, switch_at=plan.switch_at), tell)


def _collect(job: LocalJob, tell: Tell) -> Told:
    told: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    with job:
        for rank, told_record in reports_of(job, tell):
            told[told_record["mode"], told_record["seed"]][rank] = told_record
    return {key: [by_rank[rank] for rank in sorted(by_rank)] for key, by_rank in told.items()}


def record_of(plan: Plan, rows: list[Row], command: str, beginning: Beginning) -> record.RunRecord:
    """For the report: the curves, and the table as notes."""
    return record.RunRecord(
        version=record.VERSION,
        kind="bench",
        title=f"staleness: {_title(plan)}",
        command=command,
        started=beginning.moment.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - beginning.clock_s,
        outcome="finished",
        software=fanin.__version__,
        kernel=platform.release(),
        machine=machine(),
        settings={
            "workers": plan.workers,
            "steps": plan.steps,
            "step_ms": plan.step_ms,
            "repeats": plan.repeats,
            "task": plan.task,
            "slow": plan.slow,
            "rate_bit_s": plan.rate_bit_s,
            "switch_at": str(plan.switch_at),
        },
        progress=tuple(
            record.Progress(
                time_s=at, rank=0, loss=loss, accuracy=right, label=row.mode, group=CONDITIONS[row.condition]
            )
            for row in rows
            for at, loss, right in row.points
        ),
        quantities=tuple(
            record.Quantity(
                plot=f"Time to {plan.target:.0%} accuracy",
                name=row.mode,
                value=row.to_target_s,
                unit="s",
                group=CONDITIONS[row.condition],
            )
            for row in rows
        ),
        notes=tuple(map(_in_words, rows)),
    )


def _title(plan: Plan) -> str:
    step = f"{plan.step_ms:g} ms per ordinary step (emulated)"
    return f"{plan.task}, {plan.workers} workers, {step}, target {plan.target:.0%}"


def _in_words(row: Row) -> str:
    """A line of the table."""
    reached = "never" if row.to_target_s is None else f"after {row.to_target_s:.2f} s"
    times = "" if row.speed_up is None else f", {row.speed_up:.2f} times as fast as synchronous"
    dropped = "" if row.dropped is None else f", {row.dropped:.1%} of the gradients dropped"
    return (
        f"{CONDITIONS[row.condition]}, {row.mode}: target {reached}{times}; in the end {row.accuracy:.1%}; a step "
        f"{milliseconds(row.step_s)} ms, {row.samples_per_s:.4g} samples/s{dropped}"
    )


def _by_condition(table: FigureTable, rows: list[Row]) -> Iterator[Row]:
    """The rows, each condition's below a heading of its own."""
    for condition, those in groupby(rows, key=lambda row: row.condition):
        table.add_section(condition)
        yield from those


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """The rows as a table for people."""
    headings = ("mode", "to target", "of all runs", "speed-up", "whole run", "accuracy", "loss", "S or K")
    table = FigureTable(_title(plan), headings)
    for row in _by_condition(table, rows):
        table.add(
            row.mode,
            "never" if row.to_target_s is None else f"{row.to_target_s:.2f} s",
            "" if row.to_target_s is None else f"{row.fastest_s:.2f}..{row.slowest_s:.2f}",
            "" if row.speed_up is None else f"{row.speed_up:.2f}",
            f"{row.seconds:.1f} s",
            f"{row.accuracy:.1%}",
            f"{row.loss:.2f}",
            ", ".join(map(str, row.choices[-2:])),
        )
    return table


def steps_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """For people: what a step takes, and what it is worth."""
    headings = ("mode", "step ms", "to gloo", "samples/s", "to gloo", "dropped", "loss", "accuracy")
    table = FigureTable("Steps of the workers that are not slow", headings)
    for row in _by_condition(table, rows):
        table.add(
            row.mode,
            milliseconds(row.step_s),
            "" if row.step_to_gloo is None else f"{row.step_to_gloo:.2f}",
            f"{row.samples_per_s:.4g}",
            "" if row.samples_to_gloo is None else f"{row.samples_to_gloo:.2f}",
            "" if row.dropped is None else f"{row.dropped:.1%}",
            f"{row.loss:.2f}",
            f"{row.accuracy:.1%}",
        )
    table.caption = (
        "step: median; samples/s: of all workers, whose gradients were used; to gloo: how many times faster; "
        f"a slow worker computes {plan.slow:g} times as long"
    )
    if any(row.condition in OVER_LINKS for row in rows):
        table.caption += f"; links of {plan.rate_bit_s / 1e6:g} Mbit/s, switch: {plan.switch_at.in_words}"
    return table


def plot(plan: Plan, rows: list[Row], file: Path) -> None:
    """Loss above, accuracy below, a column per condition."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: pip install 'fanin[plot]'") from None
    conditions = [condition for condition in plan.conditions if any(row.condition == condition for row in rows)]
    figure = Figure(figsize=(4 * len(conditions) + 1, 7), layout="constrained")
    axes = figure.subplots(2, len(conditions), squeeze=False, sharey="row")
    colors = mpl.color_sequences["tab20"]  # one for each of MODES
    for column, condition in enumerate(conditions):
        for row in (row for row in rows if row.condition == condition):
            seconds, losses, accuracies = zip(*row.points, strict=True)
            style = {"label": row.mode, "color": colors[MODES.index(row.mode)], "linewidth": 1.3}
            axes[0][column].plot(seconds, losses, **style)
            axes[1][column].plot(seconds, accuracies, **style)
        axes[0][column].set(title=CONDITIONS[condition], yscale="log")
        axes[1][column].axhline(plan.target, color="0.6", linewidth=0.8, linestyle="--")
        axes[1][column].set(xlabel="seconds", ylim=(0.5, 1.0) if plan.task == "digits" else (0.0, 1.0))
    axes[0][0].set(ylabel="test loss")
    axes[1][0].set(ylabel="test accuracy")
    axes[0][-1].legend(fontsize="small")
    figure.savefig(file, dpi=120)
