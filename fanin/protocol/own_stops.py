"""Notices that the process itself was stopped (SIGSTOP, a paused container or virtual machine), from its turns alone.

Rules
-----
* Whoever watches others for silence asks to be woken at least every `tick_s` while it watches (`due_at` belongs into
  its `next_timer`), and calls `turn` with the time at the beginning of each turn.
* A turn that comes a tick or more after it was due means that nothing could be heard in between: `turn` returns for how
  long, and the caller moves its deadlines by that. So silence is measured in time during which it was listening.
* What is returned is at most `tick_s` less than the stop itself, and a stop shorter than two ticks may go unnoticed:
  the tick is a tenth of the timeout that is watched, or less.

Twin of native/machine/own_stops.hpp.
"""

from __future__ import annotations


class OwnStops:
    """Detects that this process was stopped, by the time at which its next turn was due."""

    __slots__ = ("_tick_s", "due_at")

    def __init__(self, tick_s: float | None = None) -> None:
        """`tick_s` in seconds; None: there is nobody to watch yet."""
        self._tick_s = tick_s
        self.due_at: float | None = None
        """When the next turn is due; None before the first one."""

    def watch_every(self, tick_s: float | None) -> None:
        """Set another tick, from the next turn on; None: watch no more."""
        self._tick_s = tick_s
        self.due_at = None

    def turn(self, now: float) -> float:
        """At the beginning of a turn: for how many seconds this process was stopped before it, 0 for not at all."""
        due_at, tick_s = self.due_at, self._tick_s
        if tick_s is None or (due_at is not None and now < due_at):
            return 0.0
        self.due_at = now + tick_s
        # R-MEMBER-8: nothing could be heard since the turn that was due.
        return now - due_at if due_at is not None and now - due_at >= tick_s else 0.0
