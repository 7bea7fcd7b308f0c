"""Plots of every link's load over time, with its rate."""

from __future__ import annotations

import itertools

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from fanin.emulation.report.drawing import Canvas, Plot, rate_label
from fanin.records.record import LinkRecord, RunRecord

BITS_PER_BYTE = 8
MAX_POINTS = 240
"""Most points of a line; longer runs are averaged over neighbouring samples, which hides short bursts."""


def plots(record: RunRecord) -> list[Plot]:
    """One plot with axes for each direction; none unless some link has two samples."""
    links = [link for link in record.links if len(link.samples) > 1]
    if not links:
        return []

    def draw(canvas: Canvas) -> None:
        to_switch, from_switch = canvas.axes(1, 2, sharey=True)
        for axes, way, title in ((to_switch, "up", "to the switch"), (from_switch, "down", "from the switch")):
            for index, link in enumerate(links):
                times, rates = rates_of(link, way)
                axes.plot(times, rates, color=canvas.palette.of(index), linewidth=1.3, label=link.name)
            _limits(canvas, axes, links)
            canvas.mark_events(axes, record.events)
            axes.set_title(title, loc="left")
            axes.set_xlabel("seconds")
            axes.yaxis.set_major_formatter(FuncFormatter(rate_label))
            axes.set_ylim(bottom=0)
        if len(links) <= 8:
            canvas.legend(to_switch)

    caption = (
        "Bits per second on each worker's link, headers included, averaged between samples. Dashed: the link's rate, "
        "the physical limit. Dotted: faults and ends of processes."
    )
    return [Plot("links", "Link use over time", caption, draw, height_in=3.6, narrow_height_in=6.0)]


def rates_of(link: LinkRecord, way: str) -> tuple[list[float], list[float]]:
    """Middles of the sampling intervals in seconds, and mean bits per second in each; `way`: "up" or "down"."""
    stride = max(1, -(-len(link.samples) // MAX_POINTS))
    kept = link.samples[::stride]
    times, rates = [], []
    for before, after in itertools.pairwise(kept):
        length_s = after.time_s - before.time_s
        if length_s > 0:
            carried = getattr(after, f"{way}_bytes") - getattr(before, f"{way}_bytes")
            times.append((before.time_s + after.time_s) / 2)
            rates.append(carried * BITS_PER_BYTE / length_s)
    return times, rates


def busiest_share(record: RunRecord) -> float | None:
    """Largest share, over links with a rate, that the busier direction has used of its capacity; None without any."""
    shares = []
    for link in record.links:
        if link.rate_bit_s and len(link.samples) > 1:
            first, last = link.samples[0], link.samples[-1]
            room = link.rate_bit_s * (last.time_s - first.time_s) / BITS_PER_BYTE
            carried = max(last.up_bytes - first.up_bytes, last.down_bytes - first.down_bytes)
            shares += [carried / room] if room > 0 else []
    return max(shares, default=None)


def _limits(canvas: Canvas, axes: Axes, links: list[LinkRecord]) -> None:
    for rate in sorted({link.rate_bit_s for link in links if link.rate_bit_s is not None}):
        axes.axhline(rate, color=canvas.palette.ink, linestyle="--", linewidth=1.2)
