"""Lanes after a random rotation and clipping, with error feedback in the rotated domain.

    v = 2^(-k/2) H D x + e            per block (rotation.py); D is fixed for the bucket, so e needs no rotating back
    c = clip(v, -T r, T r)            r: the block's root mean square; T by the levels B of the lanes
    y = D 2^(-k/2) H mean of Q(c),    e' = v - Q(c)

After the rotation a block's elements are nearly normal, whatever they were: that is what narrow lanes need, most of all
for gradients with heavy tails. T minimizes the error of a normal variable that is clipped and rounded to B steps each
side. A packet's scale is the largest T r of its blocks, of any worker.

Sources: THC (Li et al., NSDI 2024); DRIVE (Vargaftik et al., NeurIPS 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fanin.host.codecs.blocks import block_squares
from fanin.host.codecs.codec import Codec, DevicePlan, Encoder, Floats, Place, ResidualEncoder, Stages, Sum, levels
from fanin.host.codecs.rotation import block_for, rotate_and_clip, rotate_back

CLIPS = ((1, 1.22), (3, 1.95), (7, 2.5), (15, 2.9), (31, 3.27), (63, 3.6), (127, 3.9))
"""(B, T): best bound T, in standard deviations, to clip a normal variable that is rounded to B steps each side."""
WIDEST_CLIP_LEVELS = 1024
"""With more levels clipping gains nothing, so the largest element sets the scale."""


def clip_for(bound: int) -> float:
    """T for B = `bound` levels, between the table's rows linear in log2 B; infinite where nothing is clipped."""
    if bound > WIDEST_CLIP_LEVELS:
        return float("inf")
    known, clips = zip(*CLIPS, strict=True)
    slope = (clips[-1] - clips[-2]) / np.log2(known[-1] / known[-2])
    beyond = max(0.0, float(np.log2(bound / known[-1]))) * slope
    return float(np.interp(np.log2(bound), np.log2(known), clips) + beyond)


@dataclass(frozen=True, slots=True)
class Rotated(Codec):
    """A random rotation in blocks of 1,024, then lanes."""

    name: ClassVar[str] = "rotated"
    piecewise: ClassVar[bool] = True

    feedback: bool = True
    """Whether what clipping and rounding cut off is added to the next step."""

    def device_plan(self, size: int) -> DevicePlan | None:
        """Return the plan: rotate and clip, sum, rotate back."""
        return DevicePlan(self.bits, self.feedback, rotated=True, clip=clip_for(levels(self.bits, size)))

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder with a sign per element, and with feedback a residual per element of whole blocks."""
        return _Encoder(self, place, clip_for(levels(self.bits, place.size)))


class _Encoder(ResidualEncoder):
    def __init__(self, codec: Rotated, place: Place, clip: float) -> None:
        self._block = block_for(place.count)
        self._padded = -(-place.count // self._block) * self._block
        super().__init__(place, codec.seed, self._padded, feedback=codec.feedback)
        self._codec, self._clip = codec, np.float32(clip)
        self._signs = self.random.sign_words(place.count)
        self._kept: list[Floats] = []
        """Arrays of the last step, used again in the next: fresh memory takes longer to map than to fill."""

    def reduce(self, x: Floats, step: int) -> Stages:
        # Steps of an encoder without memory may overlap, so those have arrays of their own.
        kept, self._kept = self._kept, []
        cut, lost = kept or [np.empty(self._padded, np.float32) for _ in range(2)]
        sent = x if len(x) == self._padded else np.empty(self._padded, np.float32)
        squares = rotate_and_clip(x, self._signs, self._block, self._owed, self._clip, sent, cut)
        finite = np.isfinite(squares)
        self.energy = _total(squares[finite])
        lost.fill(0.0)
        yield Sum(sent, self._codec.bits, residual=lost)
        squares = rotate_back(sent, self._signs, self._block, lost, cut, x)
        if not finite.all():
            rows, bad = cut.reshape(-1, self._block), ~finite
            rows[bad] = self._owed.reshape(rows.shape)[bad] if self._codec.feedback else 0.0
            squares[bad] = block_squares(rows[bad].reshape(-1), self._block)
        self.lost = _total(squares)
        if self._codec.feedback:
            self._owed, cut = cut, self._owed
            self._kept = [cut, lost]


def _total(squares: Floats) -> float:
    return float(squares.sum(dtype=np.float64))
