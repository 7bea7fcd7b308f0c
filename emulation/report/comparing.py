"""Two runs side by side, as a record of its own: the same figures of both, in one page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from fanin.emulation.report.drawing import time_label
from fanin.emulation.report.losses import retransmissions
from fanin.emulation.report.steady import all_step_times_s, mean_shares, median_step_s
from fanin.records.record import VERSION, Quantity, RunRecord, Scalar

SLOW_QUANTILE = 10
"""The slowest 1 / SLOW_QUANTILE of the steps takes longer than the quantile that is shown."""
ALIKE = 1.02
"""A ratio below which two runs count as equally fast."""
STEP, PARTS, SHARE = "How long a step takes", "What a step consists of", "Packets sent again"


def compared(first: RunRecord, second: RunRecord, names: tuple[str, str]) -> RunRecord:
    """The record of a comparison: quantities of both, their curves under their names, and their commands as notes."""
    runs = tuple(zip(names, (first, second), strict=True))
    return RunRecord(
        version=VERSION,
        kind="comparison",
        title=f"{names[0]} and {names[1]}",
        command="\n".join(dict.fromkeys((first.command, second.command))),
        started=second.started,
        duration_s=first.duration_s + second.duration_s,
        outcome="finished" if first.outcome == second.outcome == "finished" else "interrupted",
        error="; ".join(f"{name}: {run.error}" for name, run in runs if run.error),
        software=second.software if first.software == second.software else "",
        machine=second.machine if first.machine == second.machine else "",
        settings=_differences(first, second, names),
        quantities=tuple(_quantities(runs)),
        progress=tuple(
            replace(each, label=f"{name}, {each.label}" if each.label else name)
            for name, run in runs
            for each in run.progress
        ),
        notes=tuple(f"{name}: {note}" for name, run in runs for note in run.notes),
    )


def verdict(record: RunRecord) -> list[str]:
    """Return up to two sentences: which run is faster, and the largest change."""
    steps = [each for each in record.quantities if each.plot == STEP and each.group == "median"]
    if len(steps) != 2 or steps[0].value is None or steps[1].value is None or not steps[0].value or not steps[1].value:
        return ["One of the runs has no steps that could be compared."]
    first, second = steps
    assert first.value is not None
    assert second.value is not None
    ratio = first.value / second.value
    word = f"{ratio:.3g} times as fast" if ratio >= 1 else f"{1 / ratio:.3g} times as slow"
    if 1 / ALIKE < ratio < ALIKE:
        word = "as fast, within 2 %"
    said = [
        f"A step of {second.name} takes {time_label(second.value)}, and one of {first.name} {time_label(first.value)}: "
        f"{second.name} is {word}."
    ]
    parts = [each for each in record.quantities if each.plot == PARTS]
    grown: dict[str, float] = defaultdict(float)
    for each in parts:
        grown[each.group] += (each.value or 0.0) * (1 if each.name == second.name else -1)
    if grown and max(map(abs, grown.values())) >= (ALIKE - 1) * first.value:
        most = max(grown, key=lambda activity: abs(grown[activity]))
        change = "more" if grown[most] > 0 else "less"
        said.append(f"The largest change is in {most}: {time_label(abs(grown[most]))} {change} per step.")
    return said


def _quantities(runs: tuple[tuple[str, RunRecord], ...]) -> Iterator[Quantity]:
    for name, run in runs:
        times = all_step_times_s(run.workers)
        slow = statistics.quantiles(times, n=SLOW_QUANTILE)[-1] if len(times) > 1 else None
        caption = "Of all ranks, the first step left out."
        yield Quantity(plot=STEP, group="median", name=name, value=median_step_s(run), unit="s", caption=caption)
        yield Quantity(plot=STEP, group=f"one in {SLOW_QUANTILE} takes longer", name=name, value=slow, unit="s")
    for name, run in runs:
        step_s = median_step_s(run)
        for activity, share in mean_shares(run.workers).items():
            value = None if step_s is None else share * step_s
            caption = "Shares of all ranks' time, start-up left out, times the median step."
            yield Quantity(plot=PARTS, group=activity, name=name, value=value, unit="s", caption=caption)
    for name, run in runs:
        resent, sent = retransmissions(run), sum(worker.counters.get("packets_out", 0.0) for worker in run.workers)
        if resent and sent:
            yield Quantity(plot=SHARE, name=name, value=resent / sent, unit="share", caption="Of all packets sent.")


def _differences(first: RunRecord, second: RunRecord, names: tuple[str, str]) -> dict[str, Scalar]:
    """Settings in which the runs differ, with both values as text."""
    found: dict[str, Scalar] = {}
    for key in first.settings.keys() | second.settings.keys():
        one, other = first.settings.get(key), second.settings.get(key)
        if one != other and key != "job":
            found[key] = f"{one} ({names[0]}), {other} ({names[1]})"
    return dict(sorted(found.items()))
