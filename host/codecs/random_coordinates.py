"""Random coordinates: in every step all workers draw the same few, and send only those.

    S_t: k of the d runs of 32 elements, from the shared counter (seed, bucket, t)
    y[S_t] = (d / k) mean x[S_t], 0 elsewhere            unbiased
    y[S_t] = mean (x + e)[S_t],   e' = (x + e) outside S_t    with feedback

Every worker sends the same coordinates, so a switch can add them; each worker's own largest ones could not be added.
They come in runs, so that whole cache lines are read and written.
Sources: Rand-k (Stich et al., NeurIPS 2018); MASHA (Beznosikov et al., NeurIPS 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

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
    levels,
)
from fanin.host.codecs.philox import Purpose

RUN = 32
"""Elements that are taken or left together."""


@dataclass(frozen=True, slots=True)
class RandomCoordinates(Codec):
    """Send a random share of the elements, in runs of 32."""

    name: ClassVar[str] = "random_coordinates"
    piecewise: ClassVar[bool] = True

    lanes: str = "32"
    share: float = 0.01
    """Share of the runs that travel in each step, above 0 and at most 1; one at least."""
    feedback: bool = True
    """Whether what does not travel is added to the next step; otherwise what travels is scaled up, without bias."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        check_share(self.share)

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder with one residual per element, or none without feedback."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


class _Encoder(ResidualEncoder):
    def __init__(self, codec: RandomCoordinates, place: Place) -> None:
        self._runs = -(-place.count // RUN)
        super().__init__(place, codec.seed, self._runs * RUN, feedback=codec.feedback)
        self._codec = codec
        self._taken = max(1, round(codec.share * self._runs)) if self._runs else 0

    def reduce(self, x: Floats, step: int) -> Stages:
        runs = np.zeros((self._runs, RUN), np.float32)
        runs.reshape(-1)[: len(x)] = x
        if self._codec.feedback:
            runs += self._owed.reshape(runs.shape)
        self.energy = energy_of(runs.reshape(-1))
        drawn = self.random.words(Purpose.COORDINATES, self._runs, step)
        taken = np.sort(np.argsort(drawn, kind="stable")[: self._taken])
        scale = np.float32(1.0 if self._codec.feedback else self._runs / max(self._taken, 1))
        values = runs[taken].reshape(-1) * scale
        lost: Floats = np.zeros(len(values), np.float32)
        yield Sum(values, self._codec.bits, residual=lost)
        if self._codec.feedback:
            finite = np.isfinite(runs)
            np.copyto(self._owed.reshape(runs.shape), runs, where=finite)
            self._owed.reshape(runs.shape)[taken] = np.where(np.isfinite(lost), lost, 0.0).reshape(-1, RUN)
            self.lost = energy_of(self._owed)
        else:
            sent = values - lost
            self.lost = self.energy - energy_of(runs[taken].reshape(-1)) + energy_of(sent - runs[taken].reshape(-1))
        runs[:] = 0.0
        runs[taken] = values.reshape(-1, RUN)
        x[:] = runs.reshape(-1)[: len(x)]
