"""`fanin bench collectives`: every collective that goes through the switch, over fanin, gloo and NCCL, in one run.

Over links of a stated rate (namespaces, root), or on this machine alone. Every rival takes its turn in every sample, on
the same ranks, each call after a barrier over gloo, the first of its turn untimed; a sample is the mean of its calls as
the slowest rank saw it, and results are checked. The ideal is what the busiest link alone needs, headers and all.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from fanin.benchmarks.ideal import tensor_bytes
from fanin.benchmarks.linked_job import linked_job, slowest
from fanin.benchmarks.processor import busy_in_words
from fanin.benchmarks.rivals import Rival
from fanin.benchmarks.usable import NCCL, UNUSABLE
from fanin.emulation.announced import announced, reports_of
from fanin.emulation.dataclass_files import write_rows
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Link
from fanin.errors import ConfigurationError, FaninError
from fanin.options import Options

WORKER = "fanin.benchmarks.collectives_worker"
COLLECTIVES = ("broadcast", "all_gather", "reduce_scatter", "reduce", "all_reduce")
SUMS = ("reduce_scatter", "reduce", "all_reduce")
DEVICES = ("cpu", "cuda")
WEIGHTS_ERROR = 2.0**-7
"""Bound on the error of weights in 8 bits, relative to the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: int
    """Hosts, of one rank each."""
    link: Link | None
    """Link of every host; None: all ranks on this machine, without links."""
    switch_at: SwitchPlace
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of float32: of the tensor that all have in the end, or that is reduced; rounded down to equal parts."""
    lanes: tuple[int | str, ...]
    samples: int
    device: str = "cpu"
    """Device of the tensors; with "cuda", ranks share devices where there are fewer."""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigurationError(f"device = {self.device!r}; must be one of {', '.join(DEVICES)}")
        if not self.collectives or not set(self.collectives) <= set(COLLECTIVES):
            raise ConfigurationError(
                f"collectives = {','.join(self.collectives)!r}; name some of {', '.join(COLLECTIVES)}"
            )
        if not self.sizes or min(self.sizes) < 4 * self.workers:
            raise ConfigurationError(f"bytes = {self.sizes}; must be at least {4 * self.workers}, a float32 per worker")
        for lanes in self.lanes:
            Options(lanes=lanes)

    @property
    def rivals(self) -> list[Rival]:
        """gloo, for CUDA tensors NCCL over sockets, and fanin with each of the lanes."""
        others = [Rival("gloo"), *([Rival(NCCL)] if self.device == "cuda" else [])]
        return [*others, *(Rival("fanin", lanes) for lanes in self.lanes)]


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
    """Median of the samples, each the slowest rank's time."""
    fastest_s: float
    to_gloo: float | None
    """gloo's time / this one's; None where gloo does not run."""
    ideal_s: float | None
    """Time that the busiest link needs; None for gloo, and without links."""
    max_error: float
    """Relative to the largest value of the result."""
    processor: float | None
    """How busy this machine's processors were, 0..1."""


def bench(plan: Plan, *, json_file: Path | None, console: Console) -> list[Row]:
    """Measure, check, print a table; write a JSON list of rows. FaninError where a result is wrong."""
    require_device(plan.device)
    whole = 4 * plan.workers
    arguments = ["--collectives", ",".join(plan.collectives), "--samples", str(plan.samples)]
    arguments += ["--device", plan.device]
    arguments += ["--rivals", ",".join(rival.label for rival in plan.rivals)]
    arguments += ["--sizes", ",".join(str(size // whole * whole) for size in plan.sizes)]
    reports: dict[tuple[int, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    unusable: dict[str, str] = {}
    with ExitStack() as stack:
        job = linked_job(stack, plan.workers, plan.link, WORKER, arguments, switch_at=plan.switch_at)
        tell = stack.enter_context(announced(console, f"{plan.workers} workers, collectives"))
        stack.enter_context(job)
        for _, record in reports_of(job, tell):
            if UNUSABLE in record:
                unusable[record["rival"]] = record[UNUSABLE]
                continue
            reports[record["bytes"], record["collective"]][record["rival"]].append(record)
    usable = [rival for rival in plan.rivals if rival.label not in unusable]
    rows = [_row(plan, rival, of_rivals) for of_rivals in reports.values() for rival in usable]
    console.print(table_of(plan, rows))
    tell_unusable(unusable, console)
    if json_file:
        write_rows(json_file, rows)
    return rows


def require_device(device: str) -> None:
    """ConfigurationError where PyTorch sees no such device on this machine."""
    if device == "cuda":
        import torch  # the ranks do so anyway, and this process need not wait for it

        if not torch.cuda.is_available():
            raise ConfigurationError("device = 'cuda', and PyTorch sees no CUDA device here. Remedy: --device cpu")


def tell_unusable(unusable: Mapping[str, str], console: Console) -> None:
    """A line for every rival that did not run here."""
    for label, reason in unusable.items():
        console.print(f"{label} did not run: {reason}", highlight=False)


def _row(plan: Plan, rival: Rival, of_rivals: dict[str, list[dict[str, Any]]]) -> Row:
    records = of_rivals[rival.label]
    collective: str = records[0]["collective"]
    error = max(record["max_error"] for record in records)
    narrow = rival.backend == "fanin" and rival.lanes != 32
    tolerated = rival.tolerated_error(plan.workers) if collective in SUMS else 0.0
    if collective == "all_gather" and narrow:
        tolerated = WEIGHTS_ERROR
    if not error <= tolerated:
        raise FaninError(
            f"{collective}, {rival.label}: an error of {error:.3g} where at most {tolerated:.3g} is explained"
        )
    seconds = slowest(records)
    return Row(
        collective=collective,
        bytes=records[0]["bytes"],
        rival=rival.label,
        workers=plan.workers,
        rate_bit_s=None if plan.link is None else plan.link.rate_bit_s,
        switch_at=str(plan.switch_at),
        device=plan.device,
        median_s=statistics.median(seconds),
        fastest_s=min(seconds),
        to_gloo=statistics.median(slowest(of_rivals["gloo"])) / statistics.median(seconds)
        if of_rivals["gloo"]
        else None,
        ideal_s=ideal_s(plan, rival, collective, records[0]["moved_bytes"]),
        max_error=error,
        processor=next((record["processor"] for record in records if record["processor"] is not None), None),
    )


def ideal_s(plan: Plan, rival: Rival, collective: str, moved_bytes: int) -> float | None:
    """Seconds that the busiest link is busy in its busier direction. None for gloo, spare switches, and without a rate.

    `moved_bytes`: of all encoded weights, or of float32.
    """
    if plan.link is None or plan.link.rate_bit_s is None or rival.backend != "fanin" or plan.switch_at.spares:
        return None
    packed = rival if collective in SUMS else Rival("fanin", 32)  # bytes as they are
    wire_bytes = tensor_bytes(plan.link, packed, plan.workers, moved_bytes)
    return copies(plan.switch_at, collective, plan.workers) * wire_bytes * 8 / plan.link.rate_bit_s


def copies(switch_at: SwitchPlace, collective: str, hosts: int) -> float:
    """Tensors that the busiest link carries in its busier direction; every host has a rank, and rank 0 is the root."""
    others = hosts - 1
    if switch_at.on_hosts:  # a host's shard has the part that its own rank keeps or owns
        return others / hosts * (1 if collective in ("all_gather", "reduce_scatter") else 2)
    if switch_at.kind == "rank0":
        return others * (others / hosts if collective == "all_gather" else 1)
    return others / hosts if collective == "all_gather" else 1.0


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """The rows as a table for people."""
    where = "on this machine"
    if plan.link is not None and plan.link.rate_bit_s is not None:
        where = f"links of {plan.link.rate_bit_s / 1e6:g} Mbit/s, switch: {plan.switch_at.in_words}"
    headings = ("what", "size", "backend", "median ms", "fastest", "to gloo", "of ideal", "processors")
    if plan.device != "cpu":
        where += f", tensors on {plan.device}"
    table = FigureTable(f"{plan.workers} workers, {where}", headings, left=("what", "backend"))
    for row in rows:
        table.add(
            row.collective,
            decimal(row.bytes),
            row.rival,
            milliseconds(row.median_s),
            milliseconds(row.fastest_s),
            "" if row.to_gloo is None else f"{row.to_gloo:.2f}",
            "" if row.ideal_s is None else f"{row.ideal_s / row.median_s:.2f}",
            busy_in_words(row.processor),
        )
    table.caption = (
        f"{plan.samples} samples each, interleaved, each call after a barrier; of ideal: what the busiest link alone "
        "needs, headers and all, by the time; all_gather with narrow lanes: weights in 8 bits, encoding included; "
        "processors: how busy this machine's were (*: they, not the links, set the time)"
    )
    return table
