"""`fanin bench codecs`: what gradient codecs lose, send and take, through a real switch.

Values are drawn, normal and Student t with 3 degrees of freedom (heavy tails), or captured: `digits@50` are the ranks'
gradients of that task's network at that step, in its parameters' shapes. The error is
that of the mean against a float64 mean, relative to its square: of one step, and of the same values summed over all
steps, where error feedback makes up for what single steps lost. Bytes are from the engine's counters, headers and
repeats included, never from a formula; times are processor time of the codec's own arithmetic. Below the break-even
rate of a link, the bytes that a codec saves against float32 in 32-bit lanes take longer than its arithmetic.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fanin.benchmarks.thc import PAPER
from fanin.emulation.announced import announced, reports_of
from fanin.emulation.dataclass_files import write_rows
from fanin.emulation.figures import FigureTable
from fanin.emulation.processes import LocalJob
from fanin.errors import ConfigurationError, FaninError
from fanin.examples.tasks import TASKS
from fanin.host.codecs import make, table
from fanin.host.codecs.codec import Place

FLOAT_BYTES = 4
MAX_STEP = 10_000
MAX_WORKERS = 32
BASELINE = "lanes:32"
"""The codec that bytes are compared with."""
DISTRIBUTIONS = ("normal", "student", "digits@50")
"""Default distributions of the values."""
DRAWN = ("normal", "student")


def split(texts: str) -> tuple[str, ...]:
    """Codecs that are separated by commas; a comma within a codec's text is not followed by a codec's name."""
    names = "|".join(table())
    return tuple(text for text in re.split(rf",(?=(?:{names})(?:[:,]|$))", texts) if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the benchmark."""

    workers: int
    bytes: int
    """Bytes of float32 per worker; a multiple of 4."""
    steps: int
    codecs: tuple[str, ...] = ()
    """Empty: every codec with its defaults, and the first of them in several widths."""

    values: tuple[str, ...] = DISTRIBUTIONS
    """normal, student, or TASK@STEP."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= MAX_WORKERS:
            raise ConfigurationError(f"workers = {self.workers}; must be in 2..{MAX_WORKERS}")
        for each in self.values:
            task, _, step = each.partition("@")
            if each not in DRAWN and (task not in TASKS or not step.isdecimal() or not 1 <= int(step) <= MAX_STEP):
                raise ConfigurationError(
                    f"values = {each!r}; expected {' or '.join(DRAWN)}, or a step of {' or '.join(TASKS)} in "
                    f"1..{MAX_STEP}, as in digits@50"
                )
        if self.bytes % FLOAT_BYTES:
            raise ConfigurationError(f"bytes = {self.bytes}; must be a multiple of {FLOAT_BYTES}")
        for text in self.texts:
            make(text).encoder(Place(0, self.workers, ()))

    @property
    def texts(self) -> list[str]:
        """The codecs, the baseline first."""
        rest = [
            "lanes:16",
            "lanes:8",
            "lanes:8/8",
            "rotated:16",
            "rotated:4/8",
            "rotated:4/4",
            *sorted(set(table()) - {"lanes"}),
        ]
        return list(dict.fromkeys([BASELINE, *(self.codecs or rest)]))


@dataclass(frozen=True, slots=True)
class Row:
    """One codec on one distribution, as in the JSON file."""

    codec: str
    distribution: str
    workers: int
    elements: int
    steps: int
    nmse: float
    """Normalized mean square error of the first step's mean."""
    nmse_of_steps: float
    """Normalized mean square error of the sum of all steps' means, on the same values in each step."""
    bytes_out: float
    """Per step, of the worker that sent most; from the engine's counters."""
    bytes_in: float
    saved: float
    """How many times fewer bytes leave a worker than with float32 in 32-bit lanes."""
    encode_ms: float
    decode_ms: float
    gigabytes_per_s: float
    """float32 through the codec's arithmetic, both ways, on one core."""
    break_even_bit_s: float
    """The rate of a link above which the codec loses time; 0 where it saves no bytes."""


def bench(plan: Plan, *, json_file: Path | None, console: Console) -> list[Row]:
    """Measure, check, print a table; write a JSON list of rows. FaninError where ranks got different results."""
    arguments = [
        "--codecs",
        "|".join(plan.texts),
        "--values",
        ",".join(plan.values),
        "--count",
        str(plan.bytes // FLOAT_BYTES),
        "--steps",
        str(plan.steps),
    ]
    reports: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    job = LocalJob("fanin.benchmarks.codecs_worker", arguments, plan.workers, {})
    with announced(console, f"{plan.workers} workers, {plan.bytes:,} bytes") as tell, job:
        for _, record in reports_of(job, tell):
            reports[record["codec"], record["distribution"]].append(record)
    rows = [
        _row(plan, text, distribution, reports[text, distribution], reports[BASELINE, distribution])
        for distribution in plan.values
        for text in plan.texts
    ]
    console.print(table_of(plan, rows))
    console.print(table_of_thc())
    if json_file:
        write_rows(json_file, rows)
    return rows


def _row(
    plan: Plan, codec: str, distribution: str, reports: list[dict[str, Any]], baseline: list[dict[str, Any]]
) -> Row:
    if len({record["checksum"] for record in reports}) != 1:
        raise FaninError(f"{codec} on {distribution} values: the ranks got different results")
    bytes_out, plain = (max(record["bytes_out"] for record in each) for each in (reports, baseline))
    encode_s, decode_s = (
        max(statistics.median(record[name]) for record in reports) for name in ("encode_s", "decode_s")
    )
    busy_s = encode_s + decode_s
    return Row(
        codec=codec,
        distribution=distribution,
        workers=plan.workers,
        elements=reports[0]["elements"],
        steps=plan.steps,
        nmse=reports[0]["nmse"],
        nmse_of_steps=reports[0]["nmse_of_steps"],
        bytes_out=bytes_out,
        bytes_in=max(record["bytes_in"] for record in reports),
        saved=plain / bytes_out,
        encode_ms=encode_s * 1e3,
        decode_ms=decode_s * 1e3,
        gigabytes_per_s=FLOAT_BYTES * reports[0]["elements"] / busy_s / 1e9,
        break_even_bit_s=max(0.0, plain - bytes_out) * 8 / busy_s,
    )


def table_of_thc() -> FigureTable:
    """THC's own tables on normal values, whose error our rotated lanes are to be compared with."""
    found = FigureTable("THC's tables, computed", ("bits up", "levels", "clipped", "NMSE, normal"))
    for each in PAPER:
        found.add(f"{each.bits}", f"{each.granularity + 1}", f"1/{1 / each.share:.0f}", f"{each.nmse():.3g}")
    found.caption = "of any number of workers: their errors are independent, and so are the values"
    return found


def table_of(plan: Plan, rows: list[Row]) -> FigureTable:
    """The rows as a table for people."""
    headings = ("codec", "values", "NMSE", "of steps", "bytes out", "saved", "ms", "break-even Mbit/s")
    table_ = FigureTable(f"codecs: {plan.bytes:,} bytes of float32, {plan.workers} workers", headings)
    for row in rows:
        table_.add(
            row.codec,
            row.distribution,
            f"{row.nmse:.2g}",
            f"{row.nmse_of_steps:.2g}",
            f"{row.bytes_out:,.0f}",
            f"{row.saved:.1f}",
            f"{row.encode_ms + row.decode_ms:.1f}",
            f"{row.break_even_bit_s / 1e6:,.0f}",
        )
    table_.caption = f"{plan.steps} steps; bytes per step and worker from the engine's counters, headers included"
    return table_
