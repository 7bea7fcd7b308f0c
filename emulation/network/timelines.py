"""From what workers wrote (host/torch/timeline.py) and what the switch counted to the time lines of a record.

Reductions overlap each other; what counts for a worker is when any was under way. Each such stretch is divided into
quantizing and sending, by the processor time that the engine counted, and waiting, the rest; they are drawn in that
order though in truth they alternate packet by packet. Between stretches the worker computes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanin.emulation.record import MAX_SPANS, Activity, Span

MAX_WAITED_FOR = 3


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How often each rank had been the last to contribute to a round, at one moment."""

    time_s: float
    last: dict[int, int]


@dataclass(slots=True)
class _Stretch:
    start_s: float
    end_s: float
    packing_s: float
    sending_s: float
    bytes: int
    step: int


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; none if there is no file. A last line that is incomplete is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def steps_in(path: Path) -> int:
    """Optimizer steps that a worker has finished, as far as it has written them down."""
    return sum(line["kind"] == "step" for line in read_lines(path))


def counters_in(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The engine's counters at the end; empty for a worker that did not come that far."""
    return next((line["counters"] for line in reversed(lines) if line["kind"] == "end"), {})


def spans(lines: Sequence[dict[str, Any]], origin_s: float, arrivals: Sequence[Arrivals]) -> tuple[Span, ...]:
    """A worker's time line, in seconds since `origin_s`, with who was waited for where the switch says so."""
    found: list[Span] = []
    begun_s = next((line["time"] for line in lines if line["kind"] == "start"), None)
    ended_s = next((line["time"] for line in reversed(lines) if line["kind"] in ("end", "step")), None)
    if begun_s is None:
        return ()
    at_s, step = begun_s, 0
    for stretch in _stretches(lines):
        if stretch.start_s > at_s:
            found.append(_span("compute", at_s, stretch.start_s, origin_s, stretch.step))
        found += _communication(stretch, origin_s, arrivals)
        at_s, step = max(at_s, stretch.end_s), stretch.step
        if len(found) >= MAX_SPANS:
            return tuple(found[:MAX_SPANS])
    if ended_s is not None and ended_s > at_s:
        found.append(_span("compute", at_s, ended_s, origin_s, step))
    return tuple(found)


def _stretches(lines: Sequence[dict[str, Any]]) -> Iterator[_Stretch]:
    """Reductions that overlap, as one."""
    open_: _Stretch | None = None
    reductions = [line for line in lines if line["kind"] == "reduction"]
    for line in sorted(reductions, key=lambda line: float(line["submitted"])):
        if open_ is not None and line["submitted"] <= open_.end_s:
            open_.end_s = max(open_.end_s, line["done"])
            open_.packing_s += line["packing_s"]
            open_.sending_s += line["sending_s"]
            open_.bytes += line["bytes"]
            continue
        if open_ is not None:
            yield open_
        open_ = _Stretch(
            line["submitted"], line["done"], line["packing_s"], line["sending_s"], line["bytes"], line["step"]
        )
    if open_ is not None:
        yield open_


def _communication(stretch: _Stretch, origin_s: float, arrivals: Sequence[Arrivals]) -> list[Span]:
    whole_s = stretch.end_s - stretch.start_s
    busy_s = stretch.packing_s + stretch.sending_s
    scale = min(1.0, whole_s / busy_s) if busy_s > 0 else 0.0
    packed_s = stretch.start_s + stretch.packing_s * scale
    sent_s = packed_s + stretch.sending_s * scale
    parts: list[Span] = []
    if packed_s > stretch.start_s:
        parts.append(_span("quantize", stretch.start_s, packed_s, origin_s, stretch.step, stretch.bytes))
    if sent_s > packed_s:
        parts.append(_span("send", packed_s, sent_s, origin_s, stretch.step, stretch.bytes))
    if stretch.end_s > sent_s:
        blamed = waited_for(arrivals, stretch.start_s, stretch.end_s)
        parts.append(_span("wait", sent_s, stretch.end_s, origin_s, stretch.step, stretch.bytes, blamed))
    return parts


def waited_for(arrivals: Sequence[Arrivals], start_s: float, end_s: float) -> tuple[int, ...]:
    """Ranks that came last in rounds between the samples around a stretch, the most frequent first."""
    before = [sample for sample in arrivals if sample.time_s <= start_s]
    after = [sample for sample in arrivals if sample.time_s >= end_s]
    if not after:
        return ()
    first = before[-1].last if before else {}
    late = {rank: count - first.get(rank, 0) for rank, count in after[0].last.items()}
    ranked = sorted((rank for rank, count in late.items() if count > 0), key=lambda rank: -late[rank])
    return tuple(ranked[:MAX_WAITED_FOR])


def _span(
    activity: Activity,
    start_s: float,
    end_s: float,
    origin_s: float,
    step: int,
    size: int = 0,
    blamed: tuple[int, ...] = (),
) -> Span:
    return Span(
        activity=activity,
        start_s=start_s - origin_s,
        end_s=end_s - origin_s,
        step=step,
        bytes=size,
        waited_for=blamed,
    )
