"""The learning rate of stale gradients, after Zhang, Gupta, Lian and Liu, *Staleness-aware async-SGD*, IJCAI 2016."""

from __future__ import annotations


def staleness_factor(age: int) -> float:
    """The factor of a gradient of that age (equation 6): 1 / age, 1 if fresh."""
    return 1.0 / max(age, 1)
