"""Weights that travel with the sum: the last element of each chunk is the weight of the delta in that chunk.

A chunk is what one packet holds, and each may land in another round when packets are lost. Its weight is in the same
packet, so that a chunk's sum and the sum of its weights are always of the same deltas. A weight is a part of `unit`, a
power of two about as large as the deltas, so that one scale fits both.

    array of a round     |  tally  | d d d d w | d d d d d d d d w | d d d d d d d d w |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.host.stale.scale import TALLY_BINS

Floats = npt.NDArray[np.float32]
Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WeightedChunks:
    """Places of a model's elements, and of weights, behind the tally of a round."""

    count: int
    """Elements of the model."""
    chunk_elements: int
    """Elements of a chunk, its weight included."""
    head: int = field(init=False)
    """Elements behind the tally in the chunk in which the tally ends."""
    rows: int = field(init=False)
    """Number of whole chunks behind that one."""

    def __post_init__(self) -> None:
        if self.chunk_elements < 2:
            raise ConfigurationError(
                f"chunks of {self.chunk_elements} elements have no room for a weight", "words_per_packet"
            )
        head = -TALLY_BINS % self.chunk_elements
        left = self.count - max(head - 1, 0)
        object.__setattr__(self, "head", head)
        object.__setattr__(self, "rows", max(-(-left // (self.chunk_elements - 1)), 0))

    @property
    def elements(self) -> int:
        """Elements and weights without the tally: `elements` of the Layout."""
        return self.head + self.rows * self.chunk_elements

    def write(self, out: Floats, delta: Values, unit: float) -> None:
        """Lay `delta`, shape (count,), and weights of 1 out in `out`, shape (elements,)."""
        first, rows = self._parts(out)
        given = first[:-1].size
        first[:-1], first[-1:] = _padded(delta[:given], given), unit
        body = self.chunk_elements - 1
        rows[:, :-1] = _padded(delta[given:], self.rows * body).reshape(self.rows, body)
        rows[:, -1] = unit

    def mean(self, total: Floats, out: Floats, unit: float) -> float:
        """Write the weighted mean to `out`, shape (count,): 0 where no weight landed. Returns the smallest weight.

        `total`: the sums of a round, shape (elements,).
        """
        first, rows = self._parts(total)
        weights = np.concatenate([first[-1:], rows[:, -1]]) / np.float32(unit)
        factors = np.divide(1, weights, out=np.zeros_like(weights), where=weights > 0)
        given = first[:-1].size
        head_factor, row_factors = factors[: first[-1:].size], factors[first[-1:].size :]
        out[:given] = (first[:-1] * head_factor if given else first[:0])[: len(out[:given])]
        out[given:] = (rows[:, :-1] * row_factors[:, None]).reshape(-1)[: self.count - given]
        return float(weights.min())

    def _parts(self, whole: Floats) -> tuple[Floats, Floats]:
        """Return what is behind the tally in its chunk, shape (head,), and the others, shape (rows, chunk_elements)."""
        return whole[: self.head], whole[self.head : self.elements].reshape(self.rows, self.chunk_elements)


def _padded(part: Values, length: int) -> npt.NDArray[Any]:
    return part if len(part) == length else np.pad(part, (0, length - len(part)))
