"""The page around the plots: command, machine, outcome, and the figures as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from markupsafe import Markup

from fanin.emulation.report import learning, link_plots, losses, measured, quantities, timeline
from fanin.emulation.report.comparing import verdict
from fanin.emulation.report.drawing import Plot, bytes_label, rate_label, time_label
from fanin.emulation.report.palette import style_sheet
from fanin.emulation.report.steady import median_step_s
from fanin.emulation.report.story import story
from fanin.records.record import Progress, RunRecord, Scalar

PARTS = (measured, quantities, learning, link_plots, timeline, losses)
"""Modules of plots in the order of the page; each has `plots(record)`."""

MAX_OPEN_LINES = 16
"""Most lines of a table that is shown unfolded: the plots show the same figures."""
MISSING = "–"
KINDS = {
    "emulate": "emulated cluster",
    "bench": "benchmark",
    "compose": "containers",
    "demo": "demo",
    "job": "job",
    "comparison": "two runs",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure at the top of the page, with its name."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; the first cell of a line names it. Columns of numbers are right-aligned."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    @property
    def key(self) -> str:
        """Id of the element on the page."""
        return f"table-{self.title.lower().replace(' ', '-')}"

    @property
    def numeric(self) -> tuple[bool, ...]:
        """By column: whether every cell is a number, with or without a unit, or MISSING."""
        columns = zip(*self.lines, strict=True)
        return tuple(all(cell == MISSING or cell[:1].isdigit() for cell in column) for column in columns)

    @property
    def long(self) -> bool:
        """Whether the table is folded until the reader opens it."""
        return len(self.lines) > MAX_OPEN_LINES


def plots_of(record: RunRecord) -> list[Plot]:
    """Every plot that the record has data for."""
    return [plot for part in PARTS for plot in part.plots(record)]


def render(record: RunRecord, plots: list[Plot]) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fanin.emulation.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    drawn = [(plot, Markup(plot.svg(narrow=False)), Markup(plot.svg(narrow=True))) for plot in plots]
    return environment.get_template("page.html").render(
        record=record,
        colours=Markup(style_sheet()),
        figures=list(head_figures(record)),
        plots=drawn,
        tables=[table for table in tables_of(record) if table.lines],
        story=verdict(record) if record.kind == "comparison" else story(record),
        settings=[setting_label(name, value) for name, value in record.settings.items()],
        started=moment_label(record.started),
        kind=KINDS[record.kind],
    )


def head_figures(record: RunRecord) -> Iterator[Figure]:
    """Yield the figures at the top of the page."""
    if record.kind != "comparison":
        yield Figure("took", time_label(record.duration_s))
    if record.workers:
        yield Figure("workers", str(len(record.workers)))
    if (step_s := median_step_s(record)) is not None:
        yield Figure("median step", time_label(step_s))
    accuracies = learning.final_accuracies(record)
    for label, accuracy in list(accuracies.items())[:3]:
        yield Figure(f"accuracy, {label}" if label else "accuracy at the end", f"{accuracy:.1%}")
    best = max((row.ratio_to_gloo for row in record.rows if row.ratio_to_gloo is not None), default=None)
    if best is not None:
        yield Figure("times as fast as gloo, at best", f"{best:.2f}")
    goodput = best_share_of_limit(record)
    if goodput is not None:
        yield Figure("of the physical limit, at best", f"{goodput:.0%}")
    share = link_plots.busiest_share(record)
    if share is not None:
        yield Figure("use of the busiest link", f"{share:.0%}")
    resent = losses.retransmissions(record)
    if resent is not None:
        yield Figure("packets sent again", f"{resent:,.0f}")


def best_share_of_limit(record: RunRecord) -> float | None:
    """Largest share, over fanin's rows, of the physical limit's time in the measured time; None without limits."""
    shares = [row.ideal_s / row.median_s for row in record.rows if row.ideal_s is not None and row.backend == "fanin"]
    return max(shares, default=None)


def tables_of(record: RunRecord) -> Iterator[Table]:
    """The tables of the page; their lines are empty where the record lacks the figures."""
    yield Table(
        "Measured",
        ("backend", "workers", "bytes", "rate", "median", "fastest", "slowest", "limit", "to gloo", "max. error",
         "resent"),
        tuple(
            (
                measured.name_of(row) + (", whole step" if row.measures == "step" else ""), str(row.workers),
                bytes_label(row.bytes), rate_label(row.rate_bit_s), time_label(row.median_s),
                time_label(row.fastest_s), time_label(row.slowest_s), _or_dash(row.ideal_s, time_label),
                _or_dash(row.ratio_to_gloo, "{:.2f}".format), _or_dash(row.max_error, "{:.1e}".format),
                _or_dash(row.retransmissions, "{:,}".format),
            )
            for row in record.rows
        ),
    )  # fmt: skip
    yield Table(
        "Workers",
        ("worker", "where", "ended", "slowed down", "packets", "sent again", "round trip"),
        tuple(
            (
                f"rank {worker.rank}",
                worker.place,
                worker.outcome,
                f"{worker.slowdown:g}x",
                *(_or_dash(worker.counters.get(name), "{:,.0f}".format) for name in ("packets_out", "retransmissions")),
                _or_dash(worker.counters.get("srtt_us"), lambda value: time_label(value * 1e-6)),
            )
            for worker in record.workers
        ),
    )
    yield Table(
        "Links",
        ("link", "rate", "delay", "loss", "MTU", "to the switch", "from the switch", "frames lost"),
        tuple(
            (
                link.name,
                rate_label(link.rate_bit_s),
                time_label(link.delay_s),
                f"{link.loss:.3%}",
                str(link.mtu),
                *(
                    (
                        bytes_label(link.samples[-1].up_bytes),
                        bytes_label(link.samples[-1].down_bytes),
                        f"{link.samples[-1].dropped:,}",
                    )
                    if link.samples
                    else (MISSING,) * 3
                ),
            )
            for link in record.links
        ),
    )
    yield Table(
        "Switches",
        ("switch", "target", "what it said"),
        tuple((switch.name, switch.target, switch.description) for switch in record.switches),
    )
    yield Table(
        "Training",
        ("run", "epoch", "step", "loss", "accuracy", "step time", "communication"),
        tuple(_progress_line(progress) for progress in last_progress(record)),
    )


def last_progress(record: RunRecord) -> list[Progress]:
    """The last progress with a loss of each run, by group and label."""
    return list({(each.group, each.label): each for each in record.progress if each.loss is not None}.values())


def _progress_line(progress: Progress) -> tuple[str, ...]:
    return (
        ", ".join(filter(None, (progress.group, progress.label))) or "at the end",
        _or_dash(progress.epoch, str),
        _or_dash(progress.step, str),
        _or_dash(progress.loss, "{:.4g}".format),
        _or_dash(progress.accuracy, "{:.2%}".format),
        _or_dash(progress.step_s, time_label),
        _or_dash(progress.communication_s, time_label),
    )


def setting_label(name: str, value: Scalar) -> tuple[str, str]:
    """Name and value of a setting for people; a unit moves from the name to the value."""
    for suffix, label in (("_bit_s", rate_label), ("_ms", lambda ms: time_label(ms * 1e-3)), ("_s", time_label)):
        if name.endswith(suffix) and isinstance(value, int | float) and not isinstance(value, bool):
            return name.removesuffix(suffix).replace("_", " "), label(value)
    if name == "bytes" and isinstance(value, int):
        return name, bytes_label(value)
    if value is None:
        return name.replace("_", " "), MISSING
    if isinstance(value, bool):
        return name.replace("_", " "), "yes" if value else "no"
    return name.replace("_", " "), f"{value:,g}" if isinstance(value, float) else str(value)


def moment_label(text: str) -> str:
    """Format an ISO 8601 time as `21 November 2026, 12:00 UTC`; any other text is returned as it is."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    return f"{moment.day} {moment:%B %Y, %H:%M} {'UTC' if not moment.utcoffset() else f'{moment:%z}'}"


def _or_dash(value: Any, label: Any) -> str:
    return MISSING if value is None else str(label(value))
