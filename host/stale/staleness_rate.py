"""The learning rate of stale gradients, after Zhang, Gupta, Lian and Liu, *Staleness-aware async-SGD*, IJCAI 2016."""

from __future__ import annotations


def staleness_factor(age: int) -> float:
    """Factor of the learning rate for a gradient of that age (equation 6): 1 / age, and 1 at age 0."""
    return 1.0 / max(age, 1)
