"""`fanin bench codecs`: the error, the bytes and the time of gradient codecs, through a real switch.

Values are drawn, normal and Student t with 3 degrees of freedom (heavy tails), or captured: `digits@50` are the ranks'
gradients of that task's network at that step, in its parameters' shapes. The error is that of the mean against a
float64 mean, relative to the square of the latter: for one step, and for the same values summed over all steps, where
error feedback makes up for what single steps lost. Bytes are from the engine's counters, headers and repeats included,
never from a formula; times are processor time of the codec's own arithmetic. On a link faster than the break-even
rate, a codec's arithmetic takes longer than the bytes that it saves against float32 in 32-bit lanes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fanin.benchmarks import codecs_train, codecs_train_rows
from fanin.benchmarks import codecs_train_hooks as hooks
from fanin.benchmarks.codecs_texts import Codecs, check_codecs, further_codecs
from fanin.benchmarks.harness import Output, Report, alike, by, reports, table
from fanin.benchmarks.rivals import FLOAT_BYTES, MAX_BYTES, check_bytes
from fanin.benchmarks.thc import COMPARED, Thc
from fanin.emulation.figures import FigureTable
from fanin.errors import ConfigurationError
from fanin.settings import Bounds, Words, check_bounds

WORKER = "fanin.benchmarks.codecs_worker"
MAX_STEP = 10_000
STEPS = 5
BASELINE = "lanes:32"
"""The codec with which bytes are compared."""
DRAWN = ("normal", "student")
WIDTHS = ("lanes:16", "lanes:8", "lanes:8/8", "rotated:16", "rotated:4/8", "rotated:4/4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(codecs_train_rows.Plan):
    """Settings of the benchmark or, with `train`, of the trainings that take its place."""

    bytes: Annotated[int, Bounds(4096, MAX_BYTES)] = 4_194_304
    """Bytes of float32 per worker."""
    values: Words = (*DRAWN, "digits@50")
    """Values: normal, student, or gradients captured at a step of digits or text: digits@50."""
    train: bool = False
    """Train through each of them, and time steps over slow star links (root)."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.train:
            codecs_train_rows.Plan.__post_init__(self)
            return
        if self.runs_file is not None:
            raise ConfigurationError(
                "--record, --html and --runs are of `fanin bench codecs --train`. Remedy: add it, or leave them out"
            )
        if len(self.workers) != 1:
            raise ConfigurationError("several numbers of workers are for `fanin bench codecs --train`", "--workers")
        for each in self.values:
            task, _, step = each.partition("@")
            known = task in codecs_train_rows.STEPS and step.isdecimal() and 1 <= int(step) <= MAX_STEP
            if each not in DRAWN and not known:
                raise ConfigurationError(
                    f"values = {each!r}; expected {' or '.join(DRAWN)}, or a step of "
                    f"{' or '.join(codecs_train_rows.STEPS)} in 1..{MAX_STEP}, as in digits@50",
                    "--values",
                )
        if any(map(hooks.is_hook, self.codecs)):
            raise ConfigurationError(f"{hooks.NAME}, torch's hook, is for `fanin bench codecs --train`", "--codecs")
        check_bytes(self.bytes)
        check_codecs(self.measured, *self.workers)

    @property
    def measured(self) -> list[str]:
        """The codecs to measure, the baseline first; by default all codecs, and the first of them in several widths."""
        return list(dict.fromkeys([BASELINE, *(self.codecs or (*WIDTHS, *further_codecs()))]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a rank (codecs_worker.py)."""

    codecs: Codecs
    values: Words
    count: int
    steps: int


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
    nmse_of_last: float
    """Normalized mean square error of the last step's mean, for codecs that adapt to the gradients of earlier steps.
    With error feedback it includes the corrections of earlier steps.
    """
    nmse_of_steps: float
    """Normalized mean square error of the sum of all steps' means, on the same values in each step."""
    bytes_out: float
    """Bytes sent per step, by the worker that sent most; from the engine's counters."""
    bytes_in: float
    last_bytes: float
    """Bytes of the last step, in both directions, of the worker that moved most."""
    saved: float
    """float32's bytes in 32-bit lanes over this codec's, as sent by a worker."""
    encode_ms: float
    decode_ms: float
    gigabytes_per_s: float
    """10^9 bytes of float32 per second through the codec's arithmetic, both ways, on one core."""
    break_even_bit_s: float
    """Rate of a link above which the codec loses time; 0 if it saves no bytes."""


def bench(plan: Plan, output: Output) -> Sequence[Row | codecs_train_rows.Row]:
    """Measure, check, print a table; write the rows. FaninError if ranks got different results."""
    if plan.train:
        return codecs_train.bench(plan, output)
    if output.record is not None or output.html is not None:
        raise ConfigurationError(
            "--record, --html and --runs are of `fanin bench codecs --train`. Remedy: add it, or leave them out"
        )
    workers, steps = plan.workers[0], plan.steps or STEPS
    asked = Asked(codecs=tuple(plan.measured), values=plan.values, count=plan.bytes // FLOAT_BYTES, steps=steps)
    words = f"{workers} workers, {plan.bytes:,} bytes"
    found = by(reports(output, words, workers, WORKER, asked), "codec", "distribution")
    rows = [
        _row(asked, found[codec, values], found[BASELINE, values]) for values in plan.values for codec in asked.codecs
    ]
    output.show(rows, table_of(plan, rows), table_of_thc())
    return rows


def _row(asked: Asked, found: list[Report], baseline: list[Report]) -> Row:
    codec, distribution, elements = (found[0][name] for name in ("codec", "distribution", "elements"))
    alike(f"{codec} on {distribution} values", found, "checksum")
    bytes_out, plain = (max(report["bytes_out"] for report in each) for each in (found, baseline))
    encode_s, decode_s = (max(statistics.median(report[name]) for report in found) for name in ("encode_s", "decode_s"))
    busy_s = encode_s + decode_s
    return Row(
        codec=codec,
        distribution=distribution,
        workers=len(found),
        elements=elements,
        steps=asked.steps,
        nmse=found[0]["nmse"],
        nmse_of_last=found[0]["nmse_of_last"],
        nmse_of_steps=found[0]["nmse_of_steps"],
        bytes_out=bytes_out,
        bytes_in=max(report["bytes_in"] for report in found),
        last_bytes=max(report["last_bytes"] for report in found),
        saved=plain / bytes_out,
        encode_ms=encode_s * 1e3,
        decode_ms=decode_s * 1e3,
        gigabytes_per_s=FLOAT_BYTES * elements / busy_s / 1e9,
        break_even_bit_s=max(0.0, plain - bytes_out) * 8 / busy_s,
    )


def table_of_thc() -> FigureTable:
    """Table of THC's errors on normal values, with which ours in rotated lanes are to be compared."""

    def released(each: Thc) -> str:
        return "" if each.released is None else f"{each.released:.3g}"

    return table(
        "THC's tables: NMSE on normal values, computed",
        COMPARED,
        [
            ("bits up", "bits:d"),
            ("levels", lambda each: f"{each.granularity + 1}"),
            ("clipped", lambda each: f"1/{1 / each.share:.0f}"),
            ("released table", released),
            ("by its construction", lambda each: f"{each.nmse():.3g}"),
            ("uniform THC", lambda each: f"{each.uniform.nmse():.3g}"),
        ],
        caption="released: with the code of its authors; uniform: as many bits, levels alike far apart; of any number "
        "of workers: their errors are independent, and so are the values",
    )


def table_of(plan: Plan, rows: Sequence[Row]) -> FigureTable:
    """The rows as a table for the terminal."""
    return table(
        f"codecs: {plan.bytes:,} bytes of float32, {plan.workers[0]} workers",
        rows,
        [
            ("codec", "codec"),
            ("values", "distribution"),
            ("NMSE", "nmse:.2g"),
            ("of last", "nmse_of_last:.2g"),
            ("of steps", "nmse_of_steps:.2g"),
            ("bytes out", "bytes_out:,.0f"),
            ("last, both ways", "last_bytes:,.0f"),
            ("saved", "saved:.1f"),
            ("ms", lambda row: f"{row.encode_ms + row.decode_ms:.1f}"),
            ("break-even Mbit/s", lambda row: f"{row.break_even_bit_s / 1e6:,.0f}"),
        ],
        caption=f"{plan.steps or STEPS} steps; bytes per step and worker from the engine's counters, headers included",
    )
