"""The part of a run that averages and axes are of: without its start-up. Pure.

The first step holds the meeting of the ranks, first allocations and compilations; it takes many times what others take,
and says nothing about them. A worker that was started anew has several lives, each with a start-up and with steps
that count from 0 again.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence

from fanin.records.record import Activity, RunRecord, Span, WorkerRecord

ACTIVITIES: tuple[Activity, ...] = ("compute", "quantize", "send", "wait")
MIN_STEPS = 3
"""Steps below which nothing is left out."""


def lives(worker: WorkerRecord) -> list[list[Span]]:
    """The spans of each life: a new one begins where the number of a step is less than that before."""
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
    """The spans between the first step and the last of each life that has MIN_STEPS; all, where none has."""
    found: list[Span] = []
    for life in lives(worker):
        steps = {span.step for span in life if span.step is not None}
        if len(steps) >= MIN_STEPS:
            first, last = min(steps), max(steps)
            found += [span for span in life if span.step is None or first < span.step < last]
    return tuple(found) or worker.spans


def step_times_s(worker: WorkerRecord) -> list[float]:
    """How long each step took, from the second one on: from the beginning of its first span to that of the next step's.

    The span before a step's first sum has that step's number, so what an optimizer does counts for the step after.
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
    """The same of all workers."""
    return [each for worker in workers for each in step_times_s(worker)]


def median_step_s(record: RunRecord) -> float | None:
    """The median step of all workers; None without steps."""
    times = all_step_times_s(record.workers)
    return statistics.median(times) if times else None


def mean_shares(workers: Sequence[WorkerRecord]) -> dict[Activity, float]:
    """Shares of the steady part of all workers' time; empty without spans."""
    seconds: dict[Activity, float] = defaultdict(float)
    for worker in workers:
        for span in steady_spans(worker):
            seconds[span.activity] += span.end_s - span.start_s
    whole = sum(seconds.values())
    return {activity: seconds[activity] / whole for activity in ACTIVITIES} if whole > 0 else {}


def waited_s(workers: Sequence[WorkerRecord]) -> dict[int, float]:
    """By rank: how long the other workers waited while its contributions were the last to come, start-up apart."""
    total: dict[int, float] = defaultdict(float)
    for worker in workers:
        for span in steady_spans(worker):
            if span.activity == "wait" and span.waited_for and span.waited_for[0] != worker.rank:
                total[span.waited_for[0]] += span.end_s - span.start_s
    return dict(total)
