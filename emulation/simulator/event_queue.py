"""Virtual time: future actions in order, and a clock that jumps from one to the next.

Actions due at the same time are carried out in the order in which they were scheduled, so a run depends on its seed
alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]


class EventQueue:
    """The clock, in virtual seconds, and the scheduled actions."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        """Number of actions carried out so far, the current one included."""
        self._asked = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []

    def at(self, time_s: float, action: Action, *arguments: Any) -> None:
        """Schedule `action(*arguments)` at `time_s`, or now if that has passed."""
        self._asked += 1
        heapq.heappush(self._heap, (time_s if time_s > self.now else self.now, self._asked, action, arguments))

    def after(self, delay_s: float, action: Action, *arguments: Any) -> None:
        """Schedule `action(*arguments)` in `delay_s` seconds."""
        self.at(self.now + delay_s, action, *arguments)

    def next_at(self) -> float:
        """Time of the next action; infinity without any."""
        return self._heap[0][0] if self._heap else float("inf")

    def step(self) -> None:
        """Carry out the next action, which must exist."""
        self.now, _, action, arguments = heapq.heappop(self._heap)
        self.happened += 1
        action(*arguments)
