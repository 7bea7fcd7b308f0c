"""Choice of the quorum K at run time, from the workers' measured speeds or from the effect of K on the loss.

Workers that never wait deliver sum(1 / step) gradients per second, so a round of K lasts K / sum(1 / step), and a
gradient of a worker with steps of t seconds is t sum(1 / step) / K rounds old when it lands. A small K means many small
updates by old gradients; a large one waits for more of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fanin.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class SemiAsynchronousQuorum:
    """FedSA (Ma et al., IEEE JSAC 2021): K from the workers' heterogeneity under a staleness threshold.

    The smallest K with which nobody's gradients get older than `bound` rounds: below it the slowest would be dropped
    (its data never seen again), above it the fast ones wait for nothing.
    """

    bound: int
    """Largest age, in rounds, that a gradient may have."""

    def __post_init__(self) -> None:
        if not 1 <= self.bound < math.inf:
            raise ConfigurationError(
                f"bound = {self.bound}; rounds of K < N need at least 1. Remedy: a number of rounds, 1 or more"
            )

    def choose(self, steps_s: Sequence[float]) -> int:
        """K for workers whose steps last so many seconds."""
        workers = len(steps_s)
        rate = sum(1 / step_s for step_s in steps_s)
        return min(max(math.ceil(max(steps_s) * rate / self.bound - 1e-9), 1), workers)


@dataclass(slots=True)
class AdaptiveQuorum:
    """Adaptive asynchronous federated learning (Liu et al., INFOCOM 2021): K from the effect of the last choice.

    The paper lets a learned agent choose the fraction of workers per round from the state of the system. Here it is
    hill climbing on one number, the fall of log(loss) per second: keep the direction as long as it gets better, turn
    when it gets worse.
    """

    workers: int
    quorum: int
    _direction: int = -1
    _last_gain: float = -math.inf

    def observe(self, seconds: float, loss_before: float, loss_after: float) -> int:
        """Take in how the loss changed in so many seconds under the present K, and return the next K."""
        if seconds <= 0 or not (loss_before > 0 and loss_after > 0):
            return self.quorum
        gain = math.log(loss_before / loss_after) / seconds
        if gain < self._last_gain:
            self._direction = -self._direction
        self._last_gain = gain
        if not 1 <= self.quorum + self._direction <= self.workers:
            self._direction = -self._direction
        self.quorum = min(max(self.quorum + self._direction, 1), self.workers)
        return self.quorum
