"""The arithmetic of a reduction in the host's memory, by the numpy functions that every other path is held to."""

from __future__ import annotations

import numpy as np

from fanin.host.codecs import rotation as rotations
from fanin.host.codecs.lanes_codec import steps_at_random
from fanin.host.codecs.philox import Draws, Purpose
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

    def level(self, codes: Array) -> None:
        """Make every code the largest of them (`Arithmetic.level`)."""
        codes[:] = codes.max(initial=UNSPOILED)

    def quantize(
        self, plan: Plan, x: Array, residual: Array | None, codes: Array, words: Array, *, adds: bool = False,
        draws: Draws | None = None,
    ) -> None:  # fmt: skip
        """Write the words under the agreed codes, and the loss (`Arithmetic.quantize`)."""
        codec, agreed, block = _codec(plan), _unbiased(codes), plan.block_elements
        if draws is not None:
            _write_steps(plan, _steps_at_random(plan, x, residual, agreed, draws), words)
            return
        added = None if adds else residual
        _write_steps(plan, codec.steps(x, agreed, block, plan.factor, added), words)
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
        failed: Array | None = None,
    ) -> None:
        """Write the values that summed words stand for (`Arithmetic.dequantize`)."""
        if failed is not None and failed[0]:
            out[:] = fixed_point.to_bfloat16(np.full(1, np.nan, np.float32)) if out.dtype == np.uint16 else np.nan
            return
        count = skip + len(out)
        codec, agreed = _codec(plan), _unbiased(codes)
        packet = plan.unit_elements if plan.packet_words else count
        for number, first in enumerate(range(0, count, packet or 1)):
            last, block = min(first + packet, count), first // plan.block_elements
            own = words[number * plan.packet_words :].view(np.uint32)
            steps = lane_words.unpack(own, plan.down, last - first, plan.offset, 1).astype(np.float32)
            unit = 2.0 ** int(own[plan.shift_at]) if plan.packet_words else 1.0
            values = codec.values(steps, agreed[block:], plan.block_elements, plan.divisor, unit)
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


def _write_steps(plan: Plan, steps: Array, words: Array) -> None:
    """Pack steps q, shape (count,): word behind word, or packet by packet."""
    if not plan.packet_words:
        words[:] = lane_words.pack(steps, plan.up, plan.bound).view(np.int32)
        return
    whole = np.pad(steps, (0, -len(steps) % plan.unit_elements))
    contributed = plan.unit_elements * plan.up // WORD_BITS
    packed = lane_words.pack(whole, plan.up, plan.bound).view(np.int32).reshape(-1, contributed)
    words.reshape(-1, plan.packet_words)[:, :contributed] = packed


def _steps_at_random(plan: Plan, x: Array, residual: Array | None, codes: Codes, draws: Draws) -> Array:
    """Steps of x plus the residual, which becomes the loss."""
    code = int(codes[0]) if len(codes) else fixed_point.CODE_ZERO
    if code in (fixed_point.CODE_ZERO, fixed_point.CODE_NOT_FINITE):
        return np.zeros(len(x), np.int32)
    whole = _float32(x) if residual is None else _float32(x) + residual
    u = draws.random.uniform(Purpose.ROUNDING, len(x), draws.step, draws.rank)
    q, sent = steps_at_random(whole, fixed_point.bound_of(code), plan.bound, u)
    if residual is not None:
        residual[:] = whole - sent
    return q.astype(np.int32)


def _codec(plan: Plan) -> Codec:
    return Codec(plan.element, WORD_BITS if plan.up == WORD_BITS else _NARROW, levels=plan.bound)


def _biased(codes: Codes) -> Array:
    return (codes.astype(np.int32) - CODE_BIAS).astype(np.int16)


def _unbiased(codes: Array) -> Codes:
    return (codes.astype(np.int32) + CODE_BIAS).astype(np.uint16)


def _float32(x: Array) -> Array:
    return fixed_point.from_bfloat16(x) if x.dtype == np.uint16 else x.astype(np.float32)
