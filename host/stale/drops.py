"""Measures the share of a worker's gradients that is dropped as too old: when to warn, and the least K it calls for.

Rounds that close without a worker make its gradients old. Over slow links that can be all workers' at once: rounds of
few contributions follow each other faster than any gradient gets there, `skip` drops most of them, and training stands
still, though it looks busy. The cure is larger rounds: with K = N nothing is dropped.
No clock: the time is a parameter.
"""

from __future__ import annotations

from collections import deque

WINDOW_GRADIENTS = 20
"""Number of a worker's latest gradients over which the dropped share is computed."""
MOST = 0.5
"""A share beyond which training drops most of what it computes."""
FEW = 0.1
"""A share below which K may be smaller again."""
CALM_LOOKS = 10
"""Observations of few drops in a row after which K falls by one; it rises at the first observation of many."""
WARNING_INTERVAL_S = 30.0
"""Least time between two warnings of one worker."""


class DropWatch:
    """The share of one worker's gradients that are dropped, and whether that is worth a warning."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, int]] = deque([(0, 0)], maxlen=WINDOW_GRADIENTS + 1)
        self._next_warning_s = float("-inf")

    @property
    def share(self) -> float:
        """Share of the last WINDOW_GRADIENTS that was dropped, 0..1; 0 until there are as many."""
        (given, lost), (handed_in, dropped) = self._counts[0], self._counts[-1]
        return (dropped - lost) / (handed_in - given) if len(self._counts) > WINDOW_GRADIENTS else 0.0

    def handed_in(self, handed_in: int, dropped: int, now: float) -> bool:
        """Count one more gradient, given the worker's totals; return whether to warn now that most are dropped."""
        self._counts.append((handed_in, dropped))
        if self.share <= MOST or now < self._next_warning_s:
            return False
        self._next_warning_s = now + WARNING_INTERVAL_S
        return True


class QuorumFloor:
    """Least K to allow, with N = `workers`: half of the way to N when most is dropped, lower again when little is."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.floor = 1
        self._calm = 0

    def observe(self, share: float, quorum: int) -> int:
        """Take in the share that was dropped under this K, and return the least K from now on."""
        if share > MOST:
            present = max(quorum, self.floor)
            self.floor = present + (self.workers - present + 1) // 2
        self._calm = self._calm + 1 if share < FEW else 0
        if self._calm >= CALM_LOOKS:
            self._calm, self.floor = 0, max(self.floor - 1, 1)
        return self.floor
