"""A budget of processor time for the control port, so that it does not slow down the data. No clock of its own.

Rules
-----
* Anybody can reach the control port, and a message costs the switch ten times what it costs its sender. So control has
  a share of one processor: credit grows at that rate, up to a burst, and each turn pays for the time that it took.
* Without credit the port is not read, and messages wait in the kernel. Events of the data plane and timers are never
  delayed. The burst suffices for the ranks of a large job to join and to start.
"""

from __future__ import annotations

CONTROL_SHARE = 0.15
"""Share of one processor. The Python engine shares its interpreter with control, so a job keeps at least the rest."""
CONTROL_BURST_S = 0.5
"""Largest credit in seconds of processor time, enough for about 5,000 requests at once."""


class WorkBudget:
    """Credit in seconds of processor time; a new budget has the full burst."""

    def __init__(self, now: float, share: float = CONTROL_SHARE, burst_s: float = CONTROL_BURST_S) -> None:
        """`now`: seconds, of any clock that only grows. `share`: 0..1 of a processor."""
        self._share, self._burst_s = share, burst_s
        self._credit_s, self._counted_s = burst_s, now

    def spend(self, work_s: float, now: float) -> None:
        """Pay for work that was done until `now`."""
        self._earn(now)
        self._credit_s -= work_s

    def resume_s(self, now: float) -> float:
        """Time from which work is allowed again: `now` with credit, or later."""
        self._earn(now)
        return now if self._credit_s >= 0 else now - self._credit_s / self._share

    def _earn(self, now: float) -> None:
        self._credit_s = min(self._burst_s, self._credit_s + max(0.0, now - self._counted_s) * self._share)
        self._counted_s = max(self._counted_s, now)
