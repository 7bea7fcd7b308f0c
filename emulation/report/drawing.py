"""A plot, drawn three times: wide and narrow as SVG for the page, and as PNG for use elsewhere.

The narrow one is for phones: less width, letters of the same size.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from fanin import files
from fanin.emulation.report.palette import LIGHT, NAMES, Palette, with_variables
from fanin.errors import ConfigurationError
from fanin.records.record import Event

WIDE_IN, NARROW_IN = 10.0, 4.7
PNG_DPI = 130
MAX_EVENTS_SHOWN = 12
"""Most vertical lines in a plot; the list of events on the page has all events."""
NO_TIME_STAMP = {"Date": None, "Creator": None}
"""Suppresses matplotlib's date and version: a report depends on its record alone."""
UNWANTED = re.compile(r'<metadata>.*?</metadata>|(?<=<g) id="[^"]*"', re.DOTALL)
"""Parts of matplotlib's SVG to remove: its author, and unused ids of groups, which would repeat on the page."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """The axes and the palette of one plot."""

    figure: Figure
    palette: Palette
    narrow: bool

    def axes(self, rows: int = 1, columns: int = 1, **options: object) -> list[Axes]:
        """Make axes in the page's style, returned row by row; a narrow canvas has them all in one column."""
        if self.narrow:
            rows, columns = rows * columns, 1
        made = self.figure.subplots(rows, columns, squeeze=False, **options)  # type: ignore[call-overload]
        found: list[Axes] = list(made.flat)
        for axes in found:
            self._style(axes)
        return found

    def legend(self, axes: Axes, columns: int = 6) -> None:
        """Put a legend above all axes, where it hides nothing."""
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            self.figure.legend(
                handles,
                labels,
                loc="outside upper left",
                frameon=False,
                borderaxespad=0.1,
                handlelength=1.6,
                columnspacing=1.4,
                ncols=min(len(labels), 2 if self.narrow else columns),
                labelcolor=self.palette.ink,
            )

    def mark_events(self, axes: Axes, events: tuple[Event, ...]) -> None:
        """Draw a vertical line where a fault was injected or a process ended."""
        for event in [event for event in events if event.kind != "note"][:MAX_EVENTS_SHOWN]:
            axes.axvline(event.time_s, color=self.palette.bad, linewidth=1.0, linestyle=":")

    def _style(self, axes: Axes) -> None:
        palette = self.palette
        axes.set_facecolor("none")
        axes.tick_params(colors=palette.muted, which="both", length=0)
        axes.xaxis.label.set_color(palette.muted)
        axes.yaxis.label.set_color(palette.muted)
        axes.title.set_color(palette.ink)
        axes.grid(visible=True, color=palette.grid, linewidth=0.7)
        axes.set_axisbelow(True)
        for name, spine in axes.spines.items():
            spine.set_visible(name == "bottom")
            spine.set_color(palette.grid)


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of a part of a record."""

    key: str
    """Name of the file and of the element on the page: letters and hyphens."""
    title: str
    caption: str
    """Text below the plot: how to read it, and what it does not show."""
    draw: Callable[[Canvas], None]
    height_in: float = 3.4
    narrow_height_in: float = 3.6
    width_in: float = WIDE_IN
    """Width of the wide version, in inches, as the heights."""

    def svg(self, *, narrow: bool) -> str:
        """The plot as an `svg` element with the page's CSS variables as colours and its letters."""
        out = io.StringIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"{self.key}-{narrow}"}):
            figure = self._figure(NAMES, narrow=narrow)
            figure.savefig(out, format="svg", metadata=NO_TIME_STAMP, transparent=True)
        text = UNWANTED.sub("", out.getvalue())
        return with_variables(text[text.index("<svg") :])

    def png(self) -> bytes:
        """The wide version as PNG, in the colours for paper."""
        return self._drawn("png", metadata={"Software": None})

    def save(self, path: Path) -> None:
        """Write the wide version, in the colours for paper, in the format of `format_of`; what files.write raises."""
        files.write_bytes(path, self._drawn(format_of(path)), "the plot")

    def _drawn(self, form: str, **options: Any) -> bytes:
        out = io.BytesIO()
        self._figure(LIGHT, narrow=False).savefig(out, format=form, dpi=PNG_DPI, facecolor=LIGHT.paper, **options)
        return out.getvalue()

    def _figure(self, palette: Palette, *, narrow: bool) -> Figure:
        size = (NARROW_IN, self.narrow_height_in) if narrow else (self.width_in, self.height_in)
        letters = 10.5 if narrow else 9.5
        with mpl.rc_context({"font.size": letters, "axes.titlesize": letters, "text.color": palette.ink}):
            figure = Figure(figsize=size, layout="constrained")
            self.draw(Canvas(figure, palette, narrow))
            figure.draw_without_rendering()
        return figure


def format_of(path: Path) -> str:
    """Format that a plot's file has by its suffix, PNG without one. ConfigurationError where none has this suffix."""
    form = path.suffix[1:].lower() or "png"
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if form not in known:
        raise ConfigurationError(
            f"{files.name(path)}: no plot has the suffix {path.suffix}. Remedy: one of {', '.join(known)}"
        )
    return form


def bytes_label(value: float, _: object = None) -> str:
    """A number of bytes as a label: `25 MiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:g} {unit}" if value % size == 0 else f"{value / size:.1f} {unit}"
    return f"{value:g} B"


def time_label(value_s: float, _: object = None) -> str:
    """A time as a label: `1.5 ms`."""
    if abs(value_s) >= 1000:
        return f"{value_s:,.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value_s) >= size * 0.9999:
            return f"{value_s / size:.3g} {unit}"
    return f"{value_s * 1e6:.2g} µs" if value_s else "0"


def rate_label(value_bit_s: float | None, _: object = None) -> str:
    """A rate as a label: `100 Mbit/s`."""
    if value_bit_s is None:
        return "no limit"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if value_bit_s >= size:
            return f"{value_bit_s / size:.3g} {unit}"
    return f"{value_bit_s:g} bit/s"
