"""Plots of a record's quantities: a plot per kind, axes per group, a bar per quantity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fanin.emulation.report.drawing import Canvas, Plot, rate_label, time_label
from fanin.records.record import Quantity, RunRecord

ROW_IN, FRAME_IN = 0.34, 0.95
"""Inches: height of a bar, and height around the bars of one group."""


def percent_label(value: float, _: object = None) -> str:
    """A share as a label: `88%`; below 10 % with two digits: `0.016%`."""
    return f"{value:.0%}" if value >= 0.1 or not value else f"{value * 100:.2g}%"


LABELS: dict[str, Callable[..., str]] = {"s": time_label, "bit/s": rate_label, "share": percent_label}
"""By unit of a quantity, the function that makes its labels."""


def plots(record: RunRecord) -> list[Plot]:
    """One plot per kind of quantity, in the order of the record."""
    kinds = list(dict.fromkeys(quantity.plot for quantity in record.quantities))
    return [
        _plot(f"quantity-{number}", [quantity for quantity in record.quantities if quantity.plot == kind])
        for number, kind in enumerate(kinds)
    ]


def _plot(key: str, quantities: list[Quantity]) -> Plot:
    groups = list(dict.fromkeys(quantity.group for quantity in quantities))
    by_group = [[quantity for quantity in quantities if quantity.group == group] for group in groups]
    names = list(dict.fromkeys(quantity.name for quantity in quantities))
    longest = max(max(quantity.value or 0.0, quantity.limit or 0.0) for quantity in quantities)

    def draw(canvas: Canvas) -> None:
        made = canvas.axes(len(groups), 1, sharex=True, height_ratios=[len(shown) + 1 for shown in by_group])
        for axes, group, shown in zip(made, groups, by_group, strict=True):
            _bars(canvas, axes, shown, names)
            axes.set_title(group, loc="left")
            axes.set_xlim(0, (longest or 1.0) * (1.3 if canvas.narrow else 1.14))  # room for the last bar's figure

    height = len(groups) * FRAME_IN + ROW_IN * len(quantities)
    return Plot(key, quantities[0].plot, quantities[0].caption, draw, height, height * 1.1)


def _bars(canvas: Canvas, axes: Axes, quantities: list[Quantity], names: list[str]) -> None:
    """Draw the bars of one group; a name has one colour in all groups, and in curves with the same order of names."""
    label = LABELS[quantities[0].unit]
    for place, quantity in enumerate(quantities):
        axes.barh(place, quantity.value or 0.0, color=canvas.palette.of(names.index(quantity.name)), height=0.62)
        if quantity.limit is not None:
            edges = [place - 0.42, place + 0.42]
            axes.plot([quantity.limit] * 2, edges, color=canvas.palette.ink, linestyle="--", linewidth=1.4)
        note = partial(axes.annotate, textcoords="offset points", verticalalignment="center", xytext=(6, 0))
        end = max(quantity.value or 0.0, quantity.limit or 0.0)
        note("none" if quantity.value is None else label(quantity.value), (end, place), color=canvas.palette.ink)
    axes.set_yticks(range(len(quantities)), [quantity.name for quantity in quantities])
    axes.set_ylim(len(quantities) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(label))
    axes.xaxis.set_major_locator(MaxNLocator(4 if canvas.narrow else 8))
    axes.grid(visible=False, axis="y")
