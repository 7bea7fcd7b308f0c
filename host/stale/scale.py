"""Scale epochs: a scale that is fixed for many rounds, and changed where all workers agree.

Rules of this file
------------------
* Contributions of bases V - S to V meet in round V, so all of these must be quantized alike. Epoch m has the bases
  [m E + S, (m + 1) E + S), the first one from 0 on. Its last S bases are its *drain*: every worker passes them, so
  that late contributions of the epoch have landed by the round of the last one, and the next epoch starts clean.
  Passing a drain needs no gradient; its cost is one meeting of all workers per epoch.
* The next scale follows from the rounds themselves. The first TALLY_BINS elements of a contribution are a tally: a one
  in the bin that says by how many powers of two the contribution's own largest element exceeds the bound (before
  clipping). Results are sums, so every worker reads the same tally of all contributors in the same round, and draws the
  same conclusion: no message, no leader.
* The bound follows the largest contribution of the epoch, with HEADROOM powers of two in hand. An epoch in which nobody
  contributed keeps its bound.
* A newcomer is given the bound in force and the one before it: it may have to pass for bases of an epoch that is over.
* A bound is a power of two 2^p, so the scale code is exact at all lane widths (docs/numerics.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.numerics.fixed_point import CODE_BIAS, CODE_MANTISSA_BITS

TALLY_BINS = 64
"""Elements that the tally takes: from 2^-40 to 2^23 of the bound; what lies outside counts at the ends."""
TALLY_ZERO = 40
"""The bin of a contribution whose largest element lies within the factor 2 below the bound."""
HEADROOM = 1
MIN_POWER, MAX_POWER = -120, 120
"""Bounds 2^p that float32 scales take with room to spare."""

Floats = npt.NDArray[np.float32]


def power_of(largest: float) -> int:
    """The least p with 2^p >= largest, within the legal range; for 0 the lowest."""
    if not math.isfinite(largest):
        raise ConfigurationError(f"the largest gradient element is {largest}: no finite scale holds it")
    if largest <= 0:
        return MIN_POWER
    mantissa, exponent = math.frexp(largest)
    return min(max(exponent - (mantissa == 0.5), MIN_POWER), MAX_POWER)


def code_of(power: int) -> int:
    """The scale code of the bound 2^power."""
    return (power + CODE_BIAS) << CODE_MANTISSA_BITS


def write_tally(tally: Floats, largest: float, power: int) -> None:
    """Say in `tally`, shape (TALLY_BINS,), how large a contribution's largest element is under the bound 2^power."""
    tally[:] = 0.0
    if largest > 0:
        step = power_of(largest) - power + TALLY_ZERO
        tally[min(max(step, 0), TALLY_BINS - 1)] = 2.0**power


def read_tally(tally: Floats, power: int) -> int | None:
    """The largest power of two that any contributor reported; None when there was none."""
    filled = np.flatnonzero(tally > 0.5 * 2.0**power)
    return int(filled[-1]) - TALLY_ZERO + power if len(filled) else None


@dataclass(slots=True)
class ScaleEpochs:
    """The bounds of all rounds. Workers that see the same results have the same bounds."""

    staleness: int
    """The S that lanes and drains are sized for: the largest that the job may have."""
    epoch_rounds: int
    """E: rounds from one change to the next, more than the staleness."""
    power: int
    """The bound is 2^power."""
    largest: int | None = None
    """The largest power reported in this epoch."""
    changes: int = 0
    """Epochs that began with another bound than the one before."""
    began: int = 0
    """The first base of the epoch in force."""
    power_before: int | None = None
    """The power of the epoch before; None in the first."""

    def __post_init__(self) -> None:
        if self.epoch_rounds <= self.staleness:
            raise ConfigurationError(
                f"scale epochs of {self.epoch_rounds} rounds with staleness {self.staleness}: the last S rounds of an "
                "epoch carry no new gradients, so make it much longer"
            )

    def code_at(self, base: int) -> int:
        """The scale code of a base in the epoch in force, or in the one before."""
        if base >= self.began or self.power_before is None:
            return code_of(self.power)
        return code_of(self.power_before)

    def drains(self, base: int) -> bool:
        """Whether all workers pass this base, so that the next epoch starts clean."""
        return base >= self.epoch_rounds and base % self.epoch_rounds < self.staleness

    def applied(self, round_index: int, tally: Floats) -> None:
        """Round `round_index` is over, with this tally. Moves on to the next epoch where that was its last."""
        seen = read_tally(tally, self.power)
        if seen is not None:
            self.largest = seen if self.largest is None else max(self.largest, seen)
        ends = round_index + 1 - self.staleness
        if ends <= 0 or ends % self.epoch_rounds:
            return
        self.began, self.power_before = round_index + 1, self.power
        if self.largest is not None:
            power = min(max(self.largest + HEADROOM, MIN_POWER), MAX_POWER)
            self.changes += power != self.power
            self.power = power
        self.largest = None
