"""`fanin bench watching`: what watching a job costs it, in wall time and in processor time.

Ways of watching take turns in every sample, in the same ranks and at the same switch, in an order that moves on by one
each time. Watching processes are stopped between their turns. Their own processor time is not counted: that of the
ranks and of the switch is, which includes the cost of answers. `off` comes twice, in separate groups, so that
`off again` shows the difference between two equal ways.

| way | what is on |
|---|---|
| off, off again | nothing |
| metrics | `metrics=` at every rank and `--metrics` at the switch, all scraped once per second |
| top | `fanin top --json --interval 1` |
| timeline | `timeline=`: a line per sum with its seconds of quantizing, sending and decoding |
| unaccounted | as off, without the account that ranks send the switch once per second |
| step, step again | a training step of DDP whose gradients are as large, nothing on |
| watch_ranks | the same with `watch_ranks(model, every=10)` |
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fanin.benchmarks.harness import Output, Report, alike, by, explained_error, reports, table
from fanin.benchmarks.rivals import MAX_BYTES, MAX_SAMPLES, Rival, check_bytes
from fanin.emulation.figures import FigureTable
from fanin.settings import Bounds, check_bounds
from fanin.watching.exporter import require_client

WORKER = "fanin.benchmarks.watching_worker"
OFF, STEP = "off", "step"
SUMS = (OFF, "off again", "metrics", "top", "timeline", "unaccounted")
STEPS = (STEP, "step again", "watch_ranks")
LANES = 32
MAX_CALLS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: Annotated[int, Bounds(2, 32)] = 3
    """Ranks on this machine; watch_ranks judges gradients from three on."""
    bytes: Annotated[int, Bounds(4, MAX_BYTES)] = 26_214_400
    """Bytes of float32 per rank, of a sum and of the gradients of a step."""
    samples: Annotated[int, Bounds(1, MAX_SAMPLES)] = 11
    """Samples of every way, in turn."""
    calls: Annotated[int, Bounds(1, MAX_CALLS)] = 20
    """Sums, or steps, of a sample."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_bytes(self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (watching_worker.py)."""

    bytes: int
    samples: int
    calls: int


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one way, as in the JSON file: medians of samples."""

    way: str
    workers: int
    bytes: int
    wall_s: float
    """Elapsed time of a sum or step, of the slowest rank."""
    processor_s: float
    """Processor time of a sum or step, of all ranks and the switch together."""
    wall_ratio: float
    """wall_s over that of `off` or `step` in the same sample, median of samples."""
    processor_ratio: float
    """processor_s over that of `off` or `step` in the same sample, median of samples."""
    looks: int
    """Number of looks: scrapes, views of top, lines, watched steps; over all samples and ranks."""
    look_s: float | None
    """Processor time of all ranks and the switch per look at an idle job, which shows what other load hides in the
    ratios. None if no process looks."""
    max_error: float


def bench(plan: Plan, output: Output) -> list[Row]:
    """Measure, check, print a table; write the rows. FaninError if a result is wrong.

    ConfigurationError if prometheus-client, which `metrics` needs, is not installed.
    """
    require_client()
    asked = Asked(bytes=plan.bytes, samples=plan.samples, calls=plan.calls)
    found = by(reports(output, "being watched", plan.workers, WORKER, asked), "way")
    rows = [_row(plan, way, found[way], found[OFF if way in SUMS else STEP]) for way in (*SUMS, *STEPS)]
    output.show(rows, table_of(plan, rows))
    return rows


def _row(plan: Plan, way: str, ranks: Sequence[Report], off: Sequence[Report]) -> Row:
    alike(way, ranks, "checksum")
    (wall, processor), (wall_off, processor_off) = _samples(ranks), _samples(off)
    return Row(
        way=way,
        workers=plan.workers,
        bytes=plan.bytes,
        wall_s=statistics.median(wall),
        processor_s=statistics.median(processor),
        wall_ratio=statistics.median(own / other for own, other in zip(wall, wall_off, strict=True)),
        processor_ratio=statistics.median(own / other for own, other in zip(processor, processor_off, strict=True)),
        looks=sum(rank["looks"] for rank in ranks),
        look_s=_look(ranks),
        max_error=explained_error(way, ranks, Rival("fanin", LANES).tolerated_error(plan.workers)),
    )


def _look(ranks: Sequence[Report]) -> float | None:
    found = [rank["look"] for rank in ranks if "look" in rank]
    return sum(seconds for seconds, _ in found) / max(1, sum(looks for _, looks in found)) if found else None


def _samples(ranks: Sequence[Report]) -> tuple[list[float], list[float]]:
    """By sample, seconds of the slowest rank, and processor seconds of all ranks."""
    wall = [max(each) for each in zip(*(rank["wall"] for rank in ranks), strict=True)]
    processor = [sum(each) for each in zip(*(rank["processor"] for rank in ranks), strict=True)]
    return wall, processor


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""
    return table(
        f"what being watched costs a sum of {plan.bytes:,} bytes, and a step with as large gradients, "
        f"{plan.workers} ranks",
        rows,
        [
            ("way", "way"),
            ("ms", "wall_s:ms3"),
            ("of off", "wall_ratio:.3f"),
            ("processor ms", "processor_s:ms3"),
            ("of off", "processor_ratio:.3f"),
            ("looks", "looks:,"),
            ("ms a look", "look_s:ms3"),
        ],
        section=lambda row: "sum" if row.way in SUMS else "step",
        caption=f"medians of {plan.samples} samples of {plan.calls}, interleaved; ratios: of the same sample; "
        "processor: all ranks and the switch",
    )
