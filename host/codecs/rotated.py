"""Rotated, clipped and quantized, with error feedback in the rotated domain.

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
import numpy.typing as npt

from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Stages, State, Sum, energy_of, levels, stretches
from fanin.host.codecs.rotation import block_for, hadamard

CLIPS = ((1, 1.22), (3, 1.95), (7, 2.5), (15, 2.9), (31, 3.27), (63, 3.6), (127, 3.9))
"""(B, T): where a normal variable is clipped that is rounded to B steps each side."""
WIDEST_CLIP_LEVELS = 1024
"""From so many levels on clipping gains nothing: the largest element sets the scale."""


def clip_for(bound: int) -> float:
    """T for B = `bound` levels, between the table's rows linear in log2 B; infinite where nothing is clipped."""
    if bound > WIDEST_CLIP_LEVELS:
        return float("inf")
    known, clips = zip(*CLIPS, strict=True)
    slope = (clips[-1] - clips[-2]) / np.log2(known[-1] / known[-2])
    beyond = max(0.0, float(np.log2(bound / known[-1]))) * slope
    return float(np.interp(np.log2(bound), np.log2(known), clips) + beyond)


def block_squares(blocks: Floats) -> Floats:
    """The squared norm of each row."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.einsum("ij,ij->i", blocks, blocks, dtype=np.float32))


def clip_blocks(blocks: Floats, squares: Floats, clip: np.float32) -> Floats:
    """A copy, each row clipped at `clip` times its root mean square."""
    clipped = blocks.copy()
    clip_in_place(clipped, squares, clip)
    return clipped


def clip_in_place(blocks: Floats, squares: Floats, clip: np.float32) -> None:
    """Clip each row at `clip` times its root mean square."""
    if not np.isfinite(clip):
        return
    # A block that is not finite, or whose squares are not, is not clipped: NaN must reach everybody.
    with np.errstate(invalid="ignore", over="ignore"):
        bound = np.where(np.isfinite(squares), clip * np.sqrt(squares / np.float32(blocks.shape[1])), np.inf)[:, None]
    # Twice as fast as np.clip, which has no short way for bounds of a row.
    np.minimum(blocks, bound, out=blocks)
    np.maximum(blocks, -bound, out=blocks)


@dataclass(frozen=True, slots=True)
class Rotated(Codec):
    """A random rotation in blocks of 1,024, then lanes."""

    name: ClassVar[str] = "rotated"
    piecewise: ClassVar[bool] = True

    feedback: bool = True
    """Whether what clipping and rounding cut off is added to the next step."""

    def encoder(self, place: Place) -> Encoder:
        """Signs and residuals of whole blocks."""
        return _Encoder(self, place, clip_for(levels(self.bits, place.size)))


class _Encoder(Encoder):
    def __init__(self, codec: Rotated, place: Place, clip: float) -> None:
        super().__init__(place, codec.seed)
        self._codec, self._clip = codec, np.float32(clip)
        self._block = block_for(place.count)
        self._padded = -(-place.count // self._block) * self._block
        self._signs = self.random.signs(place.count)
        self._owed: Floats = np.zeros(self._padded if codec.feedback else 0, np.float32)
        self._kept: list[Floats] = []
        """Arrays of the last step, for the next one: fresh ones take longer to map than to fill."""

    def reduce(self, x: Floats, step: int) -> Stages:
        # Steps of an encoder without memory may overlap, so those have arrays of their own.
        kept, self._kept = self._kept, []
        sent, cut, lost = kept or [np.empty(self._padded, np.float32) for _ in range(3)]
        finite = np.empty(self._padded // self._block, bool)
        self.energy = 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            for here in stretches(self._padded, self._block):
                self._encode(x, here, sent, cut, finite)
        lost.fill(0.0)
        yield Sum(sent, self._codec.bits, residual=lost)
        self.lost = 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            for here in stretches(self._padded, self._block):
                self._decode(x, here, sent, cut, lost, finite)
        if self._codec.feedback:
            self._owed, cut = cut, self._owed
            self._kept = [sent, cut, lost]

    def _encode(self, x: Floats, here: slice, sent: Floats, cut: Floats, finite: npt.NDArray[np.bool_]) -> None:
        """Rotate a stretch of x into `sent`, clipped, and what clipping takes away into `cut`."""
        given, rotated, left = x[here], sent[here], cut[here]
        np.multiply(given, self._signs[here], out=rotated[: len(given)])
        rotated[len(given) :] = 0.0
        hadamard(rotated, self._block)
        if self._codec.feedback:
            rotated += self._owed[here]
        rows = rotated.reshape(-1, self._block)
        squares = block_squares(rows)
        known = np.isfinite(squares)
        finite[here.start // self._block : here.stop // self._block] = known
        self.energy += float(squares[known].sum(dtype=np.float64))
        left[:] = rotated
        clip_in_place(rows, squares, self._clip)
        left -= rotated

    def _decode(
        self, x: Floats, here: slice, mean: Floats, cut: Floats, lost: Floats, finite: npt.NDArray[np.bool_]
    ) -> None:
        """Rotate a stretch of the mean back into x, and make `cut` what is owed from now on."""
        owed, rotated, taken = cut[here], mean[here], x[here]
        owed += lost[here]
        known = finite[here.start // self._block : here.stop // self._block]
        if not known.all():
            rows = owed.reshape(-1, self._block)
            rows[~known] = self._owed[here].reshape(rows.shape)[~known] if self._codec.feedback else 0.0
        self.lost += energy_of(owed)
        hadamard(rotated, self._block)
        np.multiply(rotated[: len(taken)], self._signs[here], out=taken)

    def state(self) -> State:
        return {"owed": self._owed.copy()} if self._codec.feedback else {}

    def _load(self, state: State) -> None:
        if self._codec.feedback:
            self._owed = np.array(state["owed"], np.float32)

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(energy_of(self._owed)))
