"""`wait`: every gradient is contributed, whatever its age; the others wait at the staleness bound.

A gradient whose round is over is folded into the next one, and its base is passed. N contributions come per iteration,
and K < N of them close a round: if all workers always contributed, rounds would run ahead of all workers as far as the
bound lets them, and each gradient would land S rounds late, even with equally fast workers. A late pass closes nothing,
so late workers slow the rounds down again.
"""

from __future__ import annotations

from fanin.host.stale.policies.policy import Fate, RoundPolicy


class Wait(RoundPolicy):
    """Loses nothing. The slowest worker sets the pace in the long run."""

    name = "wait"
    passes_over = False
    lands_folded = True

    def __init__(self) -> None:
        self._folded_last = False

    def fate(self, age: int, bound: int, *, over: bool) -> Fate:
        """Fold and pass if the round is over, unless the gradient before was folded; else contribute."""
        # Never twice in a row: a worker that is always late would otherwise contribute nothing. It contributes every
        # other time, late if need be.
        self._folded_last = over and not self._folded_last
        return Fate.FOLD_AND_PASS if self._folded_last else Fate.CONTRIBUTE

    @classmethod
    def default_quorum(cls, workers: int) -> int:
        """All but one, so that a round is nearly what a synchronous one is."""
        return max(workers - 1, 1)
