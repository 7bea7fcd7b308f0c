"""The largest blocks, by a vote of all workers: what Top-k becomes where an adder sums.

    stage 1:  n_b = sum over workers of |(x_w + e_w)_b|^2           for each block b of 256 elements
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

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Stages, State, Sum, energy_of, levels

BLOCK = 256
"""Elements that are chosen together."""


@dataclass(frozen=True, slots=True)
class AgreedBlocks(Codec):
    """A share of the blocks: those with the largest norms."""

    name: ClassVar[str] = "agreed_blocks"

    lanes: str = "32"
    share: float = 0.01
    """Share of the blocks that travel in each step, above 0 and at most 1; one at least."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        if not 0 < self.share <= 1:
            raise ConfigurationError(f"share = {self.share}; must be above 0 and at most 1")

    @property
    def single_stage(self) -> bool:
        """The second stage needs the first one's sums."""
        return False

    def encoder(self, place: Place) -> Encoder:
        """One residual per element."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


class _Encoder(Encoder):
    def __init__(self, codec: AgreedBlocks, place: Place) -> None:
        super().__init__(place, codec.seed)
        self._codec = codec
        self._blocks = -(-place.count // BLOCK)
        self._taken = max(1, round(codec.share * self._blocks)) if self._blocks else 0
        self._owed: Floats = np.zeros(self._blocks * BLOCK, np.float32)

    def reduce(self, x: Floats, step: int) -> Stages:
        blocks = self._owed.reshape(-1, BLOCK).copy()
        blocks.reshape(-1)[: len(x)] += x
        self.energy = energy_of(blocks.reshape(-1))
        with np.errstate(invalid="ignore", over="ignore"):
            norms = np.einsum("ij,ij->i", blocks, blocks, dtype=np.float32)
        chosen = Sum(norms)
        yield chosen
        # What is not finite comes first, so that it reaches everybody; ties go to the lower number, alike everywhere.
        order = np.argsort(-np.where(np.isfinite(chosen.values), chosen.values, np.inf), kind="stable")
        taken = np.sort(order[: self._taken])
        values = blocks[taken].reshape(-1)
        lost: Floats = np.zeros(len(values), np.float32)
        yield Sum(values, self._codec.bits, residual=lost)
        owed = self._owed.reshape(-1, BLOCK)
        np.copyto(owed, blocks, where=np.isfinite(blocks))
        owed[taken] = np.where(np.isfinite(lost), lost, 0.0).reshape(-1, BLOCK)
        self.lost = energy_of(self._owed)
        blocks[:] = 0.0
        blocks[taken] = values.reshape(-1, BLOCK)
        blocks[~np.isfinite(chosen.values)] = np.nan
        x[:] = blocks.reshape(-1)[: len(x)]

    def state(self) -> State:
        return {"owed": self._owed.copy()}

    def _load(self, state: State) -> None:
        self._owed[:] = state["owed"]

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(energy_of(self._owed)))
