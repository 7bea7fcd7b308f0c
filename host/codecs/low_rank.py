"""Low-rank approximations of matrices, by one step of a power iteration that starts where the last one ended.

    M' = M + E                                    per matrix (rows x all other dimensions)
    stage 1:  P = sum over workers of M' Q, orthogonalized
    stage 2:  Q = mean over workers of M'^T P
    y = P Q^T,   E' = M' - y

Vectors, and matrices that a rank-r product would not make smaller, travel as they are with stage 1. The loss by
lanes in either stage is in y, hence in E'; for unchanged elements it is in the residual.

All workers must have the same P and y to the bit, on unlike processors, too: orthogonalizing uses exactly rounded sums,
and y adds up r outer products one after another. A worker's own products (M' Q, M'^T P) may be any library's.

Source: PowerSGD (Vogels et al., NeurIPS 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import (
    Codec,
    Encoder,
    Floats,
    Place,
    ResidualEncoder,
    Stages,
    State,
    Sum,
    energy_of,
    levels,
)
from fanin.host.codecs.philox import Purpose


@dataclass(frozen=True, slots=True)
class LowRank(Codec):
    """Send a matrix as the product of two narrow ones."""

    name: ClassVar[str] = "low_rank"
    several_stages: ClassVar[bool] = True

    lanes: str = "32"
    rank: int = 4
    """Columns of P and Q, 1..64."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        if not 1 <= self.rank <= 64:
            raise ConfigurationError(f"rank = {self.rank}; must be in 1..64", "rank")

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder with a residual per element, and a Q per matrix."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


@dataclass(slots=True)
class _Matrix:
    first: int
    rows: int
    columns: int
    q: Floats

    @property
    def count(self) -> int:
        return self.rows * self.columns

    def of(self, array: Floats) -> Floats:
        return array[self.first : self.first + self.count].reshape(self.rows, self.columns)


class _Encoder(ResidualEncoder):
    def __init__(self, codec: LowRank, place: Place) -> None:
        super().__init__(place, codec.seed, place.count)
        self._codec = codec
        self._matrices: list[_Matrix] = []
        self._plain = np.ones(place.count, bool)
        """Mask of the elements that travel without the approximation."""
        first = drawn = 0
        for shape in place.shapes:
            count = int(np.prod(shape, dtype=np.int64))
            rows = shape[0] if len(shape) > 1 else 1
            columns = count // rows if rows else 0
            if min(rows, columns) > codec.rank and (rows + columns) * codec.rank < count:
                q = self._start(drawn, columns, codec.rank)
                self._matrices.append(_Matrix(first, rows, columns, q))
                self._plain[first : first + count] = False
                drawn += columns * codec.rank
            first += count

    def _start(self, skipped: int, columns: int, rank: int) -> Floats:
        """Draw the first Q, orthonormal, shape (columns, rank), the same at all workers.

        Uniform numbers span a random subspace as well as normal ones. `skipped`: numbers drawn for matrices before it.
        """
        drawn = self.random.uniform(Purpose.SUBSPACE, skipped + columns * rank)[skipped:]
        return orthogonal((drawn - np.float32(0.5)).reshape(columns, rank))

    def reduce(self, x: Floats, step: int) -> Stages:
        with np.errstate(invalid="ignore", over="ignore"):
            whole = x + self._owed
            self.energy = energy_of(whole)
            plain = whole[self._plain]
            products = [(each.of(whole) @ each.q).reshape(-1) for each in self._matrices]
        first = Sum(np.concatenate([plain, *products]).astype(np.float32, copy=False), self._codec.bits)
        lost: Floats = np.zeros(len(first.values), np.float32)
        first.residual = lost
        yield first
        x[self._plain] = first.values[: len(plain)]
        self._owed[self._plain] = np.where(np.isfinite(lost[: len(plain)]), lost[: len(plain)], 0.0)
        self.lost = 0.0
        if self._matrices:
            yield from self._second(x, whole, first.values[len(plain) :])
        self.lost += energy_of(self._owed[self._plain])

    def _second(self, x: Floats, whole: Floats, products: Floats) -> Stages:
        rank = self._codec.rank
        sizes = [each.rows * rank for each in self._matrices]
        parts = np.split(products, np.cumsum(sizes)[:-1])
        left = [orthogonal(part.reshape(-1, rank)) for part in parts]
        with np.errstate(invalid="ignore", over="ignore"):
            own = [each.of(whole).T @ p for each, p in zip(self._matrices, left, strict=True)]
        # P's columns are orthonormal, so what a product keeps of a matrix has the norm of its Q.
        self.lost = max(0.0, self.energy - energy_of(whole[self._plain]) - sum(energy_of(q.reshape(-1)) for q in own))
        second = Sum(np.concatenate([q.reshape(-1) for q in own]), self._codec.bits)
        yield second
        start = 0
        for each, p, mine in zip(self._matrices, left, own, strict=True):
            mean = second.values[start : start + mine.size].reshape(mine.shape)
            with np.errstate(invalid="ignore", over="ignore"):
                each.of(x)[:] = _product(p, mean)
                owed = each.of(whole) - each.of(x)
            if np.isfinite(owed).all():
                each.of(self._owed)[:] = owed
                each.q = orthogonal(mean)
            start += mine.size

    def state(self) -> State:
        return {**super().state(), **{f"q{n}": each.q.copy() for n, each in enumerate(self._matrices)}}

    def _load(self, state: State) -> None:
        super()._load(state)
        for number, each in enumerate(self._matrices):
            each.q = np.array(state[f"q{number}"], np.float32)


def orthogonal(columns: Floats) -> Floats:
    """Return orthonormal columns that span the same, by modified Gram-Schmidt; all NaN if an element is not finite.

    The same bits on every processor: products of float32 are exact in float64, and `math.fsum` rounds once. A column
    in the span of those before it becomes zero.
    """
    result = np.empty_like(columns)
    if not np.isfinite(columns).all():
        result[:] = np.nan
        return result
    for index in range(columns.shape[1]):
        column = columns[:, index].astype(np.float64)
        before = _norm(column)
        for _ in range(2):  # twice is enough (Kahan, Parlett): once leaves what cancellation lost
            for other in range(index):
                known = result[:, other].astype(np.float64)
                column = column - math.fsum((column.astype(np.float32).astype(np.float64) * known).tolist()) * known
        norm = _norm(column)
        result[:, index] = column / norm if norm > before * 1e-6 else 0.0
    return result


def _norm(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return math.sqrt(math.fsum(np.square(column).tolist()))


def _product(p: Floats, q: Floats) -> Floats:
    """P Q^T as a sum of outer products in a fixed order, each rounded: the same bits on every processor."""
    total = np.multiply.outer(p[:, 0], q[:, 0])
    for index in range(1, p.shape[1]):
        total += np.multiply.outer(p[:, index], q[:, index])
    return total
