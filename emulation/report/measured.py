"""Benchmark rows as plots: time against size, or against the number of workers, with the physical limit drawn in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from fanin.emulation.report.drawing import Canvas, Plot, bytes_label, rate_label, time_label
from fanin.records.record import Row, RunRecord

MARKERS = "osD^vPX*"
LIMIT_NOTE = (
    "Dashed: the physical limit, the time that the links need for the bytes with all headers. Bars: fastest to slowest."
)


def plots(record: RunRecord) -> list[Plot]:
    """A plot of all-reduces per link rate, and one of training steps; none for a run without rows."""
    made = []
    reductions: dict[float | None, list[Row]] = defaultdict(list)
    for row in record.rows:
        if row.measures == "allreduce":
            reductions[row.rate_bit_s].append(row)
    for number, (rate, rows) in enumerate(reductions.items()):
        made.append(_reduction_plot(f"allreduce-{number}" if number else "allreduce", rate, rows))
    steps = [row for row in record.rows if row.measures == "step"]
    if steps:
        made.append(_bars(Plot("steps", "A whole training step", _step_caption(), lambda _: None), steps))
    return made


def name_of(row: Row) -> str:
    """Name of a row in plots, such as `fanin, 16-bit`; rivals, which send floats, have no bits in it."""
    return f"{row.backend}, {row.lanes}-bit" if row.backend.startswith("fanin") else row.backend


def _step_caption() -> str:
    return "Median time of an optimizer step, forward and backward pass included. Bars: fastest to slowest."


def _reduction_plot(key: str, rate: float | None, rows: list[Row]) -> Plot:
    at = f"links of {rate_label(rate)}" if rate is not None else "links without a limit"
    sizes, counts = {row.bytes for row in rows}, {row.workers for row in rows}
    if len(sizes) > 1:
        frame = Plot(key, f"All-reduce: time against size, {at}", LIMIT_NOTE, lambda _: None)
        return _lines(frame, rows, lambda row: row.bytes, lambda row: row.workers, "float32 per worker", "workers")
    size = bytes_label(next(iter(sizes)))
    if len(counts) > 1:
        frame = Plot(key, f"All-reduce of {size}: time against workers, {at}", LIMIT_NOTE, lambda _: None)
        return _lines(frame, rows, lambda row: row.workers, lambda row: row.bytes, "workers", "")
    return _bars(Plot(key, f"All-reduce of {size}, {at}", LIMIT_NOTE, lambda _: None), rows)


def _lines(
    frame: Plot, rows: Sequence[Row], x: Callable[[Row], int], facet: Callable[[Row], int], x_name: str, facet_name: str
) -> Plot:
    facets = sorted({facet(row) for row in rows})
    names = list(dict.fromkeys(name_of(row) for row in rows))

    def draw(canvas: Canvas) -> None:
        made = canvas.axes(1, len(facets), sharey=True)
        for axes, value in zip(made, facets, strict=True):
            for index, name in enumerate(names):
                series = sorted((row for row in rows if facet(row) == value and name_of(row) == name), key=x)
                _series(canvas, axes, index, name, series, x)
            _scale(axes, sorted({x(row) for row in rows}), x_name)
            if facet_name and len(facets) > 1:
                axes.set_title(f"{value} {facet_name}", loc="left")
        canvas.legend(made[0])

    tall = 3.6 * len(facets)
    return Plot(frame.key, frame.title, frame.caption, draw, height_in=3.8, narrow_height_in=tall)


def _series(canvas: Canvas, axes: Axes, index: int, name: str, rows: list[Row], x: Callable[[Row], int]) -> None:
    colour = canvas.palette.of(index)
    places, medians = [x(row) for row in rows], [row.median_s for row in rows]
    spread = [
        [row.median_s - row.fastest_s for row in rows],
        [row.slowest_s - row.median_s for row in rows],
    ]
    axes.errorbar(
        places,
        medians,
        yerr=spread,
        color=colour,
        marker=MARKERS[index % len(MARKERS)],
        markersize=5,
        linewidth=1.8,
        elinewidth=1.0,
        label=name,
    )
    limits = [(x(row), row.ideal_s) for row in rows if row.ideal_s is not None]
    if limits:
        axes.plot(*zip(*limits, strict=True), color=colour, linestyle="--", linewidth=1.2)


def _scale(axes: Axes, places: list[int], x_name: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(time_label))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(places, [bytes_label(place) if x_name != "workers" else str(place) for place in places])
    axes.tick_params(axis="x", rotation=0 if len(places) < 7 else 45)
    axes.set_xlabel(x_name)


def _bars(frame: Plot, rows: Sequence[Row]) -> Plot:
    """Bars of the rows in their order, in axes per number of workers and rate, each with its limit as a line across."""
    facets = list(dict.fromkeys((row.workers, row.rate_bit_s) for row in rows))
    longest = max(sum(1 for row in rows if (row.workers, row.rate_bit_s) == facet) for facet in facets)

    def draw(canvas: Canvas) -> None:
        for axes, facet in zip(canvas.axes(len(facets), 1), facets, strict=True):
            shown = [row for row in rows if (row.workers, row.rate_bit_s) == facet][::-1]
            _bar_group(canvas, axes, shown)
            workers, rate = facet
            axes.set_title(f"{workers} workers, {rate_label(rate)}", loc="left")

    tall = len(facets) * (0.9 + 0.34 * longest)
    return Plot(frame.key, frame.title, frame.caption, draw, height_in=tall, narrow_height_in=tall * 1.15)


def _bar_group(canvas: Canvas, axes: Axes, rows: list[Row]) -> None:
    for place, row in enumerate(rows):
        axes.barh(
            place, row.median_s, color=canvas.palette.of(0 if row.backend.startswith("fanin") else 1), height=0.62
        )
        axes.plot([row.fastest_s, row.slowest_s], [place, place], color=canvas.palette.ink, linewidth=1.0)
        if row.ideal_s is not None:
            edges = [place - 0.42, place + 0.42]
            axes.plot([row.ideal_s, row.ideal_s], edges, color=canvas.palette.ink, linestyle="--", linewidth=1.4)
        axes.annotate(
            time_label(row.median_s),
            (row.slowest_s, place),
            xytext=(6, 0),
            textcoords="offset points",
            verticalalignment="center",
            color=canvas.palette.ink,
        )
    axes.set_yticks(range(len(rows)), [name_of(row) for row in rows])
    axes.xaxis.set_major_formatter(FuncFormatter(time_label))
    axes.margins(x=0.14)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
