"""Makes workers' time lines for a record, from the files of host/torch/collectives/timeline.py and a switch's counts.

Overlapping reductions are merged into one stretch of communication. A stretch is divided into quantizing and sending,
by the processor time that the engine counted, and waiting, the rest; they are drawn in this order, although in truth
they alternate packet by packet. Between stretches the worker computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanin.emulation.process_output import object_in
from fanin.records.record import MAX_SPANS, Activity, Span

MAX_WAITED_FOR = 3
MAX_NUMBER = float(1 << 63)
"""Largest legal count or time: fanin writes no larger ones."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How often each rank had, up to `time_s`, been the last to contribute to a round."""

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
    """Return the objects of a file of JSON lines; empty if there is no file. Lines that hold no object are left out: an
    incomplete last line, or damage by a full disk or another program.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    return [found for line in lines if (found := object_in(line)) is not None]


def legal(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that have the form of host/torch/collectives/timeline.py; all other functions here need such lines."""
    return [line for line in lines if _is_legal(line)]


def legal_samples(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that have the form of stats_sampler.py."""
    return [
        line
        for line in lines
        if _is_number(line.get("time"))
        and _are_counters(line.get("counters"))
        and _are_counters(line.get("last_arrivals"))
        and all(rank.isdecimal() for rank in line["last_arrivals"])
    ]


_NUMBERS = {
    "start": ("time",),
    "reduction": ("submitted", "done", "bytes", "packing_s", "sending_s", "step"),
    "step": ("time", "step"),
    "meeting": ("number", "fragment", "launched", "submitted", "awaited", "landed"),
    "end": ("time",),
}
"""By kind of line, the fields that must be numbers."""
_LATER_NUMBERS = ("decoding_s", "ticket", "rank", "restart", "size", "unix_s")
_LATER_TEXTS = ("job", "host", "clock")
"""Fields that may be missing, because earlier versions do not write them."""


def _is_legal(line: dict[str, Any]) -> bool:
    kind = line.get("kind")
    numbers = _NUMBERS.get(kind) if isinstance(kind, str) else None
    return (
        numbers is not None
        and all(_is_number(line.get(name)) for name in numbers)
        and (kind != "end" or _are_counters(line.get("counters")))
        and all(_is_number(line.get(name, 0)) for name in _LATER_NUMBERS)
        and all(isinstance(line.get(name, ""), str) for name in _LATER_TEXTS)
    )


def _are_counters(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def steps_in(path: Path) -> int:
    """Number of optimizer steps that a worker has written to its file so far."""
    return sum(line["kind"] == "step" for line in legal(read_lines(path)))


def died_at(lines: Sequence[dict[str, Any]], step: int) -> float | None:
    """Time, on its own clock, at which a worker to be killed after `step` finished that step; None if it never did.

    Only its first life counts: a worker that is started again is not killed again (host/torch/collectives/timeline.py).
    """
    starts = [at for at, line in enumerate(lines) if line["kind"] == "start"]
    first = lines[: starts[1]] if len(starts) > 1 else lines
    return next((float(line["time"]) for line in first if line["kind"] == "step" and line["step"] == step), None)


def counters_in(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The engine's counters at the worker's end; empty if the worker did not reach its end."""
    return next((line["counters"] for line in reversed(lines) if line["kind"] == "end"), {})


def spans(lines: Sequence[dict[str, Any]], origin_s: float, arrivals: Sequence[Arrivals]) -> tuple[Span, ...]:
    """A worker's time line, in seconds since `origin_s`; waits name the ranks that came last, by `arrivals`."""
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
    """Merge reductions that overlap in time, and yield the results in order."""
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
    """Ranks that were the last in rounds between the samples around a stretch, the most frequent first; at most 3."""
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
