"""Plots of each worker's activity over time, and of the ranks that were waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from fanin.emulation.report.drawing import Canvas, Plot, time_label
from fanin.emulation.report.steady import ACTIVITIES, steady_spans, waited_s
from fanin.records.record import Activity, RunRecord, Span, WorkerRecord

COLOURS: dict[Activity, int] = {"compute": 0, "quantize": 3, "send": 2, "wait": 1}
"""Index of each activity's colour in the palette's series."""
SPANS_SHOWN = 40
"""About how many spans are shown per worker; a whole run would be a solid stripe, and many megabytes of page."""
MIN_LABEL_SHARE = 0.02
"""Least share of the plot's width at which a wait is labelled with the rank that was waited for."""


def plots(record: RunRecord) -> list[Plot]:
    """Plots of some steps, of shares of the whole run, and of the ranks that were waited for; without data, none."""
    workers = [worker for worker in record.workers if worker.spans]
    made = [_timeline(workers), _shares(workers)] if workers else []
    waits = waited_s(workers)
    if waits:
        made.append(_culprits(record, waits, "seconds that other workers waited for it", time_label))
        return made
    arrivals = _last_arrivals(record)
    if arrivals:
        made.append(_culprits(record, arrivals, "rounds that it was the last to contribute to", _count_label))
    return made


def window_of(workers: list[WorkerRecord]) -> tuple[float, float]:
    """Start and end, in seconds, of the part to show: the steady part of a short run, or the middle of a long one."""
    spans = [span for worker in workers for span in steady_spans(worker)]
    starts = sorted(span.start_s for span in spans)
    shown = SPANS_SHOWN * len(workers)
    if len(starts) <= shown:
        return starts[0], max(span.end_s for span in spans)
    first = (len(starts) - shown) // 2
    return starts[first], starts[first + shown]


def _timeline(workers: list[WorkerRecord]) -> Plot:
    start_s, end_s = window_of(workers)

    def draw(canvas: Canvas) -> None:
        (axes,) = canvas.axes()
        for row, worker in enumerate(workers):
            visible = [span for span in worker.spans if span.end_s > start_s and span.start_s < end_s]
            for activity in ACTIVITIES:
                _stripe(canvas, axes, row, activity, visible)
            _name_waits(canvas, axes, row, visible, end_s - start_s)
        _rows(axes, workers)
        axes.set_xlim(start_s, end_s)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g} s"))
        canvas.legend(axes)

    caption = (
        "Upper half of a row: computing. Lower half: quantizing, sending, and waiting for results, their decoding "
        "included; a number is the "
        f"rank whose contributions came last. Shown: {time_label(end_s - start_s)} out of the middle of the run."
    )
    height = 1.1 + 0.42 * len(workers)
    return Plot("timeline", "What every worker did, step by step", caption, draw, height, height + 0.5)


def _stripe(canvas: Canvas, axes: Axes, row: int, activity: Activity, spans: list[Span]) -> None:
    stretches = [(span.start_s, span.end_s - span.start_s) for span in spans if span.activity == activity]
    bottom = row - 0.40 if activity == "compute" else row + 0.02
    colour = canvas.palette.of(COLOURS[activity])
    axes.broken_barh(stretches, (bottom, 0.38), facecolor=colour, edgecolor="none", label=activity if row == 0 else "")


def _name_waits(canvas: Canvas, axes: Axes, row: int, spans: list[Span], width_s: float) -> None:
    for span in spans:
        length_s = span.end_s - span.start_s
        if span.activity == "wait" and span.waited_for and length_s > width_s * MIN_LABEL_SHARE * (1 + canvas.narrow):
            axes.text(
                span.start_s + length_s / 2,
                row + 0.21,
                str(span.waited_for[0]),
                color=canvas.palette.paper,
                horizontalalignment="center",
                verticalalignment="center",
                clip_on=True,
                fontsize="small",
            )


def _shares(workers: list[WorkerRecord]) -> Plot:
    def draw(canvas: Canvas) -> None:
        (axes,) = canvas.axes()
        for row, worker in enumerate(workers):
            left = 0.0
            for activity, share in shares_of(worker):
                colour = canvas.palette.of(COLOURS[activity])
                axes.barh(row, share, left=left, height=0.66, color=colour, label=activity if row == 0 else "")
                if share > 0.07 * (1 + canvas.narrow):
                    axes.text(
                        left + share / 2,
                        row,
                        f"{share:.0%}",
                        color=canvas.palette.paper,
                        horizontalalignment="center",
                        verticalalignment="center",
                    )
                left += share
        _rows(axes, workers)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        canvas.legend(axes)

    height = 1.1 + 0.34 * len(workers)
    caption = (
        "Of the time that was recorded, the first and the last step left out. Communication that overlaps computing "
        "counts as communication."
    )
    return Plot("shares", "Where the time went", caption, draw, height, height + 0.5)


def shares_of(worker: WorkerRecord) -> Iterator[tuple[Activity, float]]:
    """Each activity's share of the worker's steady time; 0 without spans."""
    seconds: dict[Activity, float] = defaultdict(float)
    for span in steady_spans(worker):
        seconds[span.activity] += span.end_s - span.start_s
    total = sum(seconds.values())
    for activity in ACTIVITIES:
        yield activity, seconds[activity] / total if total else 0.0


def _culprits(record: RunRecord, values: dict[int, float], what: str, label: object) -> Plot:
    ranks = sorted({worker.rank for worker in record.workers} | set(values))

    def draw(canvas: Canvas) -> None:
        (axes,) = canvas.axes()
        axes.barh(range(len(ranks)), [values.get(rank, 0.0) for rank in ranks], color=canvas.palette.of(1), height=0.6)
        axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(what)
        axes.xaxis.set_major_formatter(FuncFormatter(label))  # type: ignore[arg-type]

    height = 1.0 + 0.3 * len(ranks)
    return Plot("waited-for", "Who was waited for", f"Bars: {what}.", draw, height, height)


def _last_arrivals(record: RunRecord) -> dict[int, float]:
    total: dict[int, float] = defaultdict(float)
    for switch in record.switches:
        for rank, count in switch.last_arrivals.items():
            if rank.isdigit():
                total[int(rank)] += count
    return dict(total)


def _count_label(value: float, _: object = None) -> str:
    return f"{value:,.0f}"


def _rows(axes: Axes, workers: list[WorkerRecord]) -> None:
    slow = {worker.rank: f" ({worker.slowdown:g}x slower)" for worker in workers if worker.slowdown != 1.0}
    axes.set_yticks(range(len(workers)), [f"rank {worker.rank}{slow.get(worker.rank, '')}" for worker in workers])
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
