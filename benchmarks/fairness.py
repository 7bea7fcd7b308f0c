"""`fanin bench fairness`: two jobs of two workers on one switch; what the first keeps while the second floods it.

The second job idles; or sums as the first does; or sends small packets from a stranger's port as fast as its links
allow, each of which the switch must examine, refuse and answer; or attacks the control port (control_flood.py). The
first job's rate while the second sums is its fair rate. Every sum is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fanin.benchmarks.control_flood import FLOODS
from fanin.benchmarks.harness import Output, reports_of_job, table
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.network.units import Rate
from fanin.errors import FaninError
from fanin.records.record import Quantity
from fanin.settings import Bounds, Named, OneOf, check_bounds, words_of

if TYPE_CHECKING:
    from fanin.emulation.network.fabric import Fabric

WORKERS = 4
PROMISED_SHARE = 0.8
"""Least share of its fair rate that a job must keep under any load by another."""
COUNT = 1 << 18
"""int32 elements of a sum, which are exact, so that every sum can be checked."""
SECOND_JOBS = ("idle", "sum", "packets", *FLOODS)
"""Activities of the second job while the first sums; from the third on, they flood the switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    rate_bit_s: Annotated[Rate, Named("rate")] = 1e8
    """Rate of every link, each way: 100mbit, 1gbit, none."""
    seconds: Annotated[float, Bounds(0.5, 3600)] = 5.0
    """Seconds of summing, for each row."""
    target: Annotated[str, OneOf("native", "python")] = "native"
    """The switch's engine: native or python."""

    def __post_init__(self) -> None:
        check_bounds(self)
        _ = self.link

    @property
    def link(self) -> Link:
        """Link of every host."""
        return Link(rate_bit_s=self.rate_bit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a process (fairness_worker.py)."""

    second_job: Annotated[str, OneOf(*SECOND_JOBS)]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures of the first job during one activity of the second."""

    second_job: str
    bytes_per_s: float
    """Bytes of gradients that each worker summed per second."""
    sums: int
    flooded: int
    """Number of packets, messages or connections of the second job."""
    of_fair_rate: float


def bench(plan: Plan, output: Output) -> list[Row]:
    """Measure, print a table, write rows, record and page. FaninError if a sum is wrong."""
    from fanin.emulation.network.fabric import Fabric
    from fanin.emulation.network.switches import Switches
    from fanin.emulation.network.traffic import LinkWatch

    link, found = plan.link, []
    with (
        Fabric(Topology(workers=WORKERS, link=link)) as fabric,
        LinkWatch(fabric, output.began.clock_s) as watch,
    ):
        for second in SECOND_JOBS:
            # A new switch for each: jobs that a flood of joins leaves forming would use up their address's quota.
            with Switches(fabric, plan.target, fabric.folder):
                found.append(_measure(plan, fabric, Asked(second_job=second, seconds=plan.seconds), output))
    fair = next(bytes_per_s for second, bytes_per_s, _, _ in found if second == "sum")
    rows = [
        Row(second_job=second, bytes_per_s=rate, sums=sums, flooded=flooded, of_fair_rate=rate / fair)
        for second, rate, sums, flooded in found
    ]
    output.show(rows, table_of(rows))
    most = max(row.flooded for row in rows)
    output.publish(
        "Two jobs on one switch",
        {
            "workers": WORKERS,
            "rate_bit_s": link.rate_bit_s,
            "mtu": link.mtu,
            "target": plan.target,
            "seconds_each": plan.seconds,
        },
        quantities=quantities_of(rows, link),
        links=watch.links(),
        notes=(f"At most {most:,} packets, messages or connections were flooded in {plan.seconds:g} s.",),
    )
    return rows


def _measure(plan: Plan, fabric: Fabric, asked: Asked, output: Output) -> tuple[str, float, int, int]:
    """Run both jobs once; returns the second one's activity, the first one's bytes/s and sums, and the flood's size."""
    from fanin.emulation.network.placed_job import placed_job

    job = placed_job(fabric, "fanin.benchmarks.fairness_worker", words_of(asked))
    found = list(reports_of_job(output, f"second job: {asked.second_job}", job))
    if any(report.get("wrong") for report in found):
        raise FaninError(f"second job {asked.second_job}: sums were wrong. Remedy: please report this")
    first = [report for report in found if report["job"] == 0]
    rate = min(report["sums"] * COUNT * 4 / report["seconds"] for report in first)
    return asked.second_job, rate, first[0]["sums"], sum(report.get("flooded", 0) for report in found)


def table_of(rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""
    return table(
        "two jobs on one switch: what the first one keeps",
        rows,
        [
            ("second job", "second_job"),
            ("first job", lambda row: f"{row.bytes_per_s * 8e-6:.0f} Mbit/s"),
            ("of its fair rate", "of_fair_rate:.2f"),
            ("flooded", "flooded:,"),
        ],
    )


def quantities_of(rows: Sequence[Row], link: Link) -> list[Quantity]:
    """The rows as bars: the first job's rate, and that rate as a share of its fair rate."""
    rate = "Gradients per second that a worker of the first job had summed, by what the second job did meanwhile."
    if link.rate_bit_s is not None:
        rate += " Dashed: the rate of its link."
    share = f"Over the rate while the second job sums as well. Dashed: {PROMISED_SHARE:.0%}, which it is to keep."
    names = [f"second job: {row.second_job}" for row in rows]
    carried = [
        Quantity(
            plot="What the first job carries",
            name=name,
            unit="bit/s",
            value=row.bytes_per_s * 8,
            limit=link.rate_bit_s,
            caption=rate,
        )
        for name, row in zip(names, rows, strict=True)
    ]
    kept = [
        Quantity(
            plot="What the first job keeps of its fair rate",
            name=name,
            unit="share",
            value=row.of_fair_rate,
            limit=PROMISED_SHARE,
            caption=share,
        )
        for name, row in zip(names, rows, strict=True)
    ]
    return carried + kept
