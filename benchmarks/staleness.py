"""`fanin bench staleness`: loss and accuracy against wall-clock time of stale training, in one table and one plot.

Real processes train a small network on handwritten digits, or the text transformer, in every mode under every
condition. Compute time is emulated (staleness_worker.py), because on a machine with fewer cores than workers contention
would dominate. All modes of a condition run in the same processes, one after another, with one seed and then with the
next. Replicas must be bit-identical in the end. A second table has the step times of workers that are not slow, beside
gloo's.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fanin.benchmarks.codecs_train_rows import half_interval
from fanin.benchmarks.harness import Output, Report, by, reports, table
from fanin.benchmarks.rivals import MAX_SAMPLES
from fanin.emulation import report
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.network.commands import require_privileges
from fanin.emulation.network.switch_place import OWN, Place
from fanin.emulation.network.topology import Link
from fanin.emulation.network.units import Rate
from fanin.errors import ConfigurationError, FaninError
from fanin.records import record
from fanin.settings import Bounds, Named, OneOf, Words, check_bounds

NARROW = "-8"
"""Suffix of the name of a mode with lanes of 8 bits."""
ASYNCHRONOUS = ("quorum", "skip", "skip-8", "rate-by-age", "predicted-loss")
"""Modes of AsynchronousOptimizer, all with the policy `skip`."""
MEETINGS = {"local-4": 4, "local-16": 16, "local-4-quorum": 4}
"""Modes of LocalSteps, and their local steps between two meetings. In the last, all but one worker close a meeting."""
MODES = ("synchronous", "synchronous-8", "gloo", "ssp-1", "ssp-2", "ssp-4", "dssp", *ASYNCHRONOUS, *MEETINGS)
SLOW_WORKER = ("slow-worker", "slow-worker-over-links")
"""Conditions in which the last rank is always slower."""
TASKS = ("digits", "text")
CONDITIONS = {
    "even": "even workers",
    "random": "each step 5 times longer with probability 0.1",
    "slow-worker": "one of them slower, always",
    "slow-link": "links of a stated rate",
    "slow-worker-over-links": "one of them slower, always, and links of a stated rate",
}
OVER_LINKS = ("slow-link", "slow-worker-over-links")
"""Conditions with a namespace and a link for each worker; they need root."""
USUAL_MODES = tuple(mode for mode in MODES if not mode.endswith(NARROW))
USUAL_CONDITIONS = tuple(name for name in CONDITIONS if name != "slow-worker-over-links")
"""Default conditions; the one left out is for models whose sums take time."""
WORKER = "fanin.benchmarks.staleness_worker"
SMOOTHED = 3
"""Number of points over which accuracy is averaged before it is compared with the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: Annotated[int, Bounds(2, 32)] = 4
    """Worker processes on this machine."""
    steps: Annotated[int, Bounds(5, MAX_SAMPLES)] = 160
    """Synchronous steps; other modes take as many gradients."""
    step_ms: Annotated[float, Bounds(0.1, 60_000)] = 30.0
    """Emulated compute time of an ordinary step."""
    repeats: Annotated[int, Bounds(1, 1000)] = 2
    """Runs of each mode under each condition, with a seed each."""
    target: Annotated[float, Bounds(0, 1)] = 0.9
    """Test accuracy whose time is compared."""
    modes: Annotated[Words, OneOf(*MODES)] = USUAL_MODES
    """Modes, separated by commas; synchronous-8 and skip-8 have lanes of 8 bits."""
    conditions: Annotated[Words, OneOf(*CONDITIONS)] = USUAL_CONDITIONS
    """Some of even, random, slow-worker, slow-link and slow-worker-over-links (both root)."""
    rate_bit_s: Annotated[Rate, Named("rate")] = 4e6
    """Rate of the slow links."""
    task: Annotated[str, OneOf(*TASKS)] = "digits"
    """Task that is trained: digits or text."""
    slow: Annotated[float, Bounds(1, 1000)] = 3.0
    """How many times longer than an ordinary one a slow worker's step is."""
    switch_at: Place = OWN
    """Place of the sums over links: own, rank0, hosts, spare:K, spare-only:K."""
    plot: Path = Path("fanin-staleness.png")
    """File for the curves: PNG, or what its suffix says."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, given in (("modes", self.modes), ("conditions", self.conditions)):
            if not given:
                raise ConfigurationError(f"{name} = ''. Remedy: name at least one")
        if Link(rate_bit_s=self.rate_bit_s).rate_bit_s is None:
            raise ConfigurationError("a slow link needs a rate, such as 4mbit", "that rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (staleness_worker.py)."""

    task: str
    slow: float
    modes: Words
    condition: str
    steps: int
    step_ms: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one mode under one condition."""

    condition: str
    mode: str
    to_target_s: float | None
    """Seconds until rank 0's smoothed accuracy reached the target, mean over repeats; None if it did not in one."""
    fastest_s: float | None
    slowest_s: float | None
    """Time to the target of the fastest and of the slowest repeat."""
    to_target_range: float | None
    """Half of the 95 % interval of `to_target_s`; None for a single repeat."""
    speed_up: float | None
    """Time to the target of the synchronous mode over this mode's."""
    seconds: float
    """Duration of the whole run."""
    accuracy: float
    loss: float
    """Accuracy and loss at the end, on the test set."""
    accuracy_range: float | None
    """Half of the 95 % interval of `accuracy`; None for a single repeat."""
    choices: tuple[int, ...]
    """Values of S or K chosen at run time."""
    points: tuple[tuple[float, float, float], ...]
    """(seconds, loss, accuracy) at rank 0, in the first repeat."""
    step_s: float
    """Median time of a step, over the ranks that are not slow; in asynchronous modes the time between gradients."""
    samples_per_s: float
    """Samples of all ranks per second, mean over repeats, without those of dropped gradients."""
    dropped: float | None
    """Share of the handed-in gradients that were dropped, by the ranks' accounts; None if the mode drops none."""
    step_to_gloo: float | None
    """gloo's `step_s` over this mode's."""
    samples_to_gloo: float | None
    """This mode's `samples_per_s` over gloo's."""


Told = dict[tuple[str, int], list[Report]]
"""The ranks' reports, in order of ranks, by mode and seed."""


def bench(plan: Plan, output: Output) -> list[Row]:
    """Measure, check, print tables; write rows, record and page, and the curves."""
    report.check_available()  # before a run of minutes, not after it
    from fanin.emulation.report.drawing import format_of

    format_of(plan.plot)
    rows: list[Row] = []
    for condition in _possible(plan, output):
        rows += rows_of(plan, condition, _run(plan, condition, output))
    output.show(rows, table_of(plan, rows), steps_of(plan, rows))
    names = ("workers", "steps", "step_ms", "repeats", "task", "slow", "rate_bit_s")
    settings = {**{name: getattr(plan, name) for name in names}, "switch_at": str(plan.switch_at)}
    output.publish(f"staleness: {_title(plan)}", settings, **recorded(plan, rows))
    plot(plan, rows)
    output.say(f"plot: {plan.plot}")
    return rows


def _possible(plan: Plan, output: Output) -> list[str]:
    """The conditions that this process can make; the others are named. UnsupportedError where none is left."""
    possible = [condition for condition in plan.conditions if condition not in OVER_LINKS]
    if len(possible) < len(plan.conditions):
        try:
            require_privileges()
        except FaninError as error:
            if not possible:
                raise
            for condition in plan.conditions:
                if condition in OVER_LINKS:
                    output.say(f"{condition} is left out: {error}")
        else:
            return list(plan.conditions)
    return possible


def _run(plan: Plan, condition: str, output: Output) -> Told:
    same = ("task", "slow", "steps", "step_ms", "repeats")
    asked = Asked(condition=condition, modes=plan.modes, **{name: getattr(plan, name) for name in same})
    link = Link(rate_bit_s=plan.rate_bit_s) if condition in OVER_LINKS else None
    words = f"{plan.workers} workers, {CONDITIONS[condition]}"
    found = reports(output, words, plan.workers, WORKER, asked, link=link, switch_at=plan.switch_at)
    return {key: sorted(each, key=lambda told: told["rank"]) for key, each in by(found, "mode", "seed").items()}


def rows_of(plan: Plan, condition: str, told: Told) -> list[Row]:
    """The rows of one condition; FaninError if replicas differ or a rank reported nothing."""
    reached: dict[str, list[float | None]] = defaultdict(list)
    for mode in plan.modes:
        for seed in range(plan.repeats):
            reports = told.get((mode, seed), [])
            if len(reports) != plan.workers or len({each["replica"] for each in reports}) != 1:
                raise FaninError(
                    f"{mode}, {condition}, seed {seed}: the replicas differ at the end, or a rank is missing. "
                    "Remedy: see the ranks' output above, then measure again"
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
                to_target_range=None if reached_s is None else half_interval(times),
                speed_up=synchronous_s / reached_s if synchronous_s and reached_s else None,
                seconds=statistics.mean(end[0] for end in ends),
                accuracy=statistics.mean(end[3] for end in ends),
                accuracy_range=half_interval([end[3] for end in ends]),
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
    """Share of gradients that were dropped; None if no rank may drop any."""
    accounts = [each for each in reports if "handed_in" in each]
    handed_in: int = sum(each["handed_in"] for each in accounts)
    dropped: int = sum(each["dropped"] for each in accounts)
    return dropped / handed_in if handed_in else None


def _mean(times: list[float | None]) -> float | None:
    known = [at for at in times if at is not None]
    return statistics.mean(known) if len(known) == len(times) else None


def to_target(points: list[tuple[float, int, float, float]], target: float) -> float | None:
    """Time at which the mean of the last SMOOTHED accuracies first reached the target; None if it never did."""
    for end in range(SMOOTHED, len(points) + 1):
        window = points[end - SMOOTHED : end]
        if sum(point[3] for point in window) / SMOOTHED >= target:
            return window[-1][0]
    return None


def recorded(plan: Plan, rows: list[Row]) -> dict[str, Any]:
    """Arguments of a record: the curves, and the table as notes."""
    return {
        "progress": [
            record.Progress(
                time_s=at, rank=0, loss=loss, accuracy=right, label=row.mode, group=CONDITIONS[row.condition]
            )
            for row in rows
            for at, loss, right in row.points
        ],
        "quantities": [
            record.Quantity(
                plot=f"Time to {plan.target:.0%} accuracy",
                name=row.mode,
                value=row.to_target_s,
                unit="s",
                group=CONDITIONS[row.condition],
            )
            for row in rows
        ],
        "notes": tuple(map(_in_words, rows)),
    }


def _title(plan: Plan) -> str:
    step = f"{plan.step_ms:g} ms per ordinary step (emulated)"
    return f"{plan.task}, {plan.workers} workers, {step}, target {plan.target:.0%}"


def _in_words(row: Row) -> str:
    """One row as a line of text."""
    reached = "never" if row.to_target_s is None else f"after {row.to_target_s:.2f} s"
    times = "" if row.speed_up is None else f", {row.speed_up:.2f} times as fast as synchronous"
    dropped = "" if row.dropped is None else f", {row.dropped:.1%} of the gradients dropped"
    return (
        f"{CONDITIONS[row.condition]}, {row.mode}: target {reached}{times}; in the end {row.accuracy:.1%}; a step "
        f"{milliseconds(row.step_s)} ms, {row.samples_per_s:.4g} samples/s{dropped}"
    )


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""

    def to_target(row: Row) -> str:
        return "never" if row.to_target_s is None else f"{row.to_target_s:.2f}{within(row.to_target_range)} s"

    def accuracy(row: Row) -> str:
        points = None if row.accuracy_range is None else 100 * row.accuracy_range
        return f"{100 * row.accuracy:.1f}{within(points, 1)} %"

    return table(
        _title(plan),
        rows,
        [
            ("mode", "mode"),
            ("to target", to_target),
            ("speed-up", "speed_up:.2f"),
            ("whole run", "seconds:{:.1f} s"),
            ("accuracy", accuracy),
            ("loss", "loss:.2f"),
            ("S or K", lambda row: ", ".join(map(str, row.choices[-2:]))),
        ],
        section=lambda row: row.condition,
        caption=f"+-: half of the 95 % interval over {plan.repeats} seeds" if plan.repeats > 1 else "",
    )


def within(half: float | None, digits: int = 2) -> str:
    """An interval behind its value; empty where there is none."""
    return "" if half is None else f" +-{half:.{digits}f}"


def steps_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """Table for the terminal: step times, and samples per second."""
    caption = (
        "step: median; samples/s: of all workers, whose gradients were used; to gloo: how many times faster; "
        f"a slow worker computes {plan.slow:g} times as long"
    )
    if plan.rate_bit_s is not None and any(row.condition in OVER_LINKS for row in rows):
        caption += f"; links of {plan.rate_bit_s / 1e6:g} Mbit/s, switch: {plan.switch_at.in_words}"
    return table(
        "Steps of the workers that are not slow",
        rows,
        [
            ("mode", "mode"),
            ("step ms", "step_s:ms"),
            ("to gloo", "step_to_gloo:.2f"),
            ("samples/s", "samples_per_s:.4g"),
            ("to gloo", "samples_to_gloo:.2f"),
            ("dropped", "dropped:.1%"),
            ("loss", "loss:.2f"),
            ("accuracy", "accuracy:.1%"),
        ],
        section=lambda row: row.condition,
        caption=caption,
    )


LINE_STYLES = ("-", "--", ":", "-.")
"""Line styles; the next one is used when colours repeat."""


def plot(plan: Plan, rows: list[Row]) -> None:
    """Draw the curves to `plan.plot`: loss above, accuracy below, a column per condition, in the report's style."""
    from matplotlib.ticker import FuncFormatter

    from fanin.emulation.report.drawing import WIDE_IN, Canvas, Plot, time_label

    conditions = [condition for condition in plan.conditions if any(row.condition == condition for row in rows)]

    def draw(canvas: Canvas) -> None:
        made = canvas.axes(2, len(conditions), sharey="row")
        losses, accuracies = made[: len(conditions)], made[len(conditions) :]
        for above, below, condition in zip(losses, accuracies, conditions, strict=True):
            for row in (row for row in rows if row.condition == condition):
                seconds, loss, accuracy = zip(*row.points, strict=True)
                number = MODES.index(row.mode)
                style = LINE_STYLES[number // len(canvas.palette.series) % len(LINE_STYLES)]
                colour = canvas.palette.of(number)
                above.plot(seconds, loss, label=row.mode, color=colour, linestyle=style, linewidth=1.6)
                below.plot(seconds, accuracy, label=row.mode, color=colour, linestyle=style, linewidth=1.6)
            above.set_title(CONDITIONS[condition], loc="left")
            above.set_yscale("log")
            below.axhline(plan.target, color=canvas.palette.ink, linewidth=1.2, linestyle=":")
            below.set_ylim(*((0.5, 1.0) if plan.task == "digits" else (0.0, 1.0)))
            below.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            for axes in (above, below):
                axes.xaxis.set_major_formatter(FuncFormatter(time_label))
        losses[0].set_ylabel("test loss")
        accuracies[0].set_ylabel("test accuracy")
        canvas.legend(max(losses, key=lambda axes: len(axes.get_legend_handles_labels()[1])))

    width_in = max(WIDE_IN, 4.0 * len(conditions) + 1.0)
    Plot("staleness", "Loss and accuracy against time", "", draw, height_in=7.0, width_in=width_in).save(plan.plot)
