"""Plots of accuracy and loss against time, as the training program reported them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from matplotlib.ticker import FuncFormatter

from fanin.emulation.report.drawing import Canvas, Plot, time_label
from fanin.records.record import Progress, RunRecord

MARKERS = "osD^vPX*"
MARKED_POINTS = 60
"""A line of at most so many points marks each of them."""


def plots(record: RunRecord) -> list[Plot]:
    """Plots of accuracy and of loss, as far as they were reported; a line per label, axes per group."""
    made = []
    if any(progress.accuracy is not None for progress in record.progress):
        percent = FuncFormatter(lambda value, _: f"{value:.0%}")
        caption = "On the test set, against the time since the start of the run. Dotted: faults and ends of processes."
        frame = Plot("accuracy", "Accuracy against time", caption, lambda _: None)
        made.append(_against_time(record, frame, lambda progress: progress.accuracy, percent))
    if any(progress.loss is not None for progress in record.progress):
        plain = FuncFormatter(lambda value, _: f"{value:.3g}")
        frame = Plot("loss", "Loss against time", "Mean over an epoch, as the program reported it.", lambda _: None)
        made.append(_against_time(record, frame, lambda progress: progress.loss, plain))
    return made


def final_accuracies(record: RunRecord) -> dict[str, float]:
    """By label, the last accuracy; empty if the runs have several groups, in which labels repeat."""
    if len({item.group for item in record.progress}) > 1:
        return {}
    return {item.label: item.accuracy for item in record.progress if item.accuracy is not None}


def _against_time(
    record: RunRecord, frame: Plot, value_of: Callable[[Progress], float | None], formatter: FuncFormatter
) -> Plot:
    lines: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for progress in record.progress:
        value = value_of(progress)
        if value is not None:
            lines[progress.group][progress.label].append((progress.time_s, value))
    labels = list(dict.fromkeys(label for group in lines.values() for label in group))
    columns = min(2, len(lines))
    rows = -(-len(lines) // columns)

    def draw(canvas: Canvas) -> None:
        made = canvas.axes(rows, columns, sharey=True)
        for axes, (group, runs) in zip(made, lines.items(), strict=False):
            for label, points in runs.items():
                index = labels.index(label)
                marker = MARKERS[index % len(MARKERS)] if len(points) <= MARKED_POINTS else ""
                times, values = zip(*sorted(points), strict=True)
                axes.plot(
                    times,
                    values,
                    color=canvas.palette.of(index),
                    marker=marker,
                    markersize=4,
                    linewidth=1.8,
                    label=label,
                )
            canvas.mark_events(axes, record.events)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_formatter(FuncFormatter(time_label))
            axes.yaxis.set_major_formatter(formatter)
            axes.set_title(group, loc="left")
        for axes in made[len(lines) :]:
            axes.set_visible(False)
        if set(labels) != {""}:
            canvas.legend(max(made, key=lambda axes: len(axes.get_legend_handles_labels()[1])))

    height = frame.height_in * (1.0 if rows == 1 else 0.8 * rows)
    narrow = frame.narrow_height_in * (1.0 if len(lines) == 1 else 0.8 * len(lines))
    return Plot(frame.key, frame.title, frame.caption, draw, height, narrow)
