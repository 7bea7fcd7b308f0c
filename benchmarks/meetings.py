"""`fanin bench meetings`: training with fewer meetings beside DDP, in one table and one page of plots.

Every mode trains the same network from the same weights, on the same samples in the same order, over links of a stated
rate (namespaces, root) or on this machine. The compute time of a step is emulated: a rank sleeps in addition to
computing the gradient, since this machine has fewer processors than workers. Replicas must be bit-identical in the end.
Copies of the weights are evaluated after the clock has stopped; bytes are those that a host's device sent.

On the slowest links a step of DDP takes most of a minute. With `--timed N` its rows take time and bytes from N steps
over the links, and the rest from a whole training without links, whose bits after N steps must be the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fanin.benchmarks.codecs_train_rows import half_interval
from fanin.benchmarks.harness import Output, Report, alike, by, reports, table
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.hidden_exchange import Exchanged, hidden
from fanin.emulation.network.switch_place import Place, SwitchPlace
from fanin.emulation.network.topology import Link
from fanin.emulation.network.units import Duration, Rate
from fanin.errors import ConfigurationError, FaninError
from fanin.records.record import Progress, Quantity
from fanin.settings import Bounds, Named, OneOf, Words, check_bounds

WORKER = "fanin.benchmarks.meetings_worker"
DDP = "ddp-"
"""Beginning of the names of DDP's modes."""
GLOO, LANES_32, ALONE = "ddp-gloo", "ddp-32", "alone"
MODES = {
    GLOO: "DDP over gloo",
    LANES_32: "DDP, 32-bit lanes",
    "ddp-8/8": "DDP, 8/8",
    "local-sgd": "local SGD H = 8 (torch's, gloo)",
    "qsr": "QSR, base 4",
    "diloco": "DiLoCo H = 16",
    "streaming-8/8": "streaming DiLoCo, F = 4, tau = 2, 8/8",
    "streaming-4/8": "streaming DiLoCo, F = 4, tau = 2, 4/8",
    "co2": "CO2 H = 8",
    "co2-8/8": "CO2 H = 8, 8/8",
    "co2-gap": "CO2 H = 8, measured gap",
    "diloco-100-4/8": "DiLoCo H = 100, 4/8",
    "streaming-100-4/8": "streaming DiLoCo H = 100, F = 4, tau = 10, 4/8",
    ALONE: "no communication",
}
"""By mode, its name in tables."""
DEFAULT_MODES = tuple(mode for mode in MODES if "-100-" not in mode)
"""All modes but those that meet every 100 steps, which need trainings of many hundred."""
CONDITIONS = {"even": "even workers", "random": "each step 5 times longer with probability 0.1"}
MIN_TIMED = 4
"""Least number of timed steps; the first is left out, since DDP orders its buckets anew after it."""
SMOOTHED = 2
"""Number of points over which accuracy is averaged before it is compared with the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: Annotated[int, Bounds(2, 32)] = 4
    """Hosts, of one worker each."""
    task: Annotated[str, OneOf("digits", "text")] = "digits"
    """Task that is trained: digits or text."""
    steps: Annotated[int, Bounds(16, 100_000)] = 160
    """Local steps of every worker, in every mode."""
    step_ms: Annotated[float, Bounds(0.0, 60_000.0)] = 30.0
    """Emulated compute time of an ordinary step, beside the gradient's own."""
    learning_rate: Annotated[float, Bounds(0.0, 10.0)] = 0.0
    """Learning rate at the start, in every mode; it falls by a cosine. 0: the task's, 0.25 (digits) or 0.001 (text)."""
    repeats: Annotated[int, Bounds(1, 100)] = 2
    """Runs of each mode under each condition, with a seed each."""
    rate_bit_s: Annotated[Rate, Named("rate")] = 4e6
    """Rate of every link, each way (root): 4mbit, 100mbit. none: this machine, without links unless they delay."""
    delay_s: Annotated[Duration, Named("delay")] = 0.0
    """Delay of every link, one way (root): 50ms. Two workers are two links apart, a worker and the switch's own port
    are one."""
    switch_at: Place = SwitchPlace.parse("own")
    """Place of the switch, over links: own (a port per host), rank0, hosts, spare:K."""
    modes: Words = DEFAULT_MODES
    """Modes, separated by commas, of ddp-gloo, ddp-32, ddp-8/8, local-sgd, qsr, diloco, streaming-8/8, streaming-4/8,
    co2, co2-8/8, co2-gap, alone; and diloco-100-4/8 and streaming-100-4/8, for trainings of many hundred steps."""
    timed: Annotated[int, Bounds(0, 1000)] = 0
    """Steps of DDP's modes that are taken over the links; their median stands for all, and the losses are those of
    whole trainings without links. 0: all."""
    conditions: Words = tuple(CONDITIONS)
    """Conditions of the workers, even or random, separated by commas."""
    target: Annotated[float, Bounds(0.01, 1.0)] = 0.95
    """Share of the first mode's accuracy at the end, whose time is compared."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, given, known in (("modes", self.modes, MODES), ("conditions", self.conditions, CONDITIONS)):
            if not given or set(given) - set(known):
                raise ConfigurationError(
                    f"{name} = {','.join(given)!r}; must be some of {', '.join(known)}", f"--{name}"
                )
        _ = self.link
        if self.timed and (self.link is None or not MIN_TIMED <= self.timed < self.steps):
            raise ConfigurationError(
                f"timed = {self.timed}; must be 0, or in {MIN_TIMED}..steps - 1 and with links. "
                "Remedy: --rate or --delay, and --timed 8"
            )

    @property
    def link(self) -> Link | None:
        """Link of every host; None: all ranks on this machine, without links."""
        if self.rate_bit_s is None and not self.delay_s:
            return None
        return Link(rate_bit_s=self.rate_bit_s, delay_s=self.delay_s)

    @property
    def timed_modes(self) -> tuple[str, ...]:
        """Modes of which only some steps are taken over the links."""
        return tuple(mode for mode in self.modes if self.timed and mode.startswith(DDP))

    def asked(self, condition: str, modes: Words, link: Link | None) -> Asked:
        """Trainings in these modes over such links."""
        return Asked(
            task=self.task, steps=self.steps, timed=self.timed, step_ms=self.step_ms,
            learning_rate=self.learning_rate, repeats=self.repeats, modes=modes, condition=condition,
            links=int(link is not None),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Trainings that each rank carries out."""

    task: str
    steps: int
    timed: int
    """Steps of DDP's modes that are taken over links, and after which the bits are compared; 0: all."""
    step_ms: float
    learning_rate: float
    """Learning rate at the start; 0: the task's."""
    repeats: int
    modes: Words
    condition: str
    links: int
    """1 if there are links, whose bytes are counted, or 0."""

    def steps_of(self, mode: str) -> int:
        """Number of steps to take in a mode."""
        return self.timed if self.timed and self.links and mode.startswith(DDP) else self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures of one mode under one condition; means over the repeats."""

    condition: str
    mode: str
    to_target_s: float | None
    """Seconds until rank 0's accuracy reached the target; None if it did not in one repeat."""
    seconds: float
    """Duration of all steps and the flush."""
    accuracy: float
    """Accuracy at the end, on the test set, after equally many samples."""
    accuracy_range: float | None
    """Half of the 95 % interval of `accuracy`; None for a single repeat."""
    loss: float
    """Loss at the end, on the test set."""
    loss_to_gloo: float | None
    """Loss over that of DDP over gloo with the same seed, mean of the repeats' ratios."""
    loss_to_gloo_range: float | None
    """Half of the 95 % interval of `loss_to_gloo`; None for a single repeat."""
    to_gloo: float | None
    """Seconds of DDP over gloo over this mode's."""
    to_lanes: float | None
    """Seconds of DDP over 32-bit lanes over this mode's."""
    above_alone: float | None
    """Relative amount by which it takes longer than without communication."""
    megabytes: float | None
    """Megabytes sent by the host that sent most; None without links."""
    meetings: float
    """Number of exchanges of gradients, weights or deltas, each of a whole model or of a fragment."""
    waited_s: float | None
    """Seconds that training waited for meetings, on the rank that waited longest; None if it is not known."""
    fitting: int
    """Exchanges of all ranks and runs that were shorter than the local steps which they overlapped."""
    hidden: float | None
    """Share of the seconds of these exchanges for which training went on, by the ranks' time lines; None: no such."""
    peak_mbit_s: float | None
    """Largest rate at which a host sent in one second."""
    points: tuple[tuple[float, float, float], ...]
    """(seconds, test loss, accuracy) at rank 0, in the first repeat."""


def bench(plan: Plan, output: Output) -> list[Row]:
    """Train in every mode under every condition, check, print the table, write rows, record and page."""
    rows: list[Row] = []
    for condition in plan.conditions:
        words = f"{plan.workers} workers, {CONDITIONS[condition]}"
        asked = plan.asked(condition, plan.modes, plan.link)
        found = list(reports(output, words, plan.workers, WORKER, asked, link=plan.link, switch_at=plan.switch_at))
        if plan.timed_modes:
            asked = plan.asked(condition, plan.timed_modes, None)
            whole = list(reports(output, f"{words}, without links", plan.workers, WORKER, asked))
            found = with_whole_trainings(plan, found, whole)
        rows += rows_of(plan, condition, found)
    output.show(rows, table_of(plan, rows))
    output.publish(
        f"meetings: {title_of(plan)}",
        {"workers": plan.workers, "steps": plan.steps, "step_ms": plan.step_ms, "learning_rate": plan.learning_rate,
         "repeats": plan.repeats, "task": plan.task, "rate_bit_s": plan.rate_bit_s or 0.0, "delay_s": plan.delay_s,
         "timed": plan.timed, "switch_at": str(plan.switch_at)},
        progress=[
            Progress(time_s=at, rank=0, loss=loss, accuracy=right, label=MODES[row.mode],
                     group=CONDITIONS[row.condition])
            for row in rows
            for at, loss, right in row.points
        ],
        quantities=[
            Quantity(plot="Time of all steps", name=MODES[row.mode], value=row.seconds, unit="s",
                     group=CONDITIONS[row.condition])
            for row in rows
        ],
    )  # fmt: skip
    return rows


def with_whole_trainings(plan: Plan, found: Sequence[Report], whole: Sequence[Report]) -> list[Report]:
    """`found` with the timed modes' reports replaced: weights and losses of the whole training without links, time and
    bytes of the steps over links times their number. FaninError unless both had the same bits after these steps.
    """
    by_training = {(each["mode"], each["repeat"], each["rank"]): each for each in whole}
    replaced = []
    for over in found:
        if over["mode"] not in plan.timed_modes:
            replaced.append(over)
            continue
        key = over["mode"], over["repeat"], over["rank"]
        without = by_training.get(key)
        if without is None:
            raise FaninError(
                f"{key[0]}, repeat {key[1]}: rank {key[2]} reported nothing without links. "
                "Remedy: see that rank's output above, then measure again"
            )
        if over["replica"] != without["timed_replica"]:
            raise FaninError(
                f"{key[0]}, repeat {key[1]}: rank {key[2]} has other weights after {plan.timed} steps over links than "
                "without. Remedy: --timed 0, and report this"
            )
        seconds = plan.steps * statistics.median(over["step_s"][1:])
        stretch, share = seconds / without["seconds"], plan.steps / plan.timed
        sent = over["sent_bytes"]
        replaced.append(
            without | {
                "seconds": seconds,
                "points": [(at * stretch, loss, right) for at, loss, right in without["points"]],
                "sent_bytes": None if sent is None else sent * share,
                "peak_bit_s": over["peak_bit_s"],
                "exchanges": over["exchanges"],
            }
        )  # fmt: skip
    return replaced


def rows_of(plan: Plan, condition: str, found: Sequence[Report]) -> list[Row]:
    """The rows of one condition; FaninError if replicas differ or a rank reported nothing."""
    runs = by(found, "mode", "repeat")
    for mode in plan.modes:
        for repeat in range(plan.repeats):
            said = runs.get((mode, repeat), [])
            if len(said) != plan.workers:
                raise FaninError(
                    f"{mode}, {condition}, repeat {repeat}: {len(said)} of {plan.workers} ranks reported. "
                    "Remedy: see the others' output above, then measure again"
                )
            if mode != ALONE:
                alike(f"{mode}, {condition}, repeat {repeat}", said, "replica")
    every = {mode: [runs[mode, repeat] for repeat in range(plan.repeats)] for mode in plan.modes}
    seconds = {mode: statistics.mean(max(each["seconds"] for each in said) for said in every[mode]) for mode in every}
    wanted = plan.target * statistics.mean(_first(said)["points"][-1][2] for said in every[plan.modes[0]])
    losses = {mode: [_first(said)["points"][-1][1] for said in every[mode]] for mode in every}
    return [_row(condition, mode, every[mode], seconds, losses, wanted) for mode in plan.modes]


def _row(
    condition: str,
    mode: str,
    runs: list[list[Report]],
    seconds: dict[str, float],
    losses: dict[str, list[float]],
    wanted: float,
) -> Row:
    firsts = [_first(said) for said in runs]
    reached = [to_target(first["points"], wanted) for first in firsts]
    times = [at for at in reached if at is not None]
    ends = [first["points"][-1][2] for first in firsts]

    exchanges = [Exchanged(**each) for said in runs for report in said for each in report["exchanges"]]
    fitting = [each for each in exchanges if each.fits]

    def ratio(other: str) -> float | None:
        return seconds[other] / seconds[mode] if other in seconds else None

    alone = ratio(ALONE)
    to_gloo = [own / gloo for own, gloo in zip(losses[mode], losses.get(GLOO, ()), strict=False)]
    return Row(
        condition=condition,
        mode=mode,
        to_target_s=statistics.mean(times) if len(times) == len(reached) else None,
        seconds=seconds[mode],
        accuracy=statistics.mean(ends),
        accuracy_range=half_interval(ends),
        loss=statistics.mean(losses[mode]),
        loss_to_gloo=statistics.mean(to_gloo) if to_gloo else None,
        loss_to_gloo_range=half_interval(to_gloo),
        to_gloo=ratio(GLOO),
        to_lanes=ratio(LANES_32),
        above_alone=None if alone is None else 1 / alone - 1,
        megabytes=_most(runs, "sent_bytes", 1e-6),
        meetings=statistics.mean(first["meetings"] for first in firsts),
        waited_s=_most(runs, "waited_s", 1.0),
        fitting=len(fitting),
        hidden=None if (found := hidden(fitting)) is None else found.share,
        peak_mbit_s=_most(runs, "peak_bit_s", 1e-6),
        points=tuple((at, loss, right) for at, loss, right in firsts[0]["points"]),
    )


def _first(said: Sequence[Report]) -> Report:
    return next(each for each in said if each["rank"] == 0)


def _most(runs: Sequence[Sequence[Report]], key: str, factor: float) -> float | None:
    """Largest value of all ranks, times `factor`, mean over the repeats; None if it is not known."""
    found = [max((each[key] for each in said if each[key] is not None), default=None) for said in runs]
    known = [each * factor for each in found if each is not None]
    return statistics.mean(known) if known else None


def to_target(points: Sequence[Sequence[float]], target: float) -> float | None:
    """Time at which the mean of the last SMOOTHED accuracies first reached the target; None if it never did."""
    for end in range(SMOOTHED, len(points) + 1):
        window = points[end - SMOOTHED : end]
        if sum(point[2] for point in window) / SMOOTHED >= target:
            return window[-1][0]
    return None


def title_of(plan: Plan) -> str:
    """Title of tables and page: task, workers, links and number of steps."""
    parts = [] if plan.rate_bit_s is None else [f"{plan.rate_bit_s / 1e6:g} Mbit/s"]
    parts += [f"{plan.delay_s * 1e3:g} ms each way"] if plan.delay_s else []
    links = f"links of {' and '.join(parts)}" if parts else "no links"
    timed = f" (DDP: {plan.timed} over the links)" if plan.timed_modes else ""
    return (
        f"{plan.task}, {plan.workers} workers, {links}, {plan.steps} steps of {plan.step_ms:g} ms{timed}, "
        f"{plan.repeats} runs"
    )


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""

    def with_range(text: str, half: float | None, form: str) -> str:
        return text if half is None else f"{text} ± {half:{form}}"

    def loss_to_gloo(row: Row) -> str:
        ratio = row.loss_to_gloo
        return "" if ratio is None else with_range(f"{ratio:.3f}", row.loss_to_gloo_range, ".3f")

    def percent(value: Any) -> str:
        return "" if value is None else f"{value:+.0%}"

    return table(
        title_of(plan),
        rows,
        [
            ("mode", lambda row: MODES[row.mode]),
            ("to target", lambda row: "never" if row.to_target_s is None else f"{row.to_target_s:.1f} s"),
            ("all steps", "seconds:{:.1f} s"),
            ("gloo / this", "to_gloo:.2f"),
            ("32 bits / this", "to_lanes:.2f"),
            ("over alone", lambda row: percent(row.above_alone)),
            ("accuracy", lambda row: with_range(f"{row.accuracy:.1%}", row.accuracy_range, ".1%")),
            ("loss", "loss:.3f"),
            ("loss / gloo's", loss_to_gloo),
            ("MB", "megabytes:.2f"),
            ("meetings", "meetings:.0f"),
            ("waited", "waited_s:{:.2f} s"),
            ("hidden", "hidden:{:.0%}"),
            ("peak Mbit/s", "peak_mbit_s:.2f"),
        ],
        section=lambda row: CONDITIONS[row.condition],
        caption=f"target: {plan.target:.0%} of the first mode's accuracy at the end; MB: left the host that sent most; "
        "hidden: part of the exchanges that were shorter than the steps which they overlapped; peak: in any second; "
        "over alone: beyond the time without communication",
    )
