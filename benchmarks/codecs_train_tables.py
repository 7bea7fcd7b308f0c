"""The output of `fanin bench codecs --train`: tables, sentences, and the record for the page with all curves."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fanin.benchmarks.codecs_train_rows import PROCESSORS, TARGET_SHARE, Plan, Row
from fanin.benchmarks.codecs_train_runs import GLOO, rate_in_words
from fanin.benchmarks.processor import busy_in_words
from fanin.emulation import record
from fanin.emulation.figures import FigureTable
from fanin.emulation.recording import Beginning, finished

MAX_LABEL = 32
"""Characters of a codec in a legend."""


def verdicts(rows: list[Row]) -> list[str]:
    """Sentences that name the codec that reaches the target first, for each task, number of workers and rate."""
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
    """A sentence on the first codec's speed if every worker had cores of its own, where this machine's processors bound
    its steps.
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


def record_of(plan: Plan, rows: list[Row], command: str, beginning: Beginning) -> record.RunRecord:
    """For the page: the curves, times to the target, and the tables as notes."""
    timed, shown = [row for row in rows if row.rate_bit_s is not None], labels(plan.rivals)
    # Without rates, steps stand in the place of seconds on the axis of time.
    drawn = [(row, 1.0 if row.step_s is None else row.step_s) for row in timed or rows]
    return finished(
        beginning,
        kind="bench",
        title=_title(plan),
        command=command,
        settings={
            "workers": ",".join(map(str, plan.workers)),
            "task": ",".join(plan.tasks),
            "repeats": plan.repeats,
            "timed_steps": plan.timed_steps,
        },
        progress=[
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
        quantities=[
            record.Quantity(
                plot="Time to the loss of float32 over gloo",
                name=shown[row.codec],
                value=row.to_target_s,
                unit="s",
                group=_case(row),
            )
            for row in timed
        ],
        notes=[*verdicts(rows), *map(_in_words, rows)],
    )


def labels(codecs: list[str]) -> dict[str, str]:
    """Labels of curves and bars: a long codec's name is cut, and numbered where two begin alike."""
    found: dict[str, str] = {}
    for codec in codecs:
        short = codec if len(codec) <= MAX_LABEL else f"{codec[: MAX_LABEL - 5]}..."
        alike = sum(1 for other in found.values() if other.startswith(short))
        found[codec] = f"{short} {alike + 1}" if alike else short
    return found


def _title(plan: Plan) -> str:
    runs = f", {plan.repeats} seeds" if plan.repeats > 1 else ""
    return f"codecs: {' and '.join(plan.tasks)}, {', '.join(map(str, plan.workers))} workers{runs}"


def _in_words(row: Row) -> str:
    """A line of a table."""
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
    """For people: what is learned, how fast over links, and what bounds a step there."""
    learned = [row for row in rows if row.rate_bit_s is None]
    timed = [row for row in rows if row.rate_bit_s is not None]
    return [_learned_table(plan, learned), *([_timed_table(plan, timed), _bounds_table(timed)] if timed else [])]


def _learned_table(plan: Plan, rows: list[Row]) -> FigureTable:
    found = FigureTable(_title(plan), ("codec", "loss", "to gloo's", "accuracy", "points", "steps"))
    case = ""
    for row in rows:
        if _case(row) != case:
            case = _case(row)
            found.add_section(f"{case}, {row.steps} steps, target loss {row.target_loss:.3f}")
        found.add(
            row.codec,
            f"{row.loss:.3f}{_range(row.loss_range, '.3f')}",
            f"{row.loss_change:+.2%}{_range(row.loss_change_range, '.2f', 100)}",
            f"{row.accuracy:.1%}",
            f"{row.accuracy_change * 100:+.2f}{_range(row.accuracy_change_range, '.2f', 100)}",
            "never" if row.to_target_steps is None else f"{row.to_target_steps:.0f}",
        )
    found.caption = (
        f"on the test set at the end, +- half of the 95 % interval over {plan.repeats} seeds; points: of accuracy "
        f"above gloo's float32; steps: to its loss plus {TARGET_SHARE:.0%}"
    )
    return found


def _range(half: float | None, form: str, times: float = 1) -> str:
    return "" if half is None else f" +-{half * times:{form}}"


def _timed_table(plan: Plan, rows: list[Row]) -> FigureTable:
    found = FigureTable(
        "the same over links", ("codec", "ms/step", "busy", "bytes out", "saved", "to target", "to gloo")
    )
    for row in _by_case(rows, found):
        found.add(
            row.codec,
            _ms(row.step_s),
            busy_in_words(row.processor),
            f"{row.bytes_out:,.0f}",
            f"{row.saved:.1f}",
            "never" if row.to_target_s is None else f"{row.to_target_s:.1f} s",
            "" if row.speed_up is None else f"{row.speed_up:.1f}",
        )
    found.caption = (
        f"medians of {plan.timed_steps} steps, the first two left out; busy: this machine's processors, with all "
        "workers on them (*: they set the time); bytes per step of the worker's device, headers included"
    )
    return found


def _bounds_table(rows: list[Row]) -> FigureTable:
    found = FigureTable(
        "what bounds a step", ("codec", "bound by", "link", "no links", "codec's", "worker's", "own core", "to gloo")
    )
    gloo = rows[0]
    for row in _by_case(rows, found):
        gloo = row if row.codec == GLOO else gloo  # the first one of each case
        speed_up = row.own_core_speed_up(gloo)
        found.add(
            row.codec,
            "" if row.bound_by is None else f"{row.bound_by[0]} {row.bound_by[1]:.0%}",
            _ms(row.link_s),
            _ms(row.without_links_s),
            _ms(row.codec_s),
            _ms(row.processor_s),
            _ms(row.own_core_s),
            "" if speed_up is None else f"{speed_up:.1f}",
        )
    found.caption = (
        "milliseconds of a step; bound by: what takes more of it, the bytes alone on the link, or the same step "
        "without links; link: what the bytes alone take; no links: the same step with all workers on this machine's "
        "processors alone; codec's: its arithmetic, beside the other workers; worker's: what one worker used of a "
        "processor; own core: link and worker's, a step of workers with a core each if nothing overlaps, and by that "
        "the time to the target compared with gloo's"
    )
    return found


def _by_case(rows: list[Row], table: FigureTable) -> Iterator[Row]:
    """The rows, with a section of the table for each case."""
    case = ""
    for row in rows:
        if _case(row) != case:
            case = _case(row)
            table.add_section(f"{case}, target loss {row.target_loss:.3f}")
        yield row


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f}"
