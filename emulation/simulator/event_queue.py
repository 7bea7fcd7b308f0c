"""Virtual time: future events in order, and a clock that jumps from one to the next.

Events that are due at the same time happen in the order of their calls, so that a run depends on its seed alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]


class EventQueue:
    """The clock, in seconds, and the actions to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        """How many actions were carried out: the number of the current one."""
        self._asked = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []

    def at(self, time_s: float, action: Action, *arguments: Any) -> None:
        """Have `action(*arguments)` carried out at `time_s`, or now if that has passed."""
        self._asked += 1
        heapq.heappush(self._heap, (time_s if time_s > self.now else self.now, self._asked, action, arguments))

    def after(self, delay_s: float, action: Action, *arguments: Any) -> None:
        """The same, so many seconds from now."""
        self.at(self.now + delay_s, action, *arguments)

    def next_at(self) -> float:
        """When the next action is due; infinity when there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def step(self) -> None:
        """Carry out the next action, which must exist."""
        self.now, _, action, arguments = heapq.heappop(self._heap)
        self.happened += 1
        action(*arguments)
