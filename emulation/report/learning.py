"""What the training program reported: accuracy, and loss, against time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from matplotlib.ticker import FuncFormatter

from fanin.emulation.record import Progress, RunRecord
from fanin.emulation.report.drawing import Canvas, Plot

MARKED_POINTS = 60
"""A line of at most so many points shows each of them."""


def plots(record: RunRecord) -> list[Plot]:
    """Accuracy where it was reported, then loss; a line per label (or per run, where there is only one)."""
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
    """The last accuracy of each label."""
    return {item.label: item.accuracy for item in record.progress if item.accuracy is not None}


def _against_time(
    record: RunRecord, frame: Plot, value_of: Callable[[Progress], float | None], formatter: FuncFormatter
) -> Plot:
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for progress in record.progress:
        value = value_of(progress)
        if value is not None:
            lines[progress.label].append((progress.time_s, value))

    def draw(canvas: Canvas) -> None:
        (axes,) = canvas.axes()
        for index, (label, points) in enumerate(lines.items()):
            marker = "o" if len(points) <= MARKED_POINTS else ""
            times, values = zip(*sorted(points), strict=True)
            axes.plot(
                times, values, color=canvas.palette.of(index), marker=marker, markersize=4, linewidth=1.8, label=label
            )
        canvas.mark_events(axes, record.events)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds")
        axes.yaxis.set_major_formatter(formatter)
        if set(lines) != {""}:
            canvas.legend(axes)

    return Plot(frame.key, frame.title, frame.caption, draw)
