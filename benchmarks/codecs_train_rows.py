"""The trainings that a plan of `fanin bench codecs --train` needs, and the rows made of their outcomes."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fanin.benchmarks import codecs_train_hooks as hooks
from fanin.benchmarks.codecs_texts import Codecs, check_codecs, further_codecs
from fanin.benchmarks.codecs_train_runs import GLOO, Outcome, Run, Trainings
from fanin.emulation.network.topology import Link
from fanin.emulation.network.units import Rates
from fanin.errors import ConfigurationError, FaninError
from fanin.settings import Bounds, Named, Numbers, Words, check_bounds

LINK, PROCESSORS = "link", "processors"
"""Names of the two resources that may bound a step."""
TARGET_SHARE = 0.01
APART_SHARE = 0.01
"""Largest relative difference between the losses of the same steps over links and without: only rounding differs."""
STEPS = {"digits": 200, "text": 64}
"""Default number of steps of a training."""
MIN_STEPS = 4
POINTS = 16
"""Evaluations in each training."""
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % quantiles of Student's t with 1, 2, ... degrees of freedom; the last also serves for more."""
DEFAULTS = ("lanes:32", "lanes:8/8", "rotated:4/8", "rotated:4/4", "by_layer:4/8", "adaptive:4/8")
"""Codecs that are trained by default, beside every codec with its own defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the trainings."""

    workers: Annotated[Numbers, Bounds(2, 32)] = (4,)
    """Worker processes; with --train several numbers, separated by commas."""
    codecs: Codecs = ()
    """Codecs as docs/codecs.md has them, separated by commas; all by default. With --train torch's PowerSGD, too:
    power_sgd:fanin:rank=4 or power_sgd:gloo:rank=4."""
    steps: Annotated[int | None, Bounds(3, 100_000)] = None
    """Steps of each codec on each distribution, 5; with --train of training, by the task."""
    tasks: Annotated[Words, Named("task")] = ("digits",)
    """With --train: digits, text; separated by commas."""
    rates_bit_s: Annotated[Rates, Named("rates")] = (1e8, 1e9)
    """With --train: rates of the links, separated by commas; none: only what is learned."""
    batch: Annotated[int | None, Bounds(2, 1024)] = None
    """With --train: samples per step over all workers together."""
    timed_steps: Annotated[int, Named("timed"), Bounds(MIN_STEPS, 1000)] = 8
    """With --train: steps over links of each rate."""
    repeats: Annotated[int, Bounds(1, 100)] = 1
    """With --train: trainings, each of its own seed."""
    runs_file: Annotated[Path | None, Named("runs")] = None
    """With --train: file that keeps every training; those that it has are not done again."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.tasks or not set(self.tasks) <= set(STEPS):
            raise ConfigurationError(f"task = {','.join(self.tasks)!r}; must be some of {', '.join(STEPS)}", "--task")
        if not self.workers:
            raise ConfigurationError("workers = ''; each must be in 2..32", "--workers")
        for task in self.tasks:
            for workers in self.workers:
                if self.batch_of(task) % workers:
                    raise ConfigurationError(
                        f"workers = {workers}; must divide the batch of {self.batch_of(task)}", "--workers"
                    )
            if self.steps_of(task) < self.timed_steps:
                raise ConfigurationError(f"timed = {self.timed_steps}; must be in {MIN_STEPS}..steps", "--timed")
        if self.rates_bit_s and min(self.rates_bit_s) <= 0:
            raise ConfigurationError("rates: expected some, as in 100mbit,1gbit, or none", "--rates")
        for rate in self.rates_bit_s:
            Link(rate_bit_s=rate)  # ConfigurationError for one that no link can have, before anything is trained
        for text in filter(hooks.is_hook, self.texts):
            hooks.check_hook(text, self.tasks)
        check_codecs((text for text in self.texts if not hooks.is_hook(text)), *self.workers)

    def steps_of(self, task: str) -> int:
        """Number of steps of a training."""
        return STEPS[task] if self.steps is None else self.steps

    def batch_of(self, task: str) -> int:
        """Number of samples per step."""
        from fanin.examples.tasks import TASKS  # --help must not import torch

        return TASKS[task].batch if self.batch is None else self.batch

    @property
    def texts(self) -> list[str]:
        """The codecs to train with, as texts."""
        return list(dict.fromkeys(self.codecs or (*DEFAULTS, *further_codecs())))

    @property
    def rivals(self) -> list[str]:
        """float32 over gloo, then the codecs."""
        return [GLOO, *self.texts]

    def learning(self, task: str, workers: int, codec: str, seed: int) -> Run:
        """The whole training of one codec with one seed, without links."""
        steps = self.steps_of(task)
        return Run(task, workers, codec, self.batch_of(task), steps, min(POINTS, steps), seed)

    def timing(self, task: str, workers: int, codec: str, rate_bit_s: float) -> Run:
        """The first steps of seed 0 over links of one rate."""
        return Run(task, workers, codec, self.batch_of(task), self.timed_steps, 1, 0, rate_bit_s)

    def check_of_timing(self, task: str, workers: int, codec: str) -> Run:
        """The first steps of seed 0 without links, whose loss those over links must have."""
        return Run(task, workers, codec, self.batch_of(task), self.timed_steps, 1)

    @property
    def runs(self) -> list[Run]:
        """All trainings, seed by seed, so that an interrupted run has outcomes of all codecs."""
        cases = [(task, workers) for workers in self.workers for task in self.tasks]
        learned = [
            self.learning(task, workers, codec, seed)
            for task, workers in cases
            for seed in range(self.repeats)
            for codec in self.rivals
        ]
        timed = [
            self.timing(task, workers, codec, rate)
            for task, workers in cases
            for rate in self.rates_bit_s
            for codec in self.rivals
        ]
        checks = [self.check_of_timing(*case, codec) for case in cases for codec in self.rivals if self.rates_bit_s]
        return [*checks, *timed, *learned]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Outcome of one codec, as in the JSON file: what it learned and, over links of one rate, how fast (means)."""

    task: str
    workers: int
    codec: str
    steps: int
    repeats: int
    loss: float
    accuracy: float
    """Accuracy at the end, on the test set."""
    loss_range: float | None
    accuracy_range: float | None
    """Half of the 95 % intervals of loss and accuracy; None for a single seed."""
    loss_change: float
    """Relative amount by which the loss is above gloo's with the same seed."""
    loss_change_range: float | None = None
    """Half of the 95 % interval of `loss_change`."""
    accuracy_change: float
    """Amount by which the accuracy is above gloo's with the same seeds."""
    accuracy_change_range: float | None
    target_loss: float
    to_target_steps: float | None
    """Steps until the loss reaches the target; None if it does not with one of the seeds."""
    points: tuple[tuple[int, float, float], ...]
    """(steps, loss, accuracy) of each evaluation, with the first seed."""
    rate_bit_s: float | None = None
    """Rate of the links; None in a row without timed steps."""
    step_s: float | None = None
    """Median time of the timed steps, of the slowest rank."""
    compute_s: float | None = None
    """Computation in a step: forward, backward and optimizer, with all workers on this machine's processors."""
    codec_s: float | None = None
    """Codec arithmetic in a step, with all workers on this machine's processors."""
    without_links_s: float | None = None
    """Time of a step without links, with all workers on this machine's processors: a bound whatever the links are."""
    processor_s: float | None = None
    """Processor time of one worker in a step, with all of its threads."""
    bytes_out: float | None = None
    """Bytes sent per step, by the worker that sent most."""
    bytes_in: float | None = None
    """Bytes received per step, by the worker that received most."""
    saved: float | None = None
    """gloo's bytes over this codec's, as sent by a worker."""
    to_target_s: float | None = None
    speed_up: float | None = None
    """gloo's time to the target over this codec's."""
    processor: float | None = None
    """Load of this machine's processors in the timed steps, 0..1."""

    @property
    def link_s(self) -> float | None:
        """Time that a step's bytes alone take on a link, in the busier direction."""
        if self.bytes_out is None or self.bytes_in is None or self.rate_bit_s is None:
            return None
        return max(self.bytes_out, self.bytes_in) * 8 / self.rate_bit_s

    @property
    def bound_by(self) -> tuple[str, float] | None:
        """The resource that a step needs longer, LINK or PROCESSORS, and its share of the step's time, at most 1."""
        if self.link_s is None or self.without_links_s is None or not self.step_s:
            return None
        name, bound_s = max((LINK, self.link_s), (PROCESSORS, self.without_links_s), key=lambda each: each[1])
        return name, min(1.0, bound_s / self.step_s)

    @property
    def own_core_s(self) -> float | None:
        """Time of a step if every worker had a core of its own, and link and processor never worked together."""
        return None if self.link_s is None or self.processor_s is None else self.link_s + self.processor_s

    def own_core_speed_up(self, gloo: Row) -> float | None:
        """gloo's time to the target over this codec's, if every worker had a core of its own."""
        ours, theirs = self._own_core_to_target_s, gloo._own_core_to_target_s
        return theirs / ours if ours and theirs else None

    @property
    def _own_core_to_target_s(self) -> float | None:
        steps, step_s = self.to_target_steps, self.own_core_s
        return None if steps is None or step_s is None else steps * step_s


def rows_of(plan: Plan, kept: Trainings) -> list[Row]:
    """A row for each codec without links, and one for each codec and rate."""
    rows = []
    for workers in plan.workers:
        for task in plan.tasks:
            learned = [_learned(plan, kept, task, workers, codec) for codec in plan.rivals]
            rows += learned
            for rate in plan.rates_bit_s:
                gloo: Row | None = None
                for row in learned:
                    timed = _timed(plan, kept, row, rate, gloo)
                    gloo = gloo or timed
                    rows.append(timed)
    return rows


def _learned(plan: Plan, kept: Trainings, task: str, workers: int, codec: str) -> Row:
    own = [kept[plan.learning(task, workers, codec, seed)] for seed in range(plan.repeats)]
    gloo = [kept[plan.learning(task, workers, GLOO, seed)] for seed in range(plan.repeats)]
    losses, accuracies = [_end(each)[0] for each in own], [_end(each)[1] for each in own]
    apart = [loss / _end(other)[0] - 1 for loss, other in zip(losses, gloo, strict=True)]
    targets = [_end(each)[0] * (1 + TARGET_SHARE) for each in gloo]
    changes = [right - _end(other)[1] for right, other in zip(accuracies, gloo, strict=True)]
    reached = [to_target(each, target) for each, target in zip(own, targets, strict=True)]
    steps = [each for each in reached if each is not None]
    return Row(
        task=task,
        workers=workers,
        codec=codec,
        steps=plan.steps_of(task),
        repeats=plan.repeats,
        loss=statistics.mean(losses),
        accuracy=statistics.mean(accuracies),
        loss_range=half_interval(losses),
        accuracy_range=half_interval(accuracies),
        loss_change=statistics.mean(apart),
        loss_change_range=None if codec == GLOO else half_interval(apart),
        accuracy_change=statistics.mean(changes),
        accuracy_change_range=half_interval(changes),
        target_loss=statistics.mean(targets),
        to_target_steps=statistics.mean(steps) if len(steps) == plan.repeats else None,
        points=tuple((each.step, _loss(each.loss), each.accuracy) for each in own[0].points),
    )


def _timed(plan: Plan, kept: Trainings, row: Row, rate_bit_s: float, gloo: Row | None) -> Row:
    timed = kept[plan.timing(row.task, row.workers, row.codec, rate_bit_s)]
    check = kept[plan.check_of_timing(row.task, row.workers, row.codec)]
    over_links, without = _end(timed)[0], _end(check)[0]
    if not abs(over_links - without) <= APART_SHARE * without and math.isfinite(without):
        raise FaninError(
            f"{timed.run.words}: loss {over_links:.4f} after {timed.run.steps} steps, but {without:.4f} without links. "
            "Remedy: a new file for --runs, if that one is of another machine or version; otherwise please report this"
        )
    assert timed.bytes_out is not None
    to_target_s = None if row.to_target_steps is None else row.to_target_steps * timed.step_s
    gloo_bytes, gloo_s = (timed.bytes_out, to_target_s) if gloo is None else (gloo.bytes_out, gloo.to_target_s)
    assert gloo_bytes is not None
    return dataclasses.replace(
        row,
        rate_bit_s=rate_bit_s,
        step_s=timed.step_s,
        compute_s=timed.compute_s,
        codec_s=timed.codec_s,
        without_links_s=check.step_s,
        processor_s=timed.processor_s,
        bytes_out=timed.bytes_out,
        bytes_in=timed.bytes_in,
        saved=gloo_bytes / timed.bytes_out,
        to_target_s=to_target_s,
        speed_up=gloo_s / to_target_s if gloo_s and to_target_s else None,
        processor=timed.processor,
    )


def _end(outcome: Outcome) -> tuple[float, float]:
    last = outcome.points[-1]
    return _loss(last.loss), last.accuracy


def _loss(loss: float | None) -> float:
    return math.inf if loss is None else loss


def to_target(outcome: Outcome, target: float) -> int | None:
    """Number of steps at the first evaluation whose loss is at or below the target; None if there is none."""
    return next((each.step for each in outcome.points if _loss(each.loss) <= target), None)


def half_interval(values: list[float]) -> float | None:
    """Half of the 95 % interval of the values' mean; None for fewer than two values, or if one is not finite."""
    if len(values) < 2:
        return None
    student = STUDENT[min(len(values) - 1, len(STUDENT)) - 1]
    return student * statistics.stdev(values) / math.sqrt(len(values)) if all(map(math.isfinite, values)) else None
