"""`fanin bench collectives`: every collective that goes through the switch, over fanin, gloo and NCCL, in one run.

Over links of a stated rate (namespaces, root), or on this machine alone. Every rival takes its turn in every sample, on
the same ranks. Each call follows a barrier over gloo; the first call of a turn is not timed. A sample is the mean time
of its calls on the slowest rank, and results are checked. The ideal is the time that the busiest link needs, headers
included.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rich.filesize import decimal

from fanin.benchmarks.harness import (
    DEVICES,
    Output,
    Report,
    busy,
    by,
    explained_error,
    median_ratio,
    reports,
    require_device,
    slowest,
    table,
    usable,
)
from fanin.benchmarks.ideal import tensor_bytes
from fanin.benchmarks.processor import busy_in_words
from fanin.benchmarks.rivals import FLOAT_BYTES, MAX_SAMPLES, NCCL, Rival, Rivals
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.switch_place import Place, SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.network.units import Rate
from fanin.errors import ConfigurationError
from fanin.settings import Bounds, Lanes, Named, Numbers, OneOf, Words, check_bounds

WORKER = "fanin.benchmarks.collectives_worker"
COLLECTIVES = ("broadcast", "all_gather", "reduce_scatter", "reduce", "all_reduce")
SUMS = ("reduce_scatter", "reduce", "all_reduce")
WEIGHTS_ERROR = 2.0**-7
"""Largest error of weights in 8 bits, relative to the largest weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: Annotated[int, Bounds(2, 32)] = 4
    """Hosts, of one rank each."""
    rate_bit_s: Annotated[Rate, Named("rate")] = None
    """Rate of every link, each way (root): 100mbit, 1gbit. none: this machine, without links."""
    switch_at: Place = SwitchPlace.parse("hosts")
    """Place of the switch, over links: own (a port per host), rank0, hosts, spare:K."""
    collectives: Annotated[Words, Named("which"), OneOf(*COLLECTIVES)] = ("broadcast", "all_gather", "reduce_scatter")
    """Some of broadcast, all_gather, reduce_scatter, reduce, all_reduce; separated by commas."""
    sizes: Annotated[Numbers, Named("bytes")] = (26_214_400,)
    """Bytes of the whole float32 tensor, several separated by commas."""
    lanes: Lanes = (32,)
    """fanin's lane widths of sums, separated by commas."""
    samples: Annotated[int, Bounds(1, MAX_SAMPLES)] = 11
    """Samples per rival, size and collective."""
    device: Annotated[str, OneOf(*DEVICES)] = "cpu"
    """Device of the tensors: cpu or cuda; ranks share devices where there are fewer."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.collectives:
            raise ConfigurationError(f"which = ''. Remedy: name some of {', '.join(COLLECTIVES)}")
        if not self.sizes or min(self.sizes) < FLOAT_BYTES * self.workers:
            raise ConfigurationError(
                f"bytes = {self.sizes}; must be at least {FLOAT_BYTES * self.workers}, a float32 per worker", "--bytes"
            )
        if self.link is not None:
            Topology(workers=self.workers, link=self.link, switch_at=self.switch_at)

    @property
    def link(self) -> Link | None:
        """Link of every host, its device as Linux makes it; None: all ranks on this machine, without links."""
        return None if self.rate_bit_s is None else Link(rate_bit_s=self.rate_bit_s, bands=True)

    @property
    def rivals(self) -> list[Rival]:
        """gloo; for CUDA tensors NCCL over sockets, too; and fanin with each of the lane widths."""
        others = [Rival("gloo"), *([Rival(NCCL)] if self.device == "cuda" else [])]
        return [*others, *(Rival("fanin", lanes) for lanes in self.lanes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (collectives_worker.py)."""

    collectives: Words
    rivals: Rivals
    sizes: Numbers
    samples: int
    device: str


@dataclass(frozen=True, slots=True)
class Row:
    """One collective over one rival, as in the JSON file."""

    collective: str
    bytes: int
    rival: str
    workers: int
    rate_bit_s: float | None
    switch_at: str
    device: str
    median_s: float
    """Median of the samples, which are times of the slowest rank."""
    fastest_s: float
    to_gloo: float | None
    """gloo's time over this one's; None if gloo does not run."""
    ideal_s: float | None
    """Time that the busiest link needs; None for gloo, and without links."""
    max_error: float
    """Largest error, relative to the largest value of the result."""
    processor: float | None
    """Load of this machine's processors, 0..1."""


def bench(plan: Plan, output: Output) -> list[Row]:
    """Measure, check, print a table; write the rows. FaninError if a result is wrong."""
    require_device(plan.device)
    whole = FLOAT_BYTES * plan.workers
    asked = Asked(
        collectives=plan.collectives,
        rivals=tuple(plan.rivals),
        sizes=tuple(size // whole * whole for size in plan.sizes),
        samples=plan.samples,
        device=plan.device,
    )
    unusable: dict[str, str] = {}
    words = f"{plan.workers} workers, collectives"
    ranks = reports(output, words, plan.workers, WORKER, asked, link=plan.link, switch_at=plan.switch_at)
    cases = by(usable(ranks, unusable), "bytes", "collective")
    rivals = [rival for rival in plan.rivals if rival.label not in unusable]
    rows = [_row(plan, rival, by(found, "rival")) for found in cases.values() for rival in rivals]
    output.show(rows, table_of(plan, rows))
    output.say_unusable(unusable)
    return rows


def _row(plan: Plan, rival: Rival, of_rivals: dict[str, list[Report]]) -> Row:
    found = of_rivals[rival.label]
    collective: str = found[0]["collective"]
    narrow = rival.backend == "fanin" and rival.lanes != 32
    tolerated = rival.tolerated_error(plan.workers) if collective in SUMS else 0.0
    if collective == "all_gather" and narrow:
        tolerated = WEIGHTS_ERROR
    seconds = slowest(found)
    return Row(
        collective=collective,
        bytes=found[0]["bytes"],
        rival=rival.label,
        workers=plan.workers,
        rate_bit_s=plan.rate_bit_s,
        switch_at=str(plan.switch_at),
        device=plan.device,
        median_s=statistics.median(seconds),
        fastest_s=min(seconds),
        to_gloo=median_ratio(found, of_rivals["gloo"]),
        ideal_s=ideal_s(plan, rival, collective, found[0]["moved_bytes"]),
        max_error=explained_error(f"{collective}, {rival.label}", found, tolerated),
        processor=busy(found),
    )


def ideal_s(plan: Plan, rival: Rival, collective: str, moved_bytes: int) -> float | None:
    """Seconds that the busiest link needs in its busier direction. None for gloo, spare switches, and without a rate.

    `moved_bytes`: bytes of all encoded weights, or of float32.
    """
    if plan.link is None or plan.rate_bit_s is None or rival.backend != "fanin" or plan.switch_at.spares:
        return None
    packed = rival if collective in SUMS else Rival("fanin", 32)  # moves without lanes
    wire_bytes = tensor_bytes(plan.link, packed, plan.workers, moved_bytes)
    return copies(plan.switch_at, collective, plan.workers) * wire_bytes * 8 / plan.rate_bit_s


def copies(switch_at: SwitchPlace, collective: str, hosts: int) -> float:
    """Tensors that the busiest link carries in its busier direction, with a rank per host, and rank 0 as the root."""
    others = hosts - 1
    if switch_at.on_hosts:  # a host's shard holds the part that the host's own rank keeps or owns
        return others / hosts * (1 if collective in ("all_gather", "reduce_scatter") else 2)
    if switch_at.kind == "rank0":
        return others * (others / hosts if collective == "all_gather" else 1)
    return others / hosts if collective == "all_gather" else 1.0


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""
    where = "on this machine"
    if plan.rate_bit_s is not None:
        where = f"links of {plan.rate_bit_s / 1e6:g} Mbit/s, switch: {plan.switch_at.in_words}"
    if plan.device != "cpu":
        where += f", tensors on {plan.device}"
    return table(
        f"{plan.workers} workers, {where}",
        rows,
        [
            ("what", "collective"),
            ("size", lambda row: decimal(row.bytes)),
            ("backend", "rival"),
            ("median ms", "median_s:ms"),
            ("fastest", "fastest_s:ms"),
            ("to gloo", "to_gloo:.2f"),
            ("of ideal", lambda row: "" if row.ideal_s is None else f"{row.ideal_s / row.median_s:.2f}"),
            ("processors", lambda row: busy_in_words(row.processor)),
        ],
        left=("what", "backend"),
        caption=f"{plan.samples} samples each, interleaved, each call after a barrier; of ideal: what the busiest link "
        "alone needs, headers and all, by the time; all_gather with narrow lanes: weights in 8 bits, encoding "
        "included; processors: how busy this machine's were (*: they, not the links, set the time)",
    )
