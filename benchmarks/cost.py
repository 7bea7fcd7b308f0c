"""`fanin bench cost`: processor time of an all-reduce per call and host, beside gloo's (root).

Hosts are namespaces whose links have no rate, with a rank and its shard each, so that processors are all that bounds a
call. Every rival takes its turn in every sample, on the same ranks; a host's time is that of its rank and of the shard
that the rank started, user and system apart. It depends less than wall time on what else the machine does. From it
follows which rate of a link one core of a host keeps busy, words and headers and all.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fanin.benchmarks.ideal import ideal_s
from fanin.benchmarks.linked_job import linked_job
from fanin.benchmarks.rivals import Rival
from fanin.emulation.announced import announced, reports_of
from fanin.emulation.dataclass_files import write_rows
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.errors import ConfigurationError, FaninError

WORKER = "fanin.benchmarks.cost_worker"
FLOAT_BYTES = 4
MAX_HOSTS = 32
MAX_CALLS = 20
"""Most calls of a sample, which sums in place: values grow by the number of hosts with each call."""
PLACE = SwitchPlace.parse("hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a measurement of processor time."""

    hosts: tuple[int, ...]
    """Numbers of hosts, 2..32 each, with one rank and a shard on every host."""
    mtus: tuple[int, ...]
    bytes: int
    """Bytes of float32 per rank; a multiple of 4."""
    lanes: tuple[int | str, ...]
    untagged: tuple[int | str, ...] = ()
    """Lane widths that are measured without tags (`authenticate=False`) as well."""
    siphash: tuple[int | str, ...] = ()
    """Lane widths that are measured with tags of SipHash (`tag="siphash"`) as well."""
    samples: int = 5
    calls: int = 10
    """Number of calls of a sample, 1..20."""

    def __post_init__(self) -> None:
        if not self.hosts or not all(2 <= hosts <= MAX_HOSTS for hosts in self.hosts):
            raise ConfigurationError(f"hosts = {self.hosts}; must be in 2..{MAX_HOSTS}")
        if self.bytes <= 0 or self.bytes % FLOAT_BYTES:
            raise ConfigurationError(f"bytes = {self.bytes}; must be a positive multiple of {FLOAT_BYTES}")
        if not self.mtus:
            raise ConfigurationError("mtu: name one, such as 1500")
        for rival in self.rivals:
            if rival.backend == "fanin":
                rival.options(rank=0, environment={})

    @property
    def rivals(self) -> list[Rival]:
        """gloo, and fanin with each of the lanes."""
        tagged = [Rival("fanin", lanes) for lanes in self.lanes]
        tagged += [Rival("fanin", lanes, siphash=True) for lanes in self.siphash]
        return [Rival("gloo"), *tagged, *(Rival("fanin", lanes, tags=False) for lanes in self.untagged)]


@dataclass(frozen=True, slots=True)
class Row:
    """One rival's figures, as in the JSON file: medians of samples, each the mean of the hosts."""

    rival: str
    hosts: int
    mtu: int
    bytes: int
    user_s: float
    """User time per call and host; the next two are per call and host as well."""
    system_s: float
    processor_s: float
    """User and system together."""
    of_gloo: float
    """This one's processor time / gloo's, the median of samples."""
    wall_s: float
    """Elapsed time per call."""
    bytes_per_core_s: float
    """Bytes of float32 that one core of a host sums in a second."""
    link_bit_s_per_core: float
    """Rate of a host's link that one core of the host keeps busy, in the link's busier direction."""
    max_error: float


def bench(plan: Plan, *, json_file: Path | None, console: Console) -> list[Row]:
    """Measure, check, print a table; write a JSON list of rows. FaninError where a result is wrong."""
    rows: list[Row] = []
    for hosts in plan.hosts:
        for mtu in plan.mtus:
            with announced(console, f"{hosts} hosts, MTU {mtu}, {plan.bytes:,} bytes") as tell, ExitStack() as stack:
                arguments = ["--rivals", ",".join(rival.label for rival in plan.rivals), "--bytes", str(plan.bytes)]
                arguments += ["--samples", str(plan.samples), "--calls", str(plan.calls)]
                job = linked_job(stack, hosts, Link(mtu=mtu), WORKER, arguments, switch_at=PLACE)
                stack.enter_context(job)
                reports = {report.record["rival"]: report.record["ranks"] for report in reports_of(job, tell)}
            rows += [_row(plan, rival, hosts, mtu, reports) for rival in plan.rivals]
    console.print(table_of(plan, rows))
    if json_file:
        write_rows(json_file, rows)
    return rows


def _row(plan: Plan, rival: Rival, hosts: int, mtu: int, reports: dict[str, list[dict[str, Any]]]) -> Row:
    of_rival, of_gloo = reports[rival.label], reports["gloo"]
    max_error = max(rank["max_error"] for rank in of_rival)
    tolerated = rival.tolerated_error(hosts)
    if not max_error <= tolerated:
        raise FaninError(f"{rival.label}: an error of {max_error:.3g} where at most {tolerated:.3g} is explained")
    samples, gloo = _means(of_rival), _means(of_gloo)
    user_s, system_s, wall_s = (statistics.median(values) for values in zip(*samples, strict=True))
    processor_s = statistics.median(user + system for user, system, _ in samples)
    ratios = [sum(own[:2]) / sum(other[:2]) for own, other in zip(samples, gloo, strict=True)]
    return Row(
        rival=rival.label,
        hosts=hosts,
        mtu=mtu,
        bytes=plan.bytes,
        user_s=user_s,
        system_s=system_s,
        processor_s=processor_s,
        of_gloo=statistics.median(ratios),
        wall_s=wall_s,
        bytes_per_core_s=plan.bytes / processor_s,
        link_bit_s_per_core=link_bits(rival, hosts, mtu, plan.bytes) / processor_s,
        max_error=max_error,
    )


def _means(ranks: list[dict[str, Any]]) -> list[tuple[float, ...]]:
    """Means over the hosts, for each sample: user, system and wall seconds per call."""
    by_sample = zip(*(rank["samples"] for rank in ranks), strict=True)
    return [tuple(map(statistics.fmean, zip(*sample, strict=True))) for sample in by_sample]


def link_bits(rival: Rival, hosts: int, mtu: int, size: int) -> float:
    """Number of bits that a host's link carries for a call, in its busier direction."""
    link = Link(mtu=mtu, rate_bit_s=1e9)
    busy_s = ideal_s(Topology(workers=hosts, link=link, switch_at=PLACE), rival, size)
    assert busy_s is not None
    return busy_s * 1e9


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """Format the rows as a table for the console."""
    headings = ("backend", "user ms", "system", "both", "of gloo's", "call ms", "GB/s a core", "Gbit/s a core")
    table = FigureTable(f"processor time of an all-reduce of {plan.bytes:,} bytes per call and host", headings)
    place = None
    for row in rows:
        if place != (place := (row.hosts, row.mtu)):
            table.add_section(f"{row.hosts} hosts, MTU {row.mtu}")
        times = (row.user_s, row.system_s, row.processor_s)
        table.add(
            row.rival,
            *(milliseconds(value, 3) for value in times),
            f"{row.of_gloo:.2f}",
            milliseconds(row.wall_s, 3),
            f"{row.bytes_per_core_s / 1e9:.2f}",
            f"{row.link_bit_s_per_core / 1e9:.2f}",
        )
    table.caption = (
        f"medians of {plan.samples} samples of {plan.calls} calls, interleaved; a host: its rank and its shard; GB/s: "
        "float32 summed; Gbit/s: of a link, each way; -open: without tags"
    )
    return table
