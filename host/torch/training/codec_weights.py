"""Weighted means of gradients, by samples for example, where ranks have unlike batches.

    y = sum over ranks of w_r x_r / W,   W = sum of w_r

Each rank multiplies its gradients by its weight before they are encoded, W travels beside them as an exact float64
sum, and what comes out is multiplied by N / W, rounded to float32 once, since codecs make means. So residuals are in
units of weight times gradient: over the steps, the sum of W y and what is owed is the sum of all w_r x_r.
"""

from __future__ import annotations

import math

import torch

from fanin.errors import ConfigurationError
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.work import FaninWork
from fanin.numerics.reduction import EXACT


def check_weight(weight: float) -> float:
    """Return a weight as a float. ConfigurationError unless it is finite, at least 0 and below 1e30."""
    if not (math.isfinite(weight) and 0 <= weight < 1e30):
        raise ConfigurationError(f"weight = {weight}; must be in 0..1e30", "weight")
    return float(weight)


class StepWeights:
    """One step's weight at this rank, and the sum of all."""

    def __init__(self, group: FaninProcessGroup, weight: float, step: int) -> None:
        """Start the sum of the weights."""
        self.own = weight
        self._size: int = group.size()
        self._step = step
        self._total = torch.tensor([weight], dtype=torch.float64, device="cpu")
        self.work: FaninWork = group.all_reduce_lanes(self._total, lanes=EXACT)

    def factor(self) -> float:
        """N / W, when W is there. ConfigurationError, on every rank alike, where all weights are 0."""
        self.work.wait()
        total = float(self._total[0])
        if total == 0:
            raise ConfigurationError(
                f"step {self._step}: the weights of all ranks are 0, so there is no mean. Remedy: skip the step on "
                "every rank"
            )
        return self._size / total
