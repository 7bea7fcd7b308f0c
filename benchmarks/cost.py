"""`fanin bench cost`: processor time of an all-reduce per call and host, beside gloo's (root).

Hosts are namespaces whose links have no rate, with a rank and its shard each, so that processors are the only limit.
Every rival takes its turn in every sample, on the same ranks. A host's time is that of its rank and of the shard that
the rank started, user and system separately; it depends less than wall time on other load of the machine. It shows
which rate of a link one core of a host keeps busy, headers included.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fanin.benchmarks.harness import Output, Report, explained_error, reports, table
from fanin.benchmarks.ideal import ideal_s
from fanin.benchmarks.rivals import MAX_BYTES, MAX_SAMPLES, Rival, Rivals, check_bytes, check_rivals
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.errors import ConfigurationError
from fanin.settings import Bounds, Lanes, Named, Numbers, check_bounds

WORKER = "fanin.benchmarks.cost_worker"
MAX_CALLS = 20
"""Most calls of a sample, because it sums in place and so multiplies values by the number of hosts with each call."""
PLACE = SwitchPlace.parse("hosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    hosts: Annotated[Numbers, Bounds(2, 32)] = (2,)
    """Namespaces with a rank and a shard each; several numbers separated by commas."""
    mtus: Annotated[Numbers, Named("mtu")] = (1500,)
    """MTU of every link, several separated by commas."""
    bytes: Annotated[int, Bounds(4, MAX_BYTES)] = 26_214_400
    """Bytes of float32 per rank."""
    lanes: Lanes = (32, 16, 8, "8/8")
    """fanin's lane widths, separated by commas."""
    untagged: Lanes = (8,)
    """Lane widths to measure with authenticate=False as well, separated by commas."""
    siphash: Lanes = ()
    """Lane widths to measure with FANIN_TAG=siphash as well, separated by commas."""
    samples: Annotated[int, Bounds(1, MAX_SAMPLES)] = 5
    """Samples of every rival, in turn."""
    calls: Annotated[int, Bounds(1, MAX_CALLS)] = 10
    """Calls of a sample."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_bytes(self.bytes)
        for name, given, example in (("hosts", self.hosts, 2), ("mtu", self.mtus, 1500)):
            if not given:
                raise ConfigurationError(f"{name} = ''. Remedy: name one, such as {example}")
        check_rivals(self.rivals[1:], ("gloo",))

    @property
    def rivals(self) -> list[Rival]:
        """gloo, and fanin with each of the lane widths."""
        tagged = [Rival("fanin", lanes) for lanes in self.lanes]
        tagged += [Rival("fanin", lanes, siphash=True) for lanes in self.siphash]
        return [Rival("gloo"), *tagged, *(Rival("fanin", lanes, tags=False) for lanes in self.untagged)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (cost_worker.py)."""

    rivals: Rivals
    bytes: int
    samples: int
    calls: int


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
    """User and system time together."""
    of_gloo: float
    """This one's processor time over gloo's, median of samples."""
    wall_s: float
    """Elapsed time per call."""
    bytes_per_core_s: float
    """Bytes of float32 that one core of a host sums per second."""
    link_bit_s_per_core: float
    """Rate of a host's link that one core of the host keeps busy, in the link's busier direction."""
    max_error: float


def bench(plan: Plan, output: Output) -> list[Row]:
    """Measure, check, print a table; write the rows. FaninError if a result is wrong."""
    asked = Asked(rivals=tuple(plan.rivals), bytes=plan.bytes, samples=plan.samples, calls=plan.calls)
    rows: list[Row] = []
    for hosts, mtu in itertools.product(plan.hosts, plan.mtus):
        words = f"{hosts} hosts, MTU {mtu}, {plan.bytes:,} bytes"
        found = reports(output, words, hosts, WORKER, asked, link=Link(mtu=mtu), switch_at=PLACE)
        ranks = {report["rival"]: report["ranks"] for report in found}
        rows += [_row(plan, rival, hosts, mtu, ranks) for rival in plan.rivals]
    output.show(rows, table_of(plan, rows))
    return rows


def _row(plan: Plan, rival: Rival, hosts: int, mtu: int, ranks: dict[str, list[Report]]) -> Row:
    samples, gloo = _means(ranks[rival.label]), _means(ranks["gloo"])
    user_s, system_s, wall_s = (statistics.median(values) for values in zip(*samples, strict=True))
    processor_s = statistics.median(user + system for user, system, _ in samples)
    return Row(
        rival=rival.label,
        hosts=hosts,
        mtu=mtu,
        bytes=plan.bytes,
        user_s=user_s,
        system_s=system_s,
        processor_s=processor_s,
        of_gloo=statistics.median(sum(own[:2]) / sum(other[:2]) for own, other in zip(samples, gloo, strict=True)),
        wall_s=wall_s,
        bytes_per_core_s=plan.bytes / processor_s,
        link_bit_s_per_core=link_bits(rival, hosts, mtu, plan.bytes) / processor_s,
        max_error=explained_error(rival.label, ranks[rival.label], rival.tolerated_error(hosts)),
    )


def _means(ranks: list[Report]) -> list[tuple[float, ...]]:
    """By sample: user, system and wall seconds per call, each the mean over the hosts."""
    by_sample = zip(*(rank["samples"] for rank in ranks), strict=True)
    return [tuple(map(statistics.fmean, zip(*sample, strict=True))) for sample in by_sample]


def link_bits(rival: Rival, hosts: int, mtu: int, size: int) -> float:
    """Bits that a host's link carries per call, in its busier direction."""
    link = Link(mtu=mtu, rate_bit_s=1e9)
    busy_s = ideal_s(Topology(workers=hosts, link=link, switch_at=PLACE), rival, size)
    assert busy_s is not None
    return busy_s * 1e9


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""
    return table(
        f"processor time of an all-reduce of {plan.bytes:,} bytes per call and host",
        rows,
        [
            ("backend", "rival"),
            ("user ms", "user_s:ms3"),
            ("system", "system_s:ms3"),
            ("both", "processor_s:ms3"),
            ("of gloo's", "of_gloo:.2f"),
            ("call ms", "wall_s:ms3"),
            ("GB/s a core", lambda row: f"{row.bytes_per_core_s / 1e9:.2f}"),
            ("Gbit/s a core", lambda row: f"{row.link_bit_s_per_core / 1e9:.2f}"),
        ],
        section=lambda row: f"{row.hosts} hosts, MTU {row.mtu}",
        caption=f"medians of {plan.samples} samples of {plan.calls} calls, interleaved; a host: its rank and its "
        "shard; GB/s: float32 summed; Gbit/s: of a link, each way; -open: without tags",
    )
