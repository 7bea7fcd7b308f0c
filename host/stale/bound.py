"""The staleness bound at run time, after DSSP (Zhao et al., *Dynamic stale synchronous parallel*, ICDCS 2019).

SSP with a fixed S makes the fastest worker wait whenever it is S ahead, at whatever moment that happens to be. DSSP
gives a range [lowest, highest] and looks a little ahead instead: from when the fastest and the slowest worker last
contributed and how long their steps take it extrapolates when each will contribute next, and lets the fastest go on to
that one of its next contributions after which it has to wait least for the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanin.errors import ConfigurationError

WAIT_TOLERANCE = 0.02
"""If the waits of two bounds differ by less than this part of the fastest worker's step, the smaller is taken."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker's pace: when it last contributed, in seconds since the job's start, and how long its step took."""

    last_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBound:
    """The range that S is chosen from. `highest` is what memory and lanes are sized for."""

    lowest: int = 1
    highest: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.lowest <= self.highest:
            raise ConfigurationError(f"staleness from {self.lowest} to {self.highest}: no such range", "the range")

    def choose(self, paces: Sequence[Pace]) -> int:
        """S for the next steps; the lowest if there is no other worker to compare with."""
        if len(paces) < 2:
            return self.lowest
        fastest = min(paces, key=lambda pace: pace.step_s)
        slowest = max(paces, key=lambda pace: pace.step_s)
        best, least = self.lowest, self._wait(fastest, slowest, 0)
        for extra in range(1, self.highest - self.lowest + 1):
            wait_s = self._wait(fastest, slowest, extra)
            if wait_s < least - WAIT_TOLERANCE * fastest.step_s:
                best, least = self.lowest + extra, wait_s
        return best

    @staticmethod
    def _wait(fastest: Pace, slowest: Pace, extra: int) -> float:
        """How long the fastest waits for the slowest's next contribution after `extra` more of its own."""
        stops_s = fastest.last_s + extra * fastest.step_s
        behind_s = stops_s - slowest.last_s
        steps = max(-(-behind_s // slowest.step_s), 0.0) if slowest.step_s > 0 else 0.0
        return slowest.last_s + steps * slowest.step_s - stops_s
