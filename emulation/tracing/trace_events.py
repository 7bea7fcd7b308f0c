"""The trace-event format, as far as fanin writes it: JSON that ui.perfetto.dev and chrome://tracing open.

Google's document "Trace Event Format" describes it. A process is a rank or a switch, a thread one of its tracks. Slices
of one track must nest; slices that overlap otherwise would be drawn wrongly, so `Lanes` distributes them over several
tracks. Times are in seconds here, and in microseconds in the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fanin import files

US_PER_S = 1e6
ROUNDING_S = 1e-9
"""Largest difference of times that counts as none: the file's resolution is a nanosecond."""

Arguments = dict[str, object]


@dataclass(slots=True)
class Trace:
    """Events in the order in which they were added; `facts` are written beside them."""

    facts: dict[str, object] = field(default_factory=dict)
    _events: list[dict[str, Any]] = field(default_factory=list)

    def process(self, pid: int, name: str) -> None:
        """Name a process; processes are shown in the order of their numbers."""
        self._name(pid, 0, "process_name", {"name": name})
        self._name(pid, 0, "process_sort_index", {"sort_index": pid})

    def track(self, pid: int, tid: int, name: str) -> None:
        """Name a track of a process; tracks are shown in the order of their numbers."""
        self._name(pid, tid, "thread_name", {"name": name})
        self._name(pid, tid, "thread_sort_index", {"sort_index": tid})

    def slice(
        self, pid: int, tid: int, name: str, start_s: float, end_s: float, kind: str, **arguments: object
    ) -> None:
        """Add a slice, which has a duration."""
        length_us = round(_us(end_s) - _us(start_s), 3)
        self._add("X", pid, tid, name, start_s, kind, dur=length_us, args=arguments)

    def moment(self, pid: int, tid: int, name: str, time_s: float, kind: str, **arguments: object) -> None:
        """Add an event without a duration."""
        self._add("i", pid, tid, name, time_s, kind, s="t", args=arguments)

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events: names first, then by time; of slices that begin together, the longer one first."""
        return sorted(self._events, key=lambda event: (event["ph"] != "M", event["ts"], -event.get("dur", 0.0)))

    def write(self, path: Path) -> None:
        """Write the file; FaninError if it cannot be written."""
        body = {"traceEvents": self.events, "displayTimeUnit": "ms", "otherData": self.facts}
        files.write(path, json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n", "the trace")

    def _name(self, pid: int, tid: int, what: str, arguments: Arguments) -> None:
        self._events.append({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": arguments})

    def _add(self, phase: str, pid: int, tid: int, name: str, time_s: float, kind: str, **more: object) -> None:
        self._events.append({"ph": phase, "pid": pid, "tid": tid, "ts": _us(time_s), "name": name, "cat": kind, **more})


class Lanes:
    """Distributes slices over tracks so that no two of a track overlap. Slices must be given by ascending start."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []

    def take(self, start_s: float, end_s: float) -> int:
        """Number of the first track, from 0, that is free at `start_s`; it is then busy until `end_s`."""
        for lane, busy_until_s in enumerate(self._ends_s):
            if busy_until_s <= start_s + ROUNDING_S:
                self._ends_s[lane] = end_s
                return lane
        self._ends_s.append(end_s)
        return len(self._ends_s) - 1

    def at_least_one(self) -> None:
        """Make a first track, for moments, if no slice has made one."""
        if not self._ends_s:
            self._ends_s.append(float("-inf"))

    def __len__(self) -> int:
        """Number of tracks so far."""
        return len(self._ends_s)


def _us(time_s: float) -> float:
    return round(time_s * US_PER_S, 3)
