"""The part of a run that averages and axes use: without the start-up. Pure.

In the first step the ranks meet, memory is allocated and code compiled; it takes many times as long as others, and says
nothing about them. A worker that was started again has several lives, each with a start-up and with steps numbered
from 0.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence

from fanin.records.record import Activity, RunRecord, Span, WorkerRecord

ACTIVITIES: tuple[Activity, ...] = ("compute", "quantize", "send", "wait")
MIN_STEPS = 3
"""Fewest steps of a life of which the first and the last are left out."""


def lives(worker: WorkerRecord) -> list[list[Span]]:
    """The worker's spans, divided into lives: a new life begins where the step's number is smaller than before."""
    found: list[list[Span]] = [[]]
    before = 0
    for span in worker.spans:
        if span.step is not None:
            if span.step < before:
                found.append([])
            before = span.step
        found[-1].append(span)
    return found


def steady_spans(worker: WorkerRecord) -> tuple[Span, ...]:
    """Spans after the first and before the last step of each life with MIN_STEPS or more; all spans if none has."""
    found: list[Span] = []
    for life in lives(worker):
        steps = {span.step for span in life if span.step is not None}
        if len(steps) >= MIN_STEPS:
            first, last = min(steps), max(steps)
            found += [span for span in life if span.step is None or first < span.step < last]
    return tuple(found) or worker.spans


def step_times_s(worker: WorkerRecord) -> list[float]:
    """Duration of each step from the second on: from the start of its first span to the start of the next step's.

    The span before a step's first sum has that step's number, so the optimizer's time counts for the following step.
    """
    found: list[float] = []
    for life in lives(worker):
        begun: dict[int, float] = {}
        for span in life:
            if span.step is not None:
                begun.setdefault(span.step, span.start_s)
        ordered = [begun[step] for step in sorted(begun)]
        found += [after - before for before, after in itertools.pairwise(ordered[1:])]
    return found


def all_step_times_s(workers: Sequence[WorkerRecord]) -> list[float]:
    """Step times of all workers, in one list."""
    return [each for worker in workers for each in step_times_s(worker)]


def median_step_s(record: RunRecord) -> float | None:
    """Median of all workers' step times; None without steps."""
    times = all_step_times_s(record.workers)
    return statistics.median(times) if times else None


def mean_shares(workers: Sequence[WorkerRecord]) -> dict[Activity, float]:
    """Each activity's share of all workers' steady time; empty without spans."""
    seconds: dict[Activity, float] = defaultdict(float)
    for worker in workers:
        for span in steady_spans(worker):
            seconds[span.activity] += span.end_s - span.start_s
    whole = sum(seconds.values())
    return {activity: seconds[activity] / whole for activity in ACTIVITIES} if whole > 0 else {}


def waited_s(workers: Sequence[WorkerRecord]) -> dict[int, float]:
    """By rank: seconds that other workers waited while its contributions were the last to arrive, in steady time."""
    total: dict[int, float] = defaultdict(float)
    for worker in workers:
        for span in steady_spans(worker):
            if span.activity == "wait" and span.waited_for and span.waited_for[0] != worker.rank:
                total[span.waited_for[0]] += span.end_s - span.start_s
    return dict(total)
