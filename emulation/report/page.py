"""The page around the plots: what was run, on what, how it ended, and the figures as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from fanin.emulation.record import Progress, RunRecord, Scalar
from fanin.emulation.report import learning, links, losses, measured, timeline
from fanin.emulation.report.drawing import Plot, bytes_label, rate_label, time_label
from fanin.emulation.report.palette import style_sheet

PARTS = (measured, learning, links, timeline, losses)
"""In the order of the page; each has `plots(record)`."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the page's head."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; all but the first column are numbers and stand to the right."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def plots_of(record: RunRecord) -> list[Plot]:
    """Every plot that the record has data for."""
    return [plot for part in PARTS for plot in part.plots(record)]


def render(record: RunRecord, plots: list[Plot]) -> str:
    """The page."""
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
        settings=[(name.replace("_", " "), value_label(value)) for name, value in record.settings.items()],
    )


def head_figures(record: RunRecord) -> Iterator[Figure]:
    """What a reader wants to know first."""
    yield Figure("took", time_label(record.duration_s))
    if record.workers:
        yield Figure("workers", str(len(record.workers)))
    accuracies = learning.final_accuracies(record)
    for label, accuracy in list(accuracies.items())[:3]:
        yield Figure(f"accuracy, {label}" if label else "accuracy at the end", f"{accuracy:.1%}")
    best = max((row.ratio_to_gloo for row in record.rows if row.ratio_to_gloo is not None), default=None)
    if best is not None:
        yield Figure("times as fast as gloo, at best", f"{best:.2f}")
    goodput = best_share_of_limit(record)
    if goodput is not None:
        yield Figure("of the physical limit, at best", f"{goodput:.0%}")
    share = links.busiest_share(record)
    if share is not None:
        yield Figure("use of the busiest link", f"{share:.0%}")
    resent = losses.retransmissions(record)
    if resent is not None:
        yield Figure("packets sent again", f"{resent:,.0f}")


def best_share_of_limit(record: RunRecord) -> float | None:
    """The limit's time over the measured one, of fanin's best row."""
    shares = [row.ideal_s / row.median_s for row in record.rows if row.ideal_s is not None and row.backend == "fanin"]
    return max(shares, default=None)


def tables_of(record: RunRecord) -> Iterator[Table]:
    """The figures behind the plots."""
    yield Table(
        "Measured",
        ("", "workers", "bytes", "rate", "median", "fastest", "slowest", "limit", "to gloo", "max. error", "resent"),
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
        ("", "where", "ended", "slowed down", "packets", "sent again", "round trip"),
        tuple(
            (
                f"rank {worker.rank}", worker.place, worker.outcome, f"{worker.slowdown:g}x",
                *(_or_dash(worker.counters.get(name), "{:,.0f}".format) for name in ("packets_out", "retransmissions")),
                _or_dash(worker.counters.get("srtt_us"), lambda value: time_label(value * 1e-6)),
            )
            for worker in record.workers
        ),
    )  # fmt: skip
    yield Table(
        "Links",
        ("", "rate", "delay", "loss", "MTU", "to the switch", "from the switch", "frames lost"),
        tuple(
            (
                link.name, rate_label(link.rate_bit_s), time_label(link.delay_s), f"{link.loss:.3%}", str(link.mtu),
                *(
                    (bytes_label(link.samples[-1].up_bytes), bytes_label(link.samples[-1].down_bytes),
                     f"{link.samples[-1].dropped:,}") if link.samples else ("-", "-", "-")
                ),
            )
            for link in record.links
        ),
    )  # fmt: skip
    yield Table("Switches", ("", "target", "what it said"), tuple(
        (switch.name, switch.target, switch.description) for switch in record.switches
    ))  # fmt: skip
    yield Table("Training", ("", "epoch", "step", "loss", "accuracy", "step time", "communication"), tuple(
        _progress_line(progress) for progress in last_progress(record)
    ))  # fmt: skip


def last_progress(record: RunRecord) -> list[Progress]:
    """The last report of each label."""
    return list({progress.label: progress for progress in record.progress if progress.loss is not None}.values())


def _progress_line(progress: Progress) -> tuple[str, ...]:
    return (
        progress.label or "at the end",
        _or_dash(progress.epoch, str),
        _or_dash(progress.step, str),
        _or_dash(progress.loss, "{:.4g}".format),
        _or_dash(progress.accuracy, "{:.2%}".format),
        _or_dash(progress.step_s, time_label),
        _or_dash(progress.communication_s, time_label),
    )


def value_label(value: Scalar) -> str:
    """A setting for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,g}" if isinstance(value, float) else str(value)


def _or_dash(value: Any, label: Any) -> str:
    return "-" if value is None else str(label(value))
