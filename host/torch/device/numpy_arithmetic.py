"""The arithmetic of a reduction in the host's memory, by the numpy functions that every other path is held to."""

from __future__ import annotations

import numpy as np

from fanin.host.codecs import rotation as rotations
from fanin.host.torch.device.arithmetic import CODE_BIAS, MARKS, NOT_FINITE, UNSPOILED, Plan, Rotation
from fanin.numerics import fixed_point
from fanin.numerics import lanes as lane_words
from fanin.numerics.fixed_point import Array, Codec, Codes
from fanin.numerics.lanes import WORD_BITS

_NARROW = 8
"""Any width below 32: the steps of narrow lanes depend on the bound alone."""


class NumpyArithmetic:
    """`Arithmetic` of numpy arrays. bfloat16 is uint16."""

    def codes(self, plan: Plan, x: Array, residual: Array | None, codes: Array) -> None:
        """Write the scale codes of x * factor + residual (`Arithmetic.codes`)."""
        codes[:] = _biased(_codec(plan).codes(x, plan.block_elements, plan.factor, residual))

    def quantize(
        self, plan: Plan, x: Array, residual: Array | None, codes: Array, words: Array, *, adds: bool = False
    ) -> None:
        """Write the words under the agreed codes, and the loss (`Arithmetic.quantize`)."""
        codec, agreed, block = _codec(plan), _unbiased(codes), plan.block_elements
        added = None if adds else residual
        steps = codec.steps(x, agreed, block, plan.factor, added)
        words[:] = lane_words.pack(steps, plan.up, plan.bound).view(np.int32)
        if residual is not None and adds:
            residual += codec.residual_after(x, agreed, block, plan.factor, np.zeros(len(x), np.float32))
        elif residual is not None:
            residual[:] = codec.residual_after(x, agreed, block, plan.factor, residual)

    def dequantize(
        self,
        plan: Plan,
        words: Array,
        codes: Array,
        out: Array,
        *,
        skip: int = 0,
        shifts: Array | None = None,
        failed: Array | None = None,
    ) -> None:
        """Write the values that summed words stand for (`Arithmetic.dequantize`)."""
        if failed is not None and failed[0]:
            out[:] = fixed_point.to_bfloat16(np.full(1, np.nan, np.float32)) if out.dtype == np.uint16 else np.nan
            return
        count = skip + len(out)
        steps = lane_words.unpack(words.view(np.uint32), plan.down, count, plan.offset, 1).astype(np.float32)
        codec, agreed = _codec(plan), _unbiased(codes)
        packet = count if shifts is None else plan.packet_blocks * plan.block_elements
        for first in range(0, count, packet or 1):
            last, block = min(first + packet, count), first // plan.block_elements
            unit = 1.0 if shifts is None else 2.0 ** int(shifts[first // packet])
            values = codec.values(steps[first:last], agreed[block:], plan.block_elements, plan.divisor, unit)
            if last > skip:
                out[max(first - skip, 0) : last - skip] = values[max(skip - first, 0) :]

    def mark(self, codes: Array, marks: Array, rank: int) -> None:
        """Write this rank's marks (`Arithmetic.mark`)."""
        marks[:] = UNSPOILED
        bad = np.flatnonzero(codes == NOT_FINITE)
        if len(bad):
            marks[MARKS * rank : MARKS * (rank + 1)] = bad[0] & 0x7FFF, bad[0] >> 15

    def rotate(
        self, rotation: Rotation, x: Array, signs: Array, owed: Array | None, sent: Array, cut: Array, squares: Array
    ) -> None:
        """Rotate and clip x, and write what was cut (`Arithmetic.rotate`)."""
        squares[:] = rotations.rotate_and_clip(
            _float32(x),
            signs.view(np.uint32),
            rotation.block,
            np.empty(0, np.float32) if owed is None else owed,
            np.float32(rotation.clip),
            sent,
            cut,
        )

    def rotate_back(
        self,
        rotation: Rotation,
        mean: Array,
        signs: Array,
        x: Array,
        owed: Array | None,
        cut: Array | None,
        squares: Array | None,
    ) -> None:
        """Rotate a mean back, and settle the residual (`Arithmetic.rotate_back`)."""
        values = np.empty(rotation.count, np.float32)
        lost, kept = (np.zeros(rotation.padded, np.float32) for _ in range(2))
        rotations.rotate_back(mean, signs.view(np.uint32), rotation.block, lost, kept, values)
        x[:] = fixed_point.to_bfloat16(values) if x.dtype == np.uint16 else values.astype(x.dtype)
        if cut is not None and squares is not None:
            bad = ~np.isfinite(squares)
            cut.reshape(-1, rotation.block)[bad] = 0.0 if owed is None else owed.reshape(-1, rotation.block)[bad]


def _codec(plan: Plan) -> Codec:
    return Codec(plan.element, WORD_BITS if plan.up == WORD_BITS else _NARROW, levels=plan.bound)


def _biased(codes: Codes) -> Array:
    return (codes.astype(np.int32) - CODE_BIAS).astype(np.int16)


def _unbiased(codes: Array) -> Codes:
    return (codes.astype(np.int32) + CODE_BIAS).astype(np.uint16)


def _float32(x: Array) -> Array:
    return fixed_point.from_bfloat16(x) if x.dtype == np.uint16 else x.astype(np.float32)
