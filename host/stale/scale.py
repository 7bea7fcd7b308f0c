"""Scale epochs: a scale that is fixed for many rounds, and changed where all workers agree.

Rules of this file
------------------
* Contributions of bases V - S to V meet in round V, so all of these must be quantized alike. The last S bases of an
  epoch are its *drain*: every worker passes them, so that late contributions of the epoch have landed by the round of
  the last one, and the next epoch starts clean. Passing a drain needs no gradient; its cost is one meeting of all
  workers per epoch.
* The first drain begins at base FIRST_ROUNDS (more with a large S), and each next one GROWTH times as far from the one
  before it, `epoch_rounds` at most: the first gradients of a training say little about the later ones.
* A round in which somebody's largest element is EXCESS powers of two above the bound ends its epoch early: the drain
  begins with the next base, and epochs are short again from there on. Every worker has applied the results before base
  b, and no others, when it decides b, so all of them begin this drain at the same base. The clipped part is in the
  error feedback, and lands in the next epoch.
* The next scale follows from the rounds themselves. The first TALLY_BINS elements of a contribution are a tally: a one
  in the bin that says by how many powers of two the contribution's own largest element exceeds the bound (before
  clipping). Results are sums, so every worker reads the same tally of all contributors in the same round, and draws the
  same conclusion: no message, no leader.
* The bound follows the largest contribution of the epoch, with HEADROOM powers of two in hand. An epoch in which nobody
  contributed keeps its bound. The first bound follows from the first gradients; it is 2^UNKNOWN_POWER where all of them
  are zero.
* A newcomer is given the bound in force and the one before it: it may have to pass for bases of an epoch that is over.
  It is also given where the next drain begins, since only the results say so.
* A bound is a power of two 2^p, so the scale code is exact at all lane widths (docs/numerics.md).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.numerics.fixed_point import CODE_BIAS, CODE_MANTISSA_BITS

TALLY_BINS = 64
"""Elements that the tally takes: from 2^-40 to 2^23 of the bound; what lies outside counts at the ends."""
TALLY_ZERO = 40
"""The bin of a contribution whose largest element lies within the factor 2 below the bound."""
HEADROOM = 1
EXCESS = 4
"""Powers of two above the bound, by the tally, that end an epoch early. The error feedback makes up for a lone element
above the bound; where many are, what is fed back adds up, and soon exceeds the bound this far."""
FIRST_ROUNDS = 16
GROWTH = 4
UNKNOWN_POWER = 0
"""The power of the first bound where no gradient says anything: the tally covers 24 powers above it and 40 below."""
MIN_POWER, MAX_POWER = -120, 120
"""Bounds 2^p that float32 scales take with room to spare."""

Floats = npt.NDArray[np.float32]


def power_of(largest: float) -> int:
    """The least p with 2^p >= largest, within the legal range; for 0 the lowest."""
    if not math.isfinite(largest):
        raise ConfigurationError(
            f"the largest gradient element is {largest}: no finite scale holds it"
            ". Remedy: see why the gradients are so large (learning rate, loss scale)"
        )
    if largest <= 0:
        return MIN_POWER
    mantissa, exponent = math.frexp(largest)
    return min(max(exponent - (mantissa == 0.5), MIN_POWER), MAX_POWER)


def first_power(largest: float) -> int:
    """The power of the first bound, from the largest element of all workers' first gradients."""
    return power_of(largest) + HEADROOM if largest > 0 else UNKNOWN_POWER


def code_of(power: int) -> int:
    """The scale code of the bound 2^power."""
    return (power + CODE_BIAS) << CODE_MANTISSA_BITS


def write_tally(tally: Floats, largest: float, power: int) -> None:
    """Say in `tally`, shape (TALLY_BINS,), how large a contribution's largest element is under the bound 2^power."""
    tally[:] = 0.0
    if largest > 0:
        step = power_of(min(largest, 2.0**MAX_POWER)) - power + TALLY_ZERO
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
    """E: rounds from one change to the next at most, more than the staleness."""
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
    length: int = 0
    """Rounds from the drain before to this epoch's, unless that comes early; 0 when made: the shortest."""
    drain_from: int = 0
    """The first base of this epoch's drain; 0 when made: after `length`."""
    exceeded: bool = False
    """Whether this epoch ends early, since a contribution exceeded its bound."""

    def __post_init__(self) -> None:
        if self.epoch_rounds <= self.staleness:
            raise ConfigurationError(
                f"scale epochs of {self.epoch_rounds} rounds with staleness {self.staleness}: the last S rounds of an "
                "epoch carry no new gradients. Remedy: make it much longer"
            )
        self.length = self.length or self._shortest
        self.drain_from = self.drain_from or self.length

    @property
    def _shortest(self) -> int:
        return min(max(FIRST_ROUNDS, GROWTH * (self.staleness + 1)), self.epoch_rounds)

    def state(self) -> dict[str, Any]:
        """Everything that a newcomer with the same options is given, by field; it makes its own epochs of it."""
        state = dataclasses.asdict(self)
        for option in ("staleness", "epoch_rounds"):
            del state[option]
        return state

    def power_at(self, base: int) -> int:
        """The power of the bound at a base in the epoch in force, or in the one before."""
        return self.power if base >= self.began or self.power_before is None else self.power_before

    def code_at(self, base: int) -> int:
        """The scale code of a base in the epoch in force, or in the one before."""
        return code_of(self.power_at(base))

    def drains(self, base: int) -> bool:
        """Whether all workers pass this base, so that the next epoch starts clean."""
        return self.drain_from <= base < self.drain_from + self.staleness

    def applied(self, round_index: int, tally: Floats) -> None:
        """Round `round_index` is over, with this tally. Moves on to the next epoch where that was its last."""
        self.noted(round_index, read_tally(tally, self.power))

    def noted(self, round_index: int, seen: int | None) -> None:
        """Round `round_index` is over, and `seen` is the largest power in it; None without a contribution."""
        after = round_index + 1
        if seen is not None:
            self.largest = seen if self.largest is None else max(self.largest, seen)
            if seen >= self.power + EXCESS and after <= self.drain_from:
                self.drain_from, self.exceeded = after, True
        if after == self.drain_from + self.staleness:
            self._change(after)

    def _change(self, base: int) -> None:
        self.began, self.power_before = base, self.power
        if self.largest is not None:
            power = min(max(self.largest + HEADROOM, MIN_POWER), MAX_POWER)
            self.changes += power != self.power
            self.power = power
        self.largest = None
        self.length = self._shortest if self.exceeded else min(GROWTH * self.length, self.epoch_rounds)
        self.exceeded = False
        self.drain_from += self.length
