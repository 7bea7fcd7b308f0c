"""Whether one rank's gradients are like the others': a test over steps with a stated rate of false alarms.

Of each rank, layer and watched step there are two numbers: the norm of the rank's gradient, and the cosine of the angle
between it and the mean of the other ranks' gradients. Ranks that draw from the same data are exchangeable, whatever the
model does and however training moves, so the test is built on nothing but that:

1. *Compared within the step.* The strangeness of a rank is how far its logarithmic norm is from the median of the other
   ranks', or its cosine below theirs, in units of their spread (median absolute deviation, of this step or the usual
   one, whichever is larger). Changes that all ranks share cancel out.
2. *Ranked among the past.* p = (1 + how many of the last WINDOW steps' values, of all ranks, are as strange) / (1 + how
   many there are): a conformal p-value (Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World,
   2005). Beyond the strangest value of the past, M, p falls as (M / value)^TAIL: heavier tails than
   those of values in units of the others' spread.
3. *Bets against it.* e = POWER p^(POWER - 1) has an expectation of at most 1 for a healthy rank (Vovk, Wang: E-values,
   Annals of Statistics 2021), and the mean of e over layers has one, too, however layers depend on each other.
4. *Added up over steps.* R <- (1 + R) e, the detector of Shiryaev and Roberts, which rises by a factor per strange step
   and forgets in a few usual ones. A healthy rank's R reaches T in T watched steps on average at the earliest (Shin,
   Ramdas, Rinaldo: E-detectors, 2023). With T = KINDS N / rate, for N ranks, all ranks together have at
   most `rate` false alarms per watched step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WINDOW = 128
"""Watched steps whose values are remembered."""
WARM_UP = 16
"""Watched steps before the first judgement."""
MIN_RANKS = 3
"""Fewer cannot say which of them is the odd one."""
POWER = 0.14
"""Near 1 / ln(WINDOW N), where a value beyond all of the past counts most."""
TAIL = 2.0
"""Exponent of the tail beyond the past: of Student's t with two degrees of freedom."""
NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution whose median absolute deviation is 1."""
SUSPECT = 1e3
"""A rank with an R of this and more adds no values to the past with which ranks are compared."""
LEAST_SPREAD = 1e-6
"""Relative differences of norms, and differences of cosines, below which ranks are alike: of rounding."""
MOST_EVIDENCE = 1e60
KINDS = ("norm", "agreement", "both")
"""Tests of each rank; `both` adds up how much longer its gradients are and how much less they agree."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rank whose gradients are not like the others'."""

    rank: int
    kind: str
    """Name of the test, one of KINDS."""
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

    def __init__(self, ranks: int, false_alarms_per_step: float) -> None:
        self._evidence = np.zeros((len(KINDS), ranks))
        """R, by kind and rank."""
        self._threshold = len(KINDS) * ranks / false_alarms_per_step
        self._taken = 0
        """Steps that were taken in; each has its place in the rings below, modulo WINDOW."""
        self._past: Values = np.empty(0)
        """Strangeness in past steps, shape (kinds, 1 + layers, WINDOW, ranks); -inf where it is no part of the past."""
        self._spreads: Values = np.empty(0)
        """Spreads of past steps, shape (WINDOW, 2, layers)."""
        self._others = np.array([[other for other in range(ranks) if other != rank] for rank in range(ranks)])

    def judge(self, norms: Values, cosines: Values) -> list[Finding]:
        """Take in a step; returns ranks that turn out to be unlike the others, each once until it is like them again.

        `norms` and `cosines`: shape (ranks, layers). Layers with a norm that is zero or not finite are left out.
        """
        fine = np.isfinite(norms) & (norms > 0) & np.isfinite(cosines)
        usable = np.asarray(fine.all(axis=0))
        if not usable.any():
            return []
        if not self._taken:
            layers = norms.shape[1]
            self._past = np.full((len(KINDS), 1 + layers, WINDOW, len(norms)), -np.inf)
            self._spreads = np.zeros((WINDOW, 2, layers))
        logs = np.log(np.where(usable, norms, 1.0))
        strange, spread = self._strangeness(np.stack([logs, np.where(usable, cosines, 0.0)]), usable)
        findings = []
        if self._taken >= WARM_UP:
            bets = self._bets(strange)
            before = self._evidence
            shares = (bets[:, :, 0] + np.nanmean(bets[:, :, 1:], axis=2)) / 2.0
            self._evidence = np.minimum((1.0 + before) * shares, MOST_EVIDENCE)
            unlike = self._evidence >= self._threshold
            for rank in np.flatnonzero(unlike.any(axis=0) & ~(before >= self._threshold).any(axis=0)).tolist():
                kind = int(np.argmax(unlike[:, rank]))  # the first: `both` only where neither shows it alone
                layer = int(np.nanargmax(strange[kind, rank, 1:]))
                findings.append(self._finding(kind, rank, layer, norms, cosines))
        trusted = self._evidence.max(axis=0) < SUSPECT
        part = np.where(trusted[:, None] & ~np.isnan(strange), strange, -np.inf)
        self._past[:, :, self._taken % WINDOW] = part.transpose(0, 2, 1)
        self._spreads[self._taken % WINDOW] = spread
        self._taken += 1
        return findings

    def _strangeness(self, numbers: Values, usable: npt.NDArray[np.bool_]) -> tuple[Values, Values]:
        """How far each rank is from the others, shape (kinds, ranks, 1 + layers), and the ranks' spread.

        The first column is the mean over layers.
        """
        spread = _spread(numbers, np.median(numbers, axis=1, keepdims=True), axis=1)
        usual = np.median(self._spreads[: self._taken], axis=0) if self._taken else spread
        others = numbers[:, self._others]  # (2, ranks, ranks - 1, layers)
        middle = np.median(others, axis=2)
        unit = np.maximum(np.maximum(_spread(others, middle[:, :, None], axis=2), usual[:, None]), LEAST_SPREAD)
        far = (numbers - middle) / (NORMAL_MAD * unit)
        far = np.where(usable, np.stack([np.abs(far[0]), -far[1], np.maximum(far[0], 0.0) - far[1]]), np.nan)
        return np.concatenate([np.nanmean(far, axis=2, keepdims=True), far], axis=2), spread

    def _bets(self, strange: Values) -> Values:
        """e of each kind, rank and layer; NaN for layers that are left out."""
        past = self._past.reshape(*self._past.shape[:2], -1)  # (kinds, 1 + layers, values)
        values = strange.transpose(0, 2, 1)  # (kinds, 1 + layers, ranks)
        known = np.count_nonzero(np.isfinite(past), axis=2)[:, :, None]
        beyond = np.stack([(past >= values[:, :, rank, None]).sum(axis=2) for rank in range(values.shape[2])], axis=2)
        most = np.maximum(past.max(axis=2), 1.0)[:, :, None]
        p = (1.0 + beyond) / (1.0 + known) * np.minimum(1.0, most / np.maximum(values, most)) ** TAIL
        return np.asarray(POWER * p ** (POWER - 1.0)).transpose(0, 2, 1)

    @staticmethod
    def _finding(kind: int, rank: int, layer: int, norms: Values, cosines: Values) -> Finding:
        others = np.delete(norms[:, layer], rank)
        return Finding(
            rank=rank,
            kind=KINDS[kind],
            layer=layer,
            norm_ratio=float(norms[rank, layer] / np.median(others)),
            cosine=float(cosines[rank, layer]),
            usual_cosine=float(np.median(np.delete(cosines[:, layer], rank))),
        )


def _spread(numbers: Values, middle: Values, axis: int) -> Values:
    """Median absolute deviation from `middle`, along an axis."""
    return np.asarray(np.median(np.abs(numbers - middle), axis=axis))
