"""Choose one option per layer, so that the total price is least and the sum of errors within a bound.

    minimize sum over l of price[l][c_l]   subject to   sum over l of error[l][c_l] <= most

Solved by dynamic programming over errors in units of most / BUCKETS, each rounded up, so that the bound holds; the
answer is at least as cheap as the best one for a bound that is lower by one unit per layer.

Source: L-GreCo (Markov, Alimohammadi, Frantar, Alistarh, MLSys 2024).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BUCKETS = 10_000

Table = npt.NDArray[np.float64]
"""A value for each layer and choice, shape (layers, choices); infinite where a layer does not have the choice."""


def cheapest(prices: Table, errors: Table, most: float) -> list[int] | None:
    """The choice for each layer; of equally cheap ones the first. None where no choice keeps the bound."""
    layers, choices = prices.shape
    if not np.isfinite(most):
        return None
    units = np.full(errors.shape, np.inf)
    known = np.isfinite(errors) & np.isfinite(prices)
    with np.errstate(divide="ignore", over="ignore"):
        units[known] = np.ceil(errors[known] / most * BUCKETS) if most > 0 else np.where(errors[known] > 0, np.inf, 0.0)
    least = np.zeros(BUCKETS + 1)
    taken = np.zeros((layers, BUCKETS + 1), np.int32)
    for layer in range(layers):
        options = np.full((choices, BUCKETS + 1), np.inf)
        for choice in range(choices):
            need = units[layer, choice]
            if need <= BUCKETS:
                first = int(need)
                options[choice, first:] = least[: BUCKETS + 1 - first] + prices[layer, choice]
        taken[layer] = np.argmin(options, axis=0)
        least = options[taken[layer], np.arange(BUCKETS + 1)]
    if not np.isfinite(least[BUCKETS]):
        return None
    left, found = BUCKETS, [0] * layers
    for layer in reversed(range(layers)):
        found[layer] = int(taken[layer, left])
        left -= int(units[layer, found[layer]])
    return found
