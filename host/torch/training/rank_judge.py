"""Whether one rank's gradients are like the others': a test over steps with a stated rate of false alarms.

Of each rank, layer and watched step there are two numbers: the norm of the rank's gradient, and the cosine of the angle
between it and the mean of the other ranks' gradients. Ranks that draw from the same data are exchangeable, whatever the
model does and however training moves, so the test is built on nothing but that:

1. *Compared within the step.* The strangeness of a rank is how far its logarithmic norm is from the median of the other
   ranks', or its cosine below theirs, in units of their spread (median absolute deviation, of this step or the usual
   one, whichever is larger). What all ranks do together cancels out.
2. *Ranked among the past.* p = (1 + how many of the last WINDOW steps' values, of all ranks, are as strange) / (1 + how
   many there are): a conformal p-value (Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World,
   2005). Beyond the strangest value of the past, M, p falls as M / value does: tails are taken for as heavy as Cauchy's.
3. *Bets against it.* e = POWER p^(POWER - 1) has an expectation of at most 1 for a healthy rank (Vovk, Wang: E-values,
   Annals of Statistics 2021), and so has the mean of e over layers, however they depend on each other.
4. *Added up over steps.* R <- (1 + R) e, the detector of Shiryaev and Roberts, which rises by a factor per strange step
   and forgets in a few usual ones. A healthy rank's R reaches T in T watched steps on average at the earliest (Shin,
   Ramdas, Rinaldo: E-detectors, 2023). With T = 2 N / rate, for N ranks and two numbers, all ranks together have at
   most `rate` false alarms per watched step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOW = 64
"""Watched steps whose values are remembered."""
WARM_UP = 16
"""Watched steps before the first judgement."""
MIN_RANKS = 3
"""Fewer cannot say which of them is the odd one."""
POWER = 0.15
"""Near 1 / ln(WINDOW N), where a value beyond all of the past counts most."""
NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution whose median absolute deviation is 1."""
SUSPECT = 1e3
"""Values of a rank whose R has come so far are no part of the past that others are compared with."""
LEAST_SPREAD = 1e-6
"""Relative differences of norms, and differences of cosines, below which ranks are alike: of rounding."""
MOST_EVIDENCE = 1e60

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rank whose gradients are not like the others'."""

    rank: int
    kind: str
    """`norm` or `agreement`: which of the two numbers."""
    layer: int
    """Index of the layer where it is strangest."""
    norm_ratio: float
    """Norm of the rank's gradient over the median of the other ranks', in this layer and step."""
    cosine: float
    """Cosine between it and the mean of the others' there."""
    usual_cosine: float
    """Median of the other ranks' cosines there."""


class RankJudge:
    """Judges the ranks of one group, step by step."""

    def __init__(self, ranks: int, layers: int, false_alarms_per_step: float) -> None:
        self._evidence = np.zeros((2, ranks))
        """R, by number (norm, cosine) and rank."""
        self._threshold = 2 * ranks / false_alarms_per_step
        self._past: deque[Values] = deque(maxlen=WINDOW)
        """Strangeness in past steps, shape (2, ranks, layers); NaN where it is no part of the past."""
        self._spreads: deque[Values] = deque(maxlen=WINDOW)
        """Spreads of past steps, shape (2, layers)."""

    def judge(self, norms: Values, cosines: Values) -> list[Finding]:
        """Take in a step; ranks that turn out to be unlike the others, each once until it is like them again.

        `norms` and `cosines`: shape (ranks, layers). Layers with a norm that is zero or not finite are left out.
        """
        usable = np.isfinite(norms).all(axis=0) & (norms > 0).all(axis=0) & np.isfinite(cosines).all(axis=0)
        logs = np.where(usable, np.log(np.where(usable, norms, 1.0)), 0.0)
        numbers = np.stack([logs, np.where(usable, cosines, 0.0)])
        strange, spread = self._strangeness(numbers)
        strange[:, :, ~usable] = np.nan
        findings = []
        if len(self._past) >= WARM_UP:
            bets = self._bets(strange)
            before = self._evidence
            shares = np.nanmean(bets, axis=2) if usable.any() else np.ones(before.shape)
            self._evidence = np.minimum((1.0 + before) * shares, MOST_EVIDENCE)
            for number, rank in np.argwhere((self._evidence >= self._threshold) & (before < self._threshold)).tolist():
                layer = int(np.nanargmax(bets[number, rank]))
                findings.append(self._finding(number, rank, layer, norms, cosines))
        trusted = self._evidence.max(axis=0) < SUSPECT
        self._past.append(np.where(trusted[None, :, None], strange, np.nan))
        self._spreads.append(spread)
        return findings

    def _strangeness(self, numbers: Values) -> tuple[Values, Values]:
        """How far each rank is from the others, shape of `numbers`, and the ranks' spread, shape (2, layers)."""
        ranks = numbers.shape[1]
        centre = np.median(numbers, axis=1, keepdims=True)
        spread = np.median(np.abs(numbers - centre), axis=1)
        usual = np.median(np.stack([*self._spreads, spread]), axis=0)
        strange = np.empty_like(numbers)
        for rank in range(ranks):
            others = np.delete(numbers, rank, axis=1)
            middle = np.median(others, axis=1)
            own_spread = np.median(np.abs(others - middle[:, None]), axis=1)
            unit = NORMAL_MAD * np.maximum(np.maximum(own_spread, usual), LEAST_SPREAD)
            strange[:, rank] = (numbers[:, rank] - middle) / unit
        strange[0] = np.abs(strange[0])
        strange[1] = -strange[1]
        return strange, spread

    def _bets(self, strange: Values) -> Values:
        """e of each number, rank and layer."""
        past = np.stack(self._past)  # (steps, 2, ranks, layers)
        past = past.transpose(1, 3, 0, 2).reshape(2, strange.shape[2], -1)
        bets = np.full(strange.shape, np.nan)
        for number in range(2):
            for layer in range(strange.shape[2]):
                known = np.sort(past[number, layer][~np.isnan(past[number, layer])])
                values = strange[number, :, layer]
                if not len(known) or np.isnan(values).any():
                    continue
                beyond = len(known) - np.searchsorted(known, values, side="left")
                p = (1.0 + beyond) / (1.0 + len(known))
                most = max(known[-1], 1.0)
                p *= np.minimum(1.0, most / np.maximum(values, most))
                bets[number, :, layer] = POWER * p ** (POWER - 1.0)
        return bets

    @staticmethod
    def _finding(number: int, rank: int, layer: int, norms: Values, cosines: Values) -> Finding:
        others = np.delete(norms[:, layer], rank)
        return Finding(
            rank=rank,
            kind=("norm", "agreement")[number],
            layer=layer,
            norm_ratio=float(norms[rank, layer] / np.median(others)),
            cosine=float(cosines[rank, layer]),
            usual_cosine=float(np.median(np.delete(cosines[:, layer], rank))),
        )
