"""The largest blocks, by a vote of all workers: what Top-k becomes where an adder sums.

    stage 1:  n_b = sum over workers of |(x_w + e_w)_b|^2           for each block b of 256 elements, or `block`
    stage 2:  y_b = mean (x_w + e_w)_b for the k blocks of largest n_b, 0 elsewhere;   e' = the rest

Plain Top-k cannot be summed: workers choose different elements, and their union grows with every worker. Norms are one
float for 256 elements, and their sum is the same at all workers, so all choose the same blocks.

Sources: Top-k with memory (Stich et al., NeurIPS 2018); the agreement is SparCML's and OmniReduce's problem (SC 2019,
SIGCOMM 2021), solved by an adder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import (
    Codec,
    Encoder,
    Floats,
    Place,
    Stages,
    State,
    Sum,
    check_share,
    energy_of,
    levels,
    stretches,
)

MIN_BLOCK, MAX_BLOCK = 8, 1 << 20


@dataclass(frozen=True, slots=True)
class AgreedBlocks(Codec):
    """A share of the blocks: those with the largest norms."""

    name: ClassVar[str] = "agreed_blocks"
    several_stages: ClassVar[bool] = True

    lanes: str = "32"
    share: float = 0.01
    """Share of the blocks that travel in each step, above 0 and at most 1; one at least."""
    block: int = 256
    """Elements that are chosen together, 8..2^20: best a row, where few rows of a matrix have a gradient."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        check_share(self.share)
        if not MIN_BLOCK <= self.block <= MAX_BLOCK:
            raise ConfigurationError(f"block = {self.block}; must be in {MIN_BLOCK}..{MAX_BLOCK} elements")

    def encoder(self, place: Place) -> Encoder:
        """One residual per element."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


class _Encoder(Encoder):
    def __init__(self, codec: AgreedBlocks, place: Place) -> None:
        super().__init__(place, codec.seed)
        self._codec = codec
        self._block = codec.block
        self._blocks = -(-place.count // self._block)
        self._taken = max(1, round(codec.share * self._blocks)) if self._blocks else 0
        self._owed: Floats = np.zeros(self._blocks * self._block, np.float32)
        self._spare: Floats | None = None
        """What was owed before the last step: memory for the next one, since fresh memory takes longer to map."""

    def reduce(self, x: Floats, step: int) -> Stages:
        # What is owed stays as it is until the step is over: one that ends in an error leaves nothing behind.
        whole, self._spare = self._spare if self._spare is not None else np.empty_like(self._owed), None
        blocks, norms = whole.reshape(-1, self._block), np.empty(self._blocks, np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            for here in stretches(len(whole), self._block):
                given, first = x[here], here.start // self._block
                part, owed = whole[here], self._owed[here]
                np.add(owed[: len(given)], given, out=part[: len(given)])
                part[len(given) :] = owed[len(given) :]
                rows = part.reshape(-1, self._block)
                norms[first : first + len(rows)] = np.einsum("ij,ij->i", rows, rows, dtype=np.float32)
        bad = np.flatnonzero(~np.isfinite(norms))
        own = norms.copy()
        own[bad] = 0.0
        self.energy = float(own.sum(dtype=np.float64))
        chosen = Sum(norms)
        yield chosen
        # What is not finite comes first, so that it reaches everybody; ties go to the lower number, alike everywhere.
        order = np.argsort(-np.where(np.isfinite(chosen.values), chosen.values, np.inf), kind="stable")
        taken = np.sort(order[: self._taken])
        values, lost = blocks[taken].reshape(-1), np.zeros(len(taken) * self._block, np.float32)
        yield Sum(values, self._codec.bits, residual=lost)
        before = self._owed.reshape(blocks.shape)[bad]
        blocks[bad] = np.where(np.isfinite(blocks[bad]), blocks[bad], before)
        blocks[taken] = np.where(np.isfinite(lost), lost, 0.0).reshape(-1, self._block)
        self._owed, self._spare = whole, self._owed
        own[taken] = 0.0
        self.lost = float(own.sum(dtype=np.float64)) + energy_of(lost)
        self._hand_out(x, taken, values)
        for number in np.flatnonzero(~np.isfinite(chosen.values)).tolist():
            x[number * self._block : (number + 1) * self._block] = np.nan

    def _hand_out(self, x: Floats, taken: npt.NDArray[np.intp], values: Floats) -> None:
        """x: the blocks that travelled, and zeros."""
        x[:] = 0.0
        rows, whole = values.reshape(-1, self._block), len(x) // self._block
        full = taken < whole
        x[: whole * self._block].reshape(-1, self._block)[taken[full]] = rows[full]
        if not full.all():  # the last block, which x does not fill
            x[whole * self._block :] = rows[-1][: len(x) - whole * self._block]

    def state(self) -> State:
        return {"owed": self._owed.copy()}

    def _load(self, state: State) -> None:
        self._owed[:] = state["owed"]

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(energy_of(self._owed)))
