"""Compensation of stale gradients by predicted loss, after LC-ASGD (Li, He, Ren and Mao, ICPP 2020).

A gradient that lands `age` versions later was computed at a loss that is out of date by then. LC-ASGD predicts the loss
for when it lands and lets the worker's backward pass start from that loss. A backward pass is linear in what it starts
from, so the same compensation is a factor on the gradient: predicted loss over computed loss. Where the paper trains an
LSTM at the parameter server to predict, this is the trend of the logarithm of the worker's own losses, a line fitted
with exponentially fading weights: there is no server, and a factor needs no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY = 0.95
"""Factor on a loss's weight with each later loss, so that about the last twenty count."""
MIN_RATIO, MAX_RATIO = 0.25, 1.0
"""Bounds of the factor on a gradient: a prediction never enlarges it, and never makes it vanish."""
MIN_OBSERVATIONS = 5


@dataclass(slots=True)
class LossPredictor:
    """The trend of log(loss) against the version, by weighted least squares."""

    _count: int = 0
    _weight: float = 0.0
    _mean_x: float = 0.0
    _mean_y: float = 0.0
    _spread: float = 0.0
    """Weighted sum of squares of x about its mean."""
    _together: float = 0.0
    """Weighted sum of products of x and y about their means."""

    def observe(self, version: int, loss: float) -> None:
        """Take in a loss that was computed on this version; one that is not positive and finite is ignored."""
        if not (math.isfinite(loss) and loss > 0):
            return
        self._count += 1
        self._weight = MEMORY * self._weight + 1.0
        dx, dy = version - self._mean_x, math.log(loss) - self._mean_y
        share = 1.0 / self._weight
        self._mean_x += share * dx
        self._mean_y += share * dy
        self._spread = MEMORY * self._spread + (1.0 - share) * dx * dx
        self._together = MEMORY * self._together + (1.0 - share) * dx * dy

    @property
    def slope(self) -> float:
        """Change of log(loss) per version; 0 as long as little is known."""
        return self._together / self._spread if self._count >= MIN_OBSERVATIONS and self._spread > 0 else 0.0

    def ratio(self, age: int) -> float:
        """Loss predicted for `age` versions later, over the loss now, within MIN_RATIO..MAX_RATIO."""
        return min(max(math.exp(min(self.slope * age, 0.0)), MIN_RATIO), MAX_RATIO)
