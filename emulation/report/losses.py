"""Plots of losses and retransmissions."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import FuncFormatter, MaxNLocator

from fanin.emulation.report.drawing import Canvas, Plot
from fanin.records.record import RunRecord, SwitchRecord

WORKER_COUNTERS = {
    "retransmissions": "sent again",
    "gaps": "because a later result overtook it",
    "timeouts": "by timer",
}
SWITCH_COUNTERS = {"duplicates": "duplicates that came"}
DROPPED = "dropped_"
"""Prefix of the names of a switch's drop counters."""


def plots(record: RunRecord) -> list[Plot]:
    """Plots per worker, and over time by the switch's counters; counters that are missing or 0 are left out."""
    made = []
    if any(worker.counters.get(name) for worker in record.workers for name in WORKER_COUNTERS):
        made.append(_per_worker(record))
    sampled = [switch for switch in record.switches if len(switch.samples) > 1 and _counters_seen(switch)]
    if sampled:
        made.append(_over_time(record, sampled))
    return made


def retransmissions(record: RunRecord) -> float | None:
    """Packets that all workers together sent again; None if no worker and no row counts them."""
    counted = [worker.counters["retransmissions"] for worker in record.workers if "retransmissions" in worker.counters]
    counted += [float(row.retransmissions) for row in record.rows if row.retransmissions is not None]
    return sum(counted) if counted else None


def _per_worker(record: RunRecord) -> Plot:
    def draw(canvas: Canvas) -> None:
        (axes,) = canvas.axes()
        shown = [name for name in WORKER_COUNTERS if any(worker.counters.get(name) for worker in record.workers)]
        height = 0.8 / len(shown)
        for index, name in enumerate(shown):
            places = [row + (index - (len(shown) - 1) / 2) * height for row in range(len(record.workers))]
            values = [worker.counters.get(name, 0.0) for worker in record.workers]
            axes.barh(places, values, height=height * 0.9, color=canvas.palette.of(index), label=WORKER_COUNTERS[name])
        axes.set_yticks(range(len(record.workers)), [f"rank {worker.rank}" for worker in record.workers])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("packets")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        canvas.legend(axes)

    caption = "Packets that a worker sent again, and why. A link's losses are in the table of links."
    height = 1.2 + 0.42 * len(record.workers)
    return Plot("retransmissions", "Retransmissions by worker", caption, draw, height, height + 0.6)


def _over_time(record: RunRecord, switches: Sequence[SwitchRecord]) -> Plot:
    def draw(canvas: Canvas) -> None:
        (axes,) = canvas.axes()
        index = 0
        for switch in switches:
            for name in _counters_seen(switch):
                label = SWITCH_COUNTERS.get(name, f"dropped: {name.removeprefix(DROPPED).replace('_', ' ')}")
                axes.step(
                    [sample.time_s for sample in switch.samples],
                    [sample.counters.get(name, 0.0) for sample in switch.samples],
                    where="post",
                    color=canvas.palette.of(index),
                    linewidth=1.6,
                    label=label if len(switches) == 1 else f"{switch.name}, {label}",
                )
                index += 1
        canvas.mark_events(axes, record.events)
        axes.set_xlabel("seconds")
        axes.set_ylabel("packets so far")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        canvas.legend(axes, columns=3)

    caption = "As the switch counted: packets that it had already, and packets that it refused. Dotted: faults."
    return Plot("duplicates", "Duplicates and drops over time", caption, draw)


def _counters_seen(switch: SwitchRecord) -> list[str]:
    """The switch's counters of duplicates and drops that are not 0."""
    last = switch.samples[-1].counters
    duplicates = [name for name in SWITCH_COUNTERS if last.get(name)]
    return [*duplicates, *sorted(name for name, count in last.items() if name.startswith(DROPPED) and count)]
