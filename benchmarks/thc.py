"""Computes the errors of THC's own tables, to compare them with those of our codecs.

A rotated element is nearly N(0, 1). THC clips it at T, beyond which a share p of the elements lies, and rounds it
stochastically to one of 2^b values out of g + 1 equally spaced ones from -T to T, namely those that minimize the
squared error; the switch adds their indices, 0..g. Between two neighbours a < b of the table the squared error of x is
(b - x)(x - a).

Source: THC (Li et al., NSDI 2024), whose tables are made like this; the errors are computed here. The errors of the
tables that its authors released with their code were computed once (RELEASED).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Thc:
    """One set of THC's parameters b, g and p."""

    bits: int
    granularity: int
    share: float
    """Share p of the elements that are clipped."""

    @property
    def clip(self) -> float:
        """The clipping threshold T."""
        return NORMAL.inv_cdf(1 - self.share / 2)

    def table(self) -> list[int]:
        """Indices, in 0..g, of the 2^b values with the least error, by dynamic programming; both ends are included."""
        points, places = 1 << self.bits, self.granularity + 1
        at = [self.clip * (2 * place / self.granularity - 1) for place in range(places)]
        cost = [0.0] + [math.inf] * self.granularity
        chosen: list[list[int]] = []
        for _ in range(points - 1):
            best = [
                min(((cost[a] + _between(at[a], at[b]), a) for a in range(b)), default=(math.inf, 0))
                for b in range(places)
            ]
            chosen.append([a for _, a in best])
            cost = [value for value, _ in best]
        table = [self.granularity]
        for row in reversed(chosen):
            table.append(row[table[-1]])
        return table[::-1]

    @property
    def uniform(self) -> Thc:
        """Uniform THC with as many bits: all 2^b values are used, without a table."""
        return Thc(self.bits, (1 << self.bits) - 1, self.share)

    @property
    def released(self) -> float | None:
        """Error of the table that THC's authors released for these parameters; None if there is none."""
        return RELEASED.get((self.bits, self.granularity, round(1 / self.share)))

    def nmse(self) -> float:
        """Mean squared error of an element of variance 1."""
        at = [self.clip * (2 * place / self.granularity - 1) for place in self.table()]
        clip = self.clip
        beyond = 2 * ((1 + clip**2) * (1 - NORMAL.cdf(clip)) - clip * NORMAL.pdf(clip))
        return sum(_between(a, b) for a, b in itertools.pairwise(at)) + beyond


RELEASED = {
    (4, 30, 16): 0.02680, (4, 30, 32): 0.02034, (4, 30, 128): 0.02064, (4, 30, 512): 0.02379,
    (3, 16, 32): 0.06274, (2, 34, 512): 0.5740,
}  # fmt: skip
"""Errors of released tables, by (b, g, 1 / p): of the files *_recv_table.txt of github.com/SophiaLi06/BytePS_THC,
byteps/torch/tables. None of (3, 15) and of (2, 9) is among them."""
PAPER = (*(Thc(4, 30, 1 / p) for p in (16, 32, 128, 512)), Thc(3, 15, 1 / 32), Thc(2, 9, 1 / 32))
"""Parameters for which the paper gives figures."""
COMPARED = (*PAPER, Thc(3, 16, 1 / 32), Thc(2, 34, 1 / 512))
"""PAPER, and parameters with as many bits for which a table was released."""


def _between(a: float, b: float) -> float:
    """Integral of (b - x)(x - a) over a..b, weighted by the normal density."""
    mass = NORMAL.cdf(b) - NORMAL.cdf(a)
    first = NORMAL.pdf(a) - NORMAL.pdf(b)
    second = mass + a * NORMAL.pdf(a) - b * NORMAL.pdf(b)
    return (a + b) * first - second - a * b * mass
