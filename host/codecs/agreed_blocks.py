"""Top-k by blocks: the workers sum the blocks' norms, so all send the same k blocks, which a switch can add.

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
from fanin.host.codecs.blocks import block_squares, nonzero_blocks
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
Numbers = npt.NDArray[np.intp]
"""Numbers of blocks, ascending."""


@dataclass(frozen=True, slots=True)
class AgreedBlocks(Codec):
    """Send a share of the blocks: those whose squared norms, summed over the workers, are largest."""

    name: ClassVar[str] = "agreed_blocks"
    several_stages: ClassVar[bool] = True

    lanes: str = "32"
    share: float = 0.01
    """Share of the blocks that travel in each step, above 0 and at most 1; one at least."""
    block: int = 256
    """Elements per block, 8..2^20; best the length of a row, where few rows of a matrix have a gradient."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        check_share(self.share)
        if not MIN_BLOCK <= self.block <= MAX_BLOCK:
            raise ConfigurationError(f"block = {self.block}; must be in {MIN_BLOCK}..{MAX_BLOCK} elements", "block")

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder with one residual per element."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


class _Encoder(Encoder):
    """Encoder that reads and writes the residual only of blocks that have a nonzero gradient, or that travel.

    So an embedding's gradient, few of whose rows are nonzero, costs little more than one pass that reads it.
    """

    def __init__(self, codec: AgreedBlocks, place: Place) -> None:
        super().__init__(place, codec.seed)
        self._codec = codec
        self._block = codec.block
        self._blocks = -(-place.count // self._block)
        self._taken = max(1, round(codec.share * self._blocks)) if self._blocks else 0
        self._owed: Floats = np.zeros((self._blocks, self._block), np.float32)
        self._norms: Floats = np.zeros(self._blocks, np.float32)
        """Squared norm of each block of the residual."""
        self._kept: Floats = np.empty((0, self._block), np.float32)
        """Memory for a step's blocks, kept for the next one: fresh memory takes longer to map than to fill."""

    def reduce(self, x: Floats, step: int) -> Stages:
        # The residual stays unchanged until the step is over: a step that ends in an error leaves nothing behind.
        touched = np.flatnonzero(nonzero_blocks(x, self._block))
        if dense := 2 * len(touched) > self._blocks:
            touched = np.arange(self._blocks)
        own = self._norms.copy()
        fresh = self._added(x, touched, own, dense)
        bad = np.flatnonzero(~np.isfinite(own))
        chosen = Sum(own.copy())
        own[bad] = 0.0
        self.energy = float(own.sum(dtype=np.float64))
        yield chosen
        # Blocks that are not finite count as the largest, so that their NaNs reach every worker.
        taken = largest(np.where(np.isfinite(chosen.values), chosen.values, np.inf), self._taken)
        values = self._rows(taken, touched, fresh)
        lost = np.zeros(values.size, np.float32)
        yield Sum(values.reshape(-1), self._codec.bits, residual=lost)
        if len(bad):  # elements of a contribution that are not finite leave the residual as it was
            rows = np.searchsorted(touched, bad)
            fresh[rows] = np.where(np.isfinite(fresh[rows]), fresh[rows], self._owed[bad])
            own[bad] = block_squares(fresh[rows].reshape(-1), self._block)
        if dense:
            self._owed, self._kept = fresh, self._owed
        else:
            self._owed[touched] = fresh
        self._owed[taken] = np.where(np.isfinite(lost), lost, 0.0).reshape(-1, self._block)
        self._norms[:] = own
        self._norms[taken] = block_squares(self._owed[taken].reshape(-1), self._block)
        own[bad] = own[taken] = 0.0
        self.lost = float(own.sum(dtype=np.float64)) + energy_of(lost)
        self._hand_out(x, None if dense else touched, taken, values)
        for number in np.flatnonzero(~np.isfinite(chosen.values)).tolist():
            x[number * self._block : (number + 1) * self._block] = np.nan

    def _added(self, x: Floats, touched: Numbers, norms: Floats, dense: bool) -> Floats:
        """Return residual + x of the blocks `touched`, a row each; `norms` gets their squares. `dense`: all blocks."""
        if len(self._kept) < len(touched):
            self._kept = np.empty((len(touched), self._block), np.float32)
        fresh, whole = self._kept[: len(touched)], len(x) // self._block
        rows = x[: whole * self._block].reshape(whole, self._block)
        full = touched[touched < whole]
        with np.errstate(invalid="ignore", over="ignore"):
            for here in stretches(full.size * self._block, self._block):
                part = slice(here.start // self._block, here.stop // self._block)
                which = part if dense else full[part]
                np.add(self._owed[which], rows[which], out=fresh[part])
                norms[which] = block_squares(fresh[part].reshape(-1), self._block)
            if len(full) < len(touched):  # the last block, which x does not fill
                fresh[-1] = self._owed[-1]
                fresh[-1, : len(x) - whole * self._block] += x[whole * self._block :]
                norms[-1:] = block_squares(fresh[-1], self._block)
        return fresh

    def _rows(self, taken: Numbers, touched: Numbers, fresh: Floats) -> Floats:
        """Return the blocks `taken`, a row each: from `fresh` where x touches them, otherwise from the residual."""
        places = np.full(self._blocks, -1)
        places[touched] = np.arange(len(touched))
        here = places[taken]
        values = self._owed[taken]
        values[here >= 0] = fresh[here[here >= 0]]
        return values

    def _hand_out(self, x: Floats, touched: Numbers | None, taken: Numbers, values: Floats) -> None:
        """Write the result to x: `values` in the blocks `taken`, and zeros elsewhere.

        `touched`: the blocks of x that are not zero already; None: all.
        """
        whole = len(x) // self._block
        rows, full = x[: whole * self._block].reshape(whole, self._block), taken < whole
        if touched is None:
            x[:] = 0.0
        else:
            rows[touched[touched < whole]] = 0.0
            x[whole * self._block :] = 0.0
        rows[taken[full]] = values[full]
        if not full.all():  # the last block, which x does not fill
            x[whole * self._block :] = values[-1, : len(x) - whole * self._block]

    def state(self) -> State:
        return {"owed": self._owed.reshape(-1).copy()}

    def _load(self, state: State) -> None:
        self._owed[:] = state["owed"].reshape(self._owed.shape)
        self._norms = block_squares(self._owed.reshape(-1), self._block)

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(self._norms.sum(dtype=np.float64)))


def largest(norms: Floats, count: int) -> Numbers:
    """Return the numbers of the `count` largest norms, ascending; of equal ones the lower number, at every worker."""
    if not count:
        return np.empty(0, np.intp)
    least = np.sort(norms)[len(norms) - count]  # many norms are equal, for which np.partition takes long
    above = np.flatnonzero(norms > least)
    return np.sort(np.concatenate([above, np.flatnonzero(norms == least)[: count - len(above)]]))
