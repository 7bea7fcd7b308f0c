"""The outer step: how the ranks' mean delta moves the weights that all of them start from.

    d = mean of (x_start - x_w) / gap
    m <- momentum m + d, cut to the norm `clip`
    x_start <- x_start - lr (d + momentum m with Nesterov, else m)

With the defaults x_start becomes the mean of the workers' weights: local SGD. DiLoCo (Douillard et al., 2023) takes
lr 0.7, momentum 0.9 and Nesterov's; CO2 (Sun et al., ICLR 2024) momentum, the gap and the clipping.

Every rank computes the same step from the same mean, and must come to the same bits on any processor: everything here
is made of single element-wise operations, which IEEE 754 rounds alike everywhere; no library's reduction, whose order
depends on threads and vector widths, is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError

Floats = npt.NDArray[np.float32]

FOLD = 1 << 14
"""Elements that are squared at a time, a power of two."""
MEMORY = 0.9
"""Weight of the past in the running mean of the outer moves' norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """The outer optimizer; the same on every rank."""

    lr: float = 1.0
    """Outer learning rate, above 0."""
    momentum: float = 0.0
    """Share of the past in the outer momentum, 0..1 and below 1."""
    nesterov: bool = False
    """Whether the step looks ahead, as Nesterov's momentum does."""
    clip: float | None = None
    """Largest Euclidean norm of a fragment's momentum (CO2's outer momentum clipping), above 0; None: any."""
    gap: float | Literal["measured"] = 1.0
    """Divisor of a mean delta. "measured": 1 + the norm of what the start weights moved since the delta's base, over
    the running mean of the norms of their moves, so 1 without overlap. That is ours, after Gap-Aware (Barkai et al.,
    ICLR 2020); in CO2's released code it is the number 1."""

    def __post_init__(self) -> None:
        legal = 0 < self.lr < math.inf and 0 <= self.momentum < 1 and (self.clip is None or self.clip > 0)
        gap = self.gap == "measured" if isinstance(self.gap, str) else 0 < self.gap < math.inf
        if not legal or not gap or (self.nesterov and not self.momentum):
            raise ConfigurationError(
                f"{self}: lr, clip and gap (or 'measured') must be above 0, momentum in 0..1 and below 1, and above 0 "
                "with nesterov",
                "the outer optimizer",
            )


@dataclass(slots=True)
class OuterState:
    """Outer state of one fragment; the same bits on every rank."""

    start: Floats
    """Weights that all ranks start from, shape (n,)."""
    momentum: Floats
    """Shape (n,), or (0,) without momentum."""
    landed: int = 0
    """Means that were applied."""
    last_move: float = 0.0
    """Norm of the last move of `start`."""
    typical_move: float = 0.0
    """Running mean of these norms."""

    @classmethod
    def of(cls, start: Floats, outer: Outer) -> OuterState:
        """The state before the first meeting."""
        return cls(start, np.zeros(len(start) if outer.momentum else 0, np.float32))


def squared_norm(x: Floats) -> float:
    """Sum of squares in float64 with one fixed order of additions, so that any processor gets the same bits."""
    sums = np.zeros(FOLD)
    for first in range(0, len(x), FOLD):
        part = x[first : first + FOLD].astype(np.float64)
        sums[: len(part)] += part * part
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return float(sums[0])


def measured_gap(moved: float, typical: float) -> float:
    """1 + what the start weights moved since a delta's base, in typical moves."""
    return 1.0 + (moved / typical if typical > 0 else 0.0)


def take(state: OuterState, mean: Floats, outer: Outer, base: int) -> None:
    """Move `state` by a mean delta, shape (n,), which is overwritten. `base`: `landed` when the delta began."""
    gap = outer.gap
    if isinstance(gap, str):
        gap = measured_gap(state.last_move if state.landed > base else 0.0, state.typical_move)
    if gap != 1.0:
        mean /= np.float32(gap)
    move = mean
    if outer.momentum:
        state.momentum *= np.float32(outer.momentum)
        state.momentum += mean
        if outer.clip is not None:
            norm = math.sqrt(squared_norm(state.momentum))
            if norm > outer.clip:
                state.momentum *= np.float32(outer.clip / norm)
        if outer.nesterov:
            mean += state.momentum * np.float32(outer.momentum)
        else:
            move = state.momentum
    elif outer.clip is not None:
        norm = math.sqrt(squared_norm(mean))
        if norm > outer.clip:
            mean *= np.float32(outer.clip / norm)
    step = move if outer.lr == 1.0 else move * np.float32(outer.lr)
    state.start -= step
    state.landed += 1
    if outer.gap == "measured":
        state.last_move = math.sqrt(squared_norm(step))
        first = state.landed == 1
        past = state.last_move if first else state.typical_move
        state.typical_move = MEMORY * past + (1 - MEMORY) * state.last_move
