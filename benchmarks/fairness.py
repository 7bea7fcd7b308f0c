"""`fanin bench fairness`: two jobs of two workers on one switch; what the first keeps while the second floods it.

The second job idles, sums as the first does, sends small packets from a stranger's port as fast as its links take
them, each of which the switch must look at, refuse and answer, or goes for the control port (control_flood.py). The
first job's rate while the second sums is its fair rate. Every sum is checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from fanin import files
from fanin.benchmarks.fairness_worker import COUNT, SECOND_JOBS
from fanin.emulation.announced import announced
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.network.traffic import LinkWatch
from fanin.emulation.record import Quantity, Scalar
from fanin.emulation.recording import Beginning, finished
from fanin.emulation.report import publish
from fanin.errors import ConfigurationError, FaninError

WORKERS = 4
PROMISED_SHARE = 0.8
"""Share of its fair rate that a job keeps under any load of the other."""
TARGETS = ("native", "python")


def bench(
    link: Link,
    seconds: float,
    *,
    target: str = "native",
    json_file: Path | None,
    record_file: Path | None,
    html: Path | None,
    console: Console,
    command: str,
) -> list[dict[str, Any]]:
    """Measure, print a table, write the rows, the run's record and its report. FaninError where a sum is wrong.

    `target`: the switch's engine, `native` or `python`.
    """
    if target not in TARGETS:
        raise ConfigurationError(f"target = {target!r}; expected one of {', '.join(TARGETS)}")
    beginning, rows = Beginning(), []
    with (
        Fabric(Topology(workers=WORKERS, link=link)) as fabric,
        LinkWatch(fabric, beginning.clock_s) as watch,
    ):
        for second in SECOND_JOBS:
            # A switch for each: the jobs that a flood of joins leaves forming would use up the quota of its address.
            with announced(console, f"second job: {second}"), Switches(fabric, target, fabric.folder):
                rows.append(_measure(fabric, second, seconds))
    fair = next(row["bytes_per_s"] for row in rows if row["second_job"] == "sum")
    for row in rows:
        row["of_fair_rate"] = row["bytes_per_s"] / fair
    console.print(table_of(rows))
    if json_file:
        files.write(json_file, json.dumps(rows, indent=2) + "\n", "the figures")
    most = max(row["flooded"] for row in rows)
    settings: dict[str, Scalar] = {"workers": WORKERS, "rate_bit_s": link.rate_bit_s, "mtu": link.mtu, "target": target}
    record = finished(
        beginning,
        kind="bench",
        title="Two jobs on one switch",
        command=command,
        settings={**settings, "seconds_each": seconds},
        quantities=quantities_of(rows, link),
        links=watch.links(),
        notes=(f"At most {most:,} packets, messages or connections were flooded in {seconds:g} s.",),
    )
    if record_file:
        record.write(record_file)
    publish(record, html, console)
    return rows


def table_of(rows: list[dict[str, Any]]) -> FigureTable:
    """The rows as a table for people."""
    headings = ("second job", "first job", "of its fair rate", "flooded")
    table = FigureTable("two jobs on one switch: what the first one keeps", headings)
    for row in rows:
        rate, share = f"{row['bytes_per_s'] * 8e-6:.0f} Mbit/s", f"{row['of_fair_rate']:.2f}"
        table.add(row["second_job"], rate, share, f"{row['flooded']:,}")
    return table


def quantities_of(rows: list[dict[str, Any]], link: Link) -> list[Quantity]:
    """The rows as bars: what the first job carried, and of its fair rate."""
    rate = "Gradients per second that a worker of the first job had summed, by what the second job did meanwhile."
    if link.rate_bit_s is not None:
        rate += " Dashed: the rate of its link."
    share = f"Over the rate while the second job sums as well. Dashed: {PROMISED_SHARE:.0%}, which it is to keep."
    return [
        *(
            Quantity(
                plot="What the first job carries",
                name=f"second job: {row['second_job']}",
                unit="bit/s",
                value=row["bytes_per_s"] * 8,
                limit=link.rate_bit_s,
                caption=rate,
            )
            for row in rows
        ),
        *(
            Quantity(
                plot="What the first job keeps of its fair rate",
                name=f"second job: {row['second_job']}",
                unit="share",
                value=row["of_fair_rate"],
                limit=PROMISED_SHARE,
                caption=share,
            )
            for row in rows
        ),
    ]


def _measure(fabric: Fabric, second: str, seconds: float) -> dict[str, Any]:
    arguments = ["--second-job", second, "--seconds", str(seconds)]
    with placed_job(fabric, "fanin.benchmarks.fairness_worker", arguments) as job:
        reports = [report.record for report in job.reports()]
    first = [report for report in reports if report["job"] == 0]
    if any(report["wrong"] for report in reports if "wrong" in report):
        raise FaninError(f"second job {second}: sums were wrong; please report this")
    rate = min(report["sums"] * COUNT * 4 / report["seconds"] for report in first)
    flooded = sum(report.get("flooded", 0) for report in reports)
    return {"second_job": second, "bytes_per_s": rate, "sums": first[0]["sums"], "flooded": flooded}
