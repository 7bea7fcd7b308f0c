"""Lanes alone, with error feedback: what fanin does to every gradient, as a codec among the others.

    q = rint((x + e) steps),  e' = (x + e) - q / steps         steps: agreed for each packet (docs/numerics.md)

Error feedback: Seide et al., INTERSPEECH 2014; Karimireddy et al., ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Stages, State, Sum, energy_of, levels


@dataclass(frozen=True, slots=True)
class Lanes(Codec):
    """float32 in lanes."""

    name: ClassVar[str] = "lanes"

    feedback: bool = True
    """Whether what a step cut off is added to the next one."""

    def encoder(self, place: Place) -> Encoder:
        """One residual per element."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


class _Encoder(Encoder):
    def __init__(self, codec: Lanes, place: Place) -> None:
        super().__init__(place, codec.seed)
        self._codec = codec
        self._owed: Floats = np.zeros(place.count if codec.feedback else 0, np.float32)

    def reduce(self, x: Floats, step: int) -> Stages:
        owed = self._owed if self._codec.feedback else np.zeros(len(x), np.float32)
        self.energy = energy_of(x + owed)
        yield Sum(x, self._codec.bits, residual=owed)
        self.lost = energy_of(owed)

    def state(self) -> State:
        return {"owed": self._owed.copy()} if self._codec.feedback else {}

    def _load(self, state: State) -> None:
        if self._codec.feedback:
            self._owed[:] = state["owed"]

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(energy_of(self._owed)))
