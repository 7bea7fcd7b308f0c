"""Sketches of each worker's largest elements, which a switch adds and every worker decodes without error.

    v = x + e;   kept: the k elements of largest |v|, of each worker its own;   e' = the rest
    stage 1:  m = maximum over workers of the largest |v|;   b = sum of bitmaps of what is kept, one small lane each
    stage 2:  c[h_j(i)] += q_i  for j = 1, 2, 3,   q = rint(v / step),  step = m / levels        32-bit integers
    peel:     a cell with a single element that is not yet known is that element's sum; take it out of its other cells
    y = step / N times the sums that peeled, 0 elsewhere

The union of what the workers keep is known from b, so cells are laid out for it: CELLS_PER_ELEMENT for each, in three
parts, one per hash. Whether all of it peels depends on the union alone, so all workers draw cells anew, alike, until it
does. Integers add without error, so peeled sums are exact but for q's rounding, which is in e'. Elements that peel in
none of a few draws stay in the residuals of the workers that kept them.

Sources: TAGC (Polyakov et al., 2025); lossless homomorphic compression (Li et al., SIGCOMM 2024); peeling: invertible
Bloom lookup tables (Goodrich, Mitzenmacher 2011), whose threshold for three hashes is 1.222 cells per element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fanin.host.codecs.codec import (
    Codec,
    Encoder,
    Floats,
    Place,
    ResidualEncoder,
    Stages,
    Sum,
    check_share,
    energy_of,
    integer_lanes,
)
from fanin.host.codecs.philox import Purpose, Randomness
from fanin.numerics.reduction import EXACT, Operator

HASHES = 3
CELLS_PER_ELEMENT = 1.3
"""A load of 0.77: above the threshold of 1.222, with room for sketches that are small."""
SPARE_CELLS = 32
"""Cells beyond those, since small sketches need more per element than large ones."""
MAX_DRAWS = 8
"""Most layouts that are tried: two elements with the same three cells are enough to spoil one."""

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sketched(Codec):
    """Send each worker's largest elements, which may be other ones at each worker."""

    name: ClassVar[str] = "sketched"
    several_stages: ClassVar[bool] = True
    several_sums: ClassVar[bool] = True

    lanes: str = "8"
    """Lanes of the bitmap, which counts the workers that keep an element: "32", "16", "8" or "4", packed."""
    share: float = 0.01
    """Share of the elements that a worker keeps in each step, above 0 and at most 1; one at least."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        check_share(self.share)

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder with one residual per element."""
        return _Encoder(self, place, integer_lanes(self.bits, place.size))


class _Encoder(ResidualEncoder):
    def __init__(self, codec: Sketched, place: Place, number: int) -> None:
        super().__init__(place, codec.seed, place.count)
        self._number = number
        self._taken = max(1, round(codec.share * place.count)) if place.count else 0
        self._levels = np.float32((2**31 - 1) // (place.size * 64))
        """Levels of one contribution; a cell with up to 64 elements of each worker does not wrap around, and if it
        does, the sums that are peeled from it come out right all the same.
        """

    def reduce(self, x: Floats, step: int) -> Stages:
        if not len(x):
            return
        with np.errstate(invalid="ignore", over="ignore"):
            whole = x + self._owed
        size = np.abs(whole)
        self.energy = energy_of(whole)
        # A value that is not finite is the largest, and makes the step NaN, so that it reaches everybody.
        order = np.where(np.isfinite(size), size, np.float32(np.inf))
        kept = np.sort(np.argpartition(order, len(x) - self._taken)[len(x) - self._taken :])
        bitmap = np.zeros(len(x), np.int8 if self._number != 32 else np.int32)
        bitmap[kept] = 1
        largest = Sum(size[kept].max(keepdims=True), EXACT, operator=Operator.MAX, average=False)
        union = Sum(bitmap, self._number, average=False)
        yield [largest, union]
        most, present = largest.values[0], np.flatnonzero(union.values)
        if not np.isfinite(most):
            x[:] = np.nan  # elements share cells, so the element that is not finite cannot be singled out
            self.lost = 0.0
            return
        unit = np.float32(most) / self._levels
        mine = np.searchsorted(present, kept)
        q: Int32s = np.zeros(len(present), np.int32)
        if unit > 0:
            q[mine] = np.rint(whole[kept] / unit)
        layout = Layout.of(self.random, len(present), step)
        sketch = Sum(layout.summed(q), average=False)
        yield sketch
        sums = layout.peeled(sketch.values)
        self._owed[:] = whole
        sent = np.where(layout.known, q * unit, np.float32(0.0)).astype(np.float32)
        self._owed[kept] -= sent[mine]
        self.lost = energy_of(self._owed)
        x[:] = 0.0
        x[present] = sums.astype(np.float32) / np.float32(self.place.size) * unit


@dataclass(frozen=True, slots=True)
class Layout:
    """Cells of the elements of one sketch, and the order in which they are peeled."""

    cells: Int64s
    """Cells of each element, shape (HASHES, elements): one in each part of the sketch."""
    size: int
    rounds: list[tuple[Int64s, Int64s]]
    """For each round of peeling: the elements that come out, and for each a cell in which it is alone by then."""
    known: npt.NDArray[np.bool_]
    """Mask of the elements that are peeled: all but those that lie in cycles."""

    @classmethod
    def of(cls, random: Randomness, count: int, step: int) -> Layout:
        """The first of a few draws from which all of `count` elements come out, the same at every worker."""
        found = cls.drawn(random, count, step, 0)
        for attempt in range(1, MAX_DRAWS):
            if found.known.all():
                break
            found = cls.drawn(random, count, step, attempt)
        return found

    @classmethod
    def drawn(cls, random: Randomness, count: int, step: int, attempt: int) -> Layout:
        """Draw a layout at random."""
        part = -(-int(count * CELLS_PER_ELEMENT + SPARE_CELLS) // HASHES)
        words = random.words(Purpose.CELLS, HASHES * count, step | attempt << 48).reshape(HASHES, count)
        places = (words.astype(np.uint64) * np.uint64(part)) >> np.uint64(32)
        return cls.peeling(places.astype(np.int64) + np.arange(HASHES, dtype=np.int64)[:, None] * part, HASHES * part)

    @classmethod
    def peeling(cls, cells: Int64s, size: int) -> Layout:
        """Find the order in which elements come out of these cells; it does not depend on their values."""
        count = cells.shape[1]
        degree = np.bincount(cells.reshape(-1), minlength=size)
        # The sum of the numbers of the elements that are left in a cell: where one is left, its number.
        number = np.zeros(size, np.int64)
        for each in cells:
            np.add.at(number, each, np.arange(count))
        known, rounds = np.zeros(count, bool), []
        while len(alone := np.flatnonzero(degree == 1)):  # each round takes out one element at least
            found, first = np.unique(number[alone], return_index=True)
            rounds.append((found, alone[first]))
            known[found] = True
            for each in cells:
                np.subtract.at(degree, each[found], 1)
                np.subtract.at(number, each[found], found)
        return cls(cells, size, rounds, known)

    def summed(self, values: Int32s) -> Int32s:
        """The sketch: each value in all of its cells, modulo 2^32."""
        sketch = np.zeros(self.size, np.int64)
        for each in self.cells:
            np.add.at(sketch, each, values.astype(np.int64))
        return sketch.astype(np.int32)

    def peeled(self, sketch: Int32s) -> Int32s:
        """The elements' values, as far as they are known; 0 elsewhere."""
        left = sketch.astype(np.int64)
        values = np.zeros(self.cells.shape[1], np.int32)
        for found, alone in self.rounds:
            taken = left[alone].astype(np.int32)  # modulo 2^32, as the switch adds
            values[found] = taken
            for each in self.cells:
                np.subtract.at(left, each[found], taken.astype(np.int64))
        return values
