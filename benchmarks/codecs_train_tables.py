"""The output of `fanin bench codecs --train`: tables, sentences, and the record for the page with all curves."""

from __future__ import annotations

import math
from typing import Any

from fanin.benchmarks.codecs_train_rows import PROCESSORS, TARGET_SHARE, Plan, Row
from fanin.benchmarks.codecs_train_runs import GLOO, rate_in_words
from fanin.benchmarks.harness import table
from fanin.benchmarks.processor import busy_in_words
from fanin.emulation.figures import FigureTable
from fanin.records import record

MAX_LABEL = 32
"""Longest name of a codec in a legend, in characters."""


def verdicts(rows: list[Row]) -> list[str]:
    """Sentences that name, for each task, number of workers and rate, the codec that reaches the target first."""
    found = []
    cases = dict.fromkeys((row.task, row.workers, row.rate_bit_s) for row in rows if row.rate_bit_s is not None)
    for case in cases:
        there = [row for row in rows if (row.task, row.workers, row.rate_bit_s) == case]
        reached = [row for row in there if row.to_target_s is not None and row.speed_up is not None]
        first = min(reached, key=lambda row: row.to_target_s or math.inf)
        found.append(
            f"{_case(first)}: {first.codec} is first at the loss of float32 over gloo plus {TARGET_SHARE:.0%}, after "
            f"{first.to_target_s:.1f} s, {first.speed_up:.1f} times as fast as gloo{_own_cores(there, first)}"
        )
    return found


def _own_cores(rows: list[Row], first: Row) -> str:
    """A sentence on the first codec's speed if every worker had cores of its own; empty unless this machine's
    processors bound its steps.
    """
    if (bound := first.bound_by) is None or bound[0] != PROCESSORS:
        return ""
    gloo = next((row for row in rows if row.codec == GLOO), None)
    speed_up = None if gloo is None else first.own_core_speed_up(gloo)
    if speed_up is None:
        return ""
    return (
        f"; the processors that all workers share here bound its steps ({bound[1]:.0%} of one without links), and by "
        f"the link's time and one worker's own it is {speed_up:.1f} times as fast"
    )


def _case(row: Row) -> str:
    rate = "" if row.rate_bit_s is None else f", links of {rate_in_words(row.rate_bit_s)}"
    return f"{row.task}, {row.workers} workers{rate}"


def recorded(plan: Plan, rows: list[Row]) -> dict[str, Any]:
    """Arguments of a record: the curves, times to the target, and the tables as notes."""
    timed, shown = [row for row in rows if row.rate_bit_s is not None], labels(plan.rivals)
    # Without rates, the axis of time shows steps instead of seconds.
    drawn = [(row, 1.0 if row.step_s is None else row.step_s) for row in timed or rows]
    return {
        "progress": [
            record.Progress(
                time_s=step * step_s,
                rank=0,
                step=step,
                loss=loss,
                accuracy=right,
                label=shown[row.codec],
                group=_case(row),
            )
            for row, step_s in drawn
            for step, loss, right in row.points
            if math.isfinite(loss)
        ],
        "quantities": [
            record.Quantity(
                plot="Time to the loss of float32 over gloo",
                name=shown[row.codec],
                value=row.to_target_s,
                unit="s",
                group=_case(row),
            )
            for row in timed
        ],
        "notes": [*verdicts(rows), *map(_in_words, rows)],
    }


def labels(codecs: list[str]) -> dict[str, str]:
    """By codec, a label for curves and bars: long names are cut, and numbered if two begin alike."""
    found: dict[str, str] = {}
    for codec in codecs:
        short = codec if len(codec) <= MAX_LABEL else f"{codec[: MAX_LABEL - 5]}..."
        alike = sum(1 for other in found.values() if other.startswith(short))
        found[codec] = f"{short} {alike + 1}" if alike else short
    return found


def title_of(plan: Plan) -> str:
    """Title of the tables and of the page."""
    runs = f", {plan.repeats} seeds" if plan.repeats > 1 else ""
    return f"codecs: {' and '.join(plan.tasks)}, {', '.join(map(str, plan.workers))} workers{runs}"


def _in_words(row: Row) -> str:
    """One row as a line of text."""
    learned = (
        f"loss {row.loss:.3f} ({row.loss_change:+.1%}), accuracy {row.accuracy:.1%} "
        f"({row.accuracy_change * 100:+.1f} points)"
    )
    if row.step_s is None:
        return f"{_case(row)}, {row.codec}: after {row.steps} steps {learned}"
    reached = "target never" if row.to_target_s is None else f"target after {row.to_target_s:.1f} s"
    times = "" if row.speed_up is None else f", {row.speed_up:.1f} times as fast as gloo"
    return (
        f"{_case(row)}, {row.codec}: {reached}{times}; {row.step_s * 1e3:.0f} ms per step, "
        f"{row.saved or 0:.1f} times fewer bytes"
    )


def tables_of(plan: Plan, rows: list[Row]) -> list[FigureTable]:
    """Tables for the terminal: what is learned, how fast over links, and which resource bounds a step there."""
    learned = [row for row in rows if row.rate_bit_s is None]
    timed = [row for row in rows if row.rate_bit_s is not None]
    return [_learned_table(plan, learned), *([_timed_table(plan, timed), _bounds_table(timed)] if timed else [])]


def _learned_table(plan: Plan, rows: list[Row]) -> FigureTable:
    return table(
        title_of(plan),
        rows,
        [
            ("codec", "codec"),
            ("loss", lambda row: f"{row.loss:.3f}{_range(row.loss_range, '.3f')}"),
            ("to gloo's", lambda row: f"{row.loss_change:+.2%}{_range(row.loss_change_range, '.2f', 100)}"),
            ("accuracy", "accuracy:.1%"),
            (
                "points",
                lambda row: f"{row.accuracy_change * 100:+.2f}{_range(row.accuracy_change_range, '.2f', 100)}",
            ),
            ("steps", lambda row: "never" if row.to_target_steps is None else f"{row.to_target_steps:.0f}"),
        ],
        section=lambda row: f"{_case(row)}, {row.steps} steps, target loss {row.target_loss:.3f}",
        caption=f"on the test set at the end, +- half of the 95 % interval over {plan.repeats} seeds; points: of "
        f"accuracy above gloo's float32; steps: to its loss plus {TARGET_SHARE:.0%}",
    )


def _range(half: float | None, form: str, times: float = 1) -> str:
    return "" if half is None else f" +-{half * times:{form}}"


def _section(row: Row) -> str:
    return f"{_case(row)}, target loss {row.target_loss:.3f}"


def _timed_table(plan: Plan, rows: list[Row]) -> FigureTable:
    return table(
        "the same over links",
        rows,
        [
            ("codec", "codec"),
            ("ms/step", "step_s:ms0"),
            ("busy", lambda row: busy_in_words(row.processor)),
            ("bytes out", "bytes_out:,.0f"),
            ("saved", "saved:.1f"),
            ("to target", lambda row: "never" if row.to_target_s is None else f"{row.to_target_s:.1f} s"),
            ("to gloo", "speed_up:.1f"),
        ],
        section=_section,
        caption=f"medians of {plan.timed_steps} steps, the first two left out; busy: this machine's processors, with "
        "all workers on them (*: they set the time); bytes per step of the worker's device, headers included",
    )


def _bounds_table(rows: list[Row]) -> FigureTable:
    gloo = {_case(row): row for row in rows if row.codec == GLOO}

    def to_gloo(row: Row) -> str:
        speed_up = row.own_core_speed_up(gloo.get(_case(row), rows[0]))
        return "" if speed_up is None else f"{speed_up:.1f}"

    return table(
        "what bounds a step",
        rows,
        [
            ("codec", "codec"),
            ("bound by", lambda row: "" if row.bound_by is None else f"{row.bound_by[0]} {row.bound_by[1]:.0%}"),
            ("link", "link_s:ms0"),
            ("no links", "without_links_s:ms0"),
            ("codec's", "codec_s:ms0"),
            ("worker's", "processor_s:ms0"),
            ("own core", "own_core_s:ms0"),
            ("to gloo", to_gloo),
        ],
        section=_section,
        caption="milliseconds of a step; bound by: what takes more of it, the bytes alone on the link, or the same "
        "step without links; link: what the bytes alone take; no links: the same step with all workers on this "
        "machine's processors alone; codec's: its arithmetic, beside the other workers; worker's: what one worker used "
        "of a processor; own core: link and worker's, a step of workers with a core each if nothing overlaps, and by "
        "that the time to the target compared with gloo's",
    )
