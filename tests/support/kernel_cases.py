"""Cases that an arithmetic on a device is held to: bit by bit what `NumpyArithmetic` does with the same buffers.

Cases are of `count` elements, so that an interpreter takes small ones and a GPU large ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanin.host.codecs.philox import Draws, Randomness
from fanin.host.codecs.rotated import clip_for
from fanin.host.codecs.rotation import block_for
from fanin.host.codecs.shifted_weights import ShiftedWeights
from fanin.host.torch.device.arithmetic import CODE_BIAS, Arithmetic, Plan, Rotation
from fanin.host.torch.device.numpy_arithmetic import NumpyArithmetic
from fanin.numerics import wide_sums
from fanin.numerics.fixed_point import CODE_NOT_FINITE, Array, to_bfloat16
from fanin.numerics.lanes import largest_step
from fanin.numerics.reduction import Element

Floats = npt.NDArray[np.float32]

KINDS = ("normal", "student", "ties", "tiny", "huge", "bits", "not finite", "zero")
MIXED = "mixed"
"""Blocks of every kind in turn, so that one launch sees them all."""
SHORT = 176
"""Elements of a block whose words a program makes at once; an interpreter takes as long for a tile as for its loop."""
TORCH = {Element.FLOAT32: torch.float32, Element.BFLOAT16: torch.bfloat16, Element.FLOAT16: torch.float16}


def samples(rng: np.random.Generator, count: int, kind: str) -> Floats:
    """Elements that are hard in some way."""
    if kind == "student":
        return rng.standard_t(2, count).astype(np.float32)
    if kind == "ties":  # multiples of half a step are common
        return (rng.integers(-63, 64, count) / 2).astype(np.float32)
    if kind == "tiny":
        return (rng.standard_normal(count) * 1e-42).astype(np.float32)
    if kind == "huge":
        return (rng.standard_normal(count) * 1e38).astype(np.float32)
    if kind == "tiny squares":  # of a row: subnormal
        return (rng.standard_normal(count) * 1e-21).astype(np.float32)
    if kind == "bits":
        x = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
        return np.where(np.isfinite(x), x, np.float32(1))
    if kind == "zero":
        return np.zeros(count, np.float32)
    x = rng.standard_normal(count).astype(np.float32)
    if kind == "not finite":
        x[count // 3], x[count // 2] = np.nan, -np.inf
    return x


@dataclass(frozen=True, slots=True)
class LaneCase:
    """One contribution's way to words, and a sum's way to values."""

    kind: str
    """One of KINDS, or MIXED."""
    count: int
    up: int = 8
    down: int = 0
    """0: `up`, packed; otherwise wide sums."""
    workers: int = 3
    element: Element = Element.FLOAT32
    block: int = 1408
    factor: float = 1.0
    feedback: bool = True
    adds: bool = False
    skip: int = 0
    at_random: bool = False
    """Rounded up or down at random, under one code."""
    watched: bool = False
    """Also decode under a flag that is not set, and under one that is."""

    @property
    def plan(self) -> Plan:
        """Packed: as many levels as so many workers leave; wide: all."""
        bound = wide_sums.largest(self.up) if self.down else largest_step(self.up, self.workers)
        offset = wide_sums.largest(self.down) if self.down else 0 if self.up == 32 else self.workers * bound
        return Plan(
            element=self.element, up=self.up, down=self.down or self.up, bound=bound, block_elements=self.block,
            packet_blocks=2, offset=offset, divisor=float(self.workers), factor=self.factor,
            packet_words=2 * self.block * self.down // 32 + 4 if self.down else 0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RotationCase:
    """A bucket's rotation, and back."""

    kind: str
    count: int
    bound: int = 15
    element: Element = Element.FLOAT32
    feedback: bool = True


Case = LaneCase | RotationCase


def lane_cases(count: int) -> Iterator[LaneCase]:
    """Every width and element type with blocks of every kind; blocks of several tiles; what else decides a kernel."""
    for up in (32, 16, 8, 4):
        yield LaneCase(MIXED, count, up, block=SHORT, watched=up == 8)
    for up in (16, 4):
        yield LaneCase(MIXED, count - 1, up, workers=1, block=SHORT, feedback=False)
    for element in (Element.BFLOAT16, Element.FLOAT16):
        yield LaneCase(MIXED, count, element=element, block=SHORT, factor=0.3, watched=element is Element.FLOAT16)
        yield LaneCase("normal", 5 * SHORT, 32, workers=4, element=element, block=SHORT)  # ties of 16 bits (_lanes)
    for up, down in ((8, 8), (4, 8), (4, 4), (2, 8), (2, 4)):
        yield LaneCase(MIXED, min(count, 8 * SHORT + 5), up, down, block=SHORT)
    yield from random_cases(count)
    for up, block in ((32, 352), (16, 704), (8, 1408), (4, 2816)):  # an Ethernet packet's words: three tiles
        yield LaneCase("student", count + block // 3, up, block=block)
    yield LaneCase("bits", count - 3, 4, block=4088, factor=0.37)
    yield LaneCase(MIXED, count, 8, block=SHORT, adds=True)
    yield LaneCase("normal", count, 8, skip=37)
    yield LaneCase("normal", 1, 8)


def random_cases(count: int) -> Iterator[LaneCase]:
    """Steps rounded at random, packed and wide, of every kind of block."""
    for kind in ("ties", "not finite", "zero"):
        yield LaneCase(kind, min(count, SHORT + 5), 4, 8, block=SHORT, at_random=True)
    yield LaneCase("huge", min(count, 3 * SHORT + 5), 8, block=SHORT, element=Element.BFLOAT16, at_random=True)
    yield LaneCase("tiny", min(count, 2 * SHORT), 2, 4, block=SHORT, feedback=False, at_random=True)
    yield LaneCase("student", count, 16, block=SHORT, at_random=True)


def rotation_cases(count: int) -> Iterator[RotationCase]:
    """Rows that are whole, padded, short; clipped or not; finite or not."""
    for kind in ("student", "huge", "tiny", "not finite"):
        yield RotationCase(kind, count)
    yield RotationCase("tiny squares", count, feedback=False)
    for small in (1, 17, 200):
        yield RotationCase("student", small)
    yield RotationCase("normal", count, bound=1 << 20, feedback=False)
    yield RotationCase("student", count, element=Element.BFLOAT16)
    yield RotationCase("not finite", count, element=Element.FLOAT16, feedback=False)


def differences(arithmetic: Arithmetic[torch.Tensor], device: torch.device | str, case: Case) -> list[str]:
    """The buffers that are not as numpy's, bit by bit, and where first; the sign of NaN is nobody's in rotations."""
    compare = _Compare(arithmetic, torch.device(device))
    with np.errstate(all="ignore"):
        if isinstance(case, LaneCase):
            _lanes(compare, case)
        else:
            _rotation(compare, case)
    return compare.found


class _Compare:
    """The same call of both arithmetics, each on buffers of its own, and what they have written."""

    def __init__(self, arithmetic: Arithmetic[torch.Tensor], device: torch.device) -> None:
        self._device = device
        self._sides: tuple[Any, Any] = (NumpyArithmetic(), arithmetic)
        self.found: list[str] = []

    def call(self, name: str, *arguments: Any, writes: dict[str, Array], any_nan: bool = False, **named: Any) -> None:
        """`writes` are those of the arguments that are compared, and hold numpy's results afterwards."""
        host, own = self._sides
        placed = [self._placed(each) for each in arguments]
        getattr(own, name)(*placed, **{key: self._placed(each) for key, each in named.items()})
        getattr(host, name)(*arguments, **named)
        for label, array in writes.items():
            at = next(number for number, each in enumerate(arguments) if each is array)
            self._look(f"{name}: {label}", _to_numpy(placed[at], array.dtype), array, any_nan)

    def _placed(self, argument: Any) -> Any:
        if not isinstance(argument, np.ndarray):
            return argument
        if argument.dtype == np.uint16:
            return torch.from_numpy(argument.view(np.int16).copy()).view(torch.bfloat16).to(self._device)
        return torch.from_numpy(argument.copy()).to(self._device)

    def _look(self, label: str, got: Array, want: Array, any_nan: bool) -> None:
        if any_nan and got.dtype != np.int32:
            got, want = (np.where(_is_nan(each), each.dtype.type(0), each) for each in (got, want))
        bits = f"u{want.dtype.itemsize}"
        bad = np.flatnonzero(got.view(bits) != want.view(bits))
        if len(bad):
            first = bad[0]
            self.found.append(f"{label}: {len(bad)} of {len(want)}, first [{first}]: {got[first]} for {want[first]}")


def _to_numpy(tensor: torch.Tensor, dtype: np.dtype[Any]) -> Array:
    if dtype == np.uint16:
        return tensor.view(torch.int16).cpu().numpy().view(np.uint16)
    array: Array = tensor.cpu().numpy()
    return array


def _is_nan(x: Array) -> npt.NDArray[np.bool_]:
    return (x & 0x7FFF) > 0x7F80 if x.dtype == np.uint16 else np.isnan(x)


def _as_element(x: Floats, element: Element) -> Array:
    if element is Element.BFLOAT16:
        return to_bfloat16(x)
    return x.astype(np.float16) if element is Element.FLOAT16 else x


def _lanes(compare: _Compare, case: LaneCase) -> None:
    rng = np.random.default_rng(case.count)
    plan, count = case.plan, case.count
    kinds = KINDS if case.kind == MIXED else (case.kind,)
    firsts = range(0, count, case.block if case.kind == MIXED else count)
    parts = [(kinds[n % len(kinds)], min(count - first, firsts.step)) for n, first in enumerate(firsts)]
    x = _as_element(np.concatenate([samples(rng, many, kind) for kind, many in parts]), case.element)
    small = {"tiny": 1e-42, "huge": 1e37, "zero": 0.0}
    owing = [rng.standard_normal(many) * small.get(kind, 0.1) for kind, many in parts]
    owed = np.concatenate(owing).astype(np.float32) if case.feedback else None
    codes = np.zeros(plan.blocks(count), np.int16)
    compare.call("codes", plan, x, None if case.adds else owed, codes, writes={"codes": codes})
    agreed = _larger(rng, codes, plan)
    draws = None
    if case.at_random:
        compare.call("level", agreed, writes={"codes": agreed})
        draws = Draws(Randomness(2**32 - 5, 7), 2**33 + 3, 1)
    words = np.zeros(plan.words(count), np.int32)
    written = {"words": words} | ({} if owed is None else {"residual": owed})
    compare.call("quantize", plan, x, owed, agreed, words, adds=case.adds, draws=draws, writes=written)
    sums = rng.integers(-(2**31), 2**31, plan.words(count), dtype=np.int64).astype(np.int32)
    if plan.packet_words:
        packets = len(sums) // plan.packet_words
        sums[plan.shift_at :: plan.packet_words] = rng.integers(0, 9, packets)
    if plan.down == 32:
        sums >>= np.int32(3)
        sums[::3] >>= np.int32(20)  # nine bits: odd ones are ties of bfloat16 under a divisor of 2^n
        sums[1::3] >>= np.int32(17)  # twelve bits: the same for float16
    out = np.zeros(count - case.skip, x.dtype)
    arguments = (plan, sums, agreed, out)
    compare.call("dequantize", *arguments, skip=case.skip, writes={"values": out})
    if case.watched:
        for label, failed in (("watched", 0), ("failed", 1)):
            flag = np.full(1, failed, np.int32)
            compare.call("dequantize", *arguments, skip=case.skip, failed=flag, writes={label: out})


def _larger(rng: np.random.Generator, codes: Array, plan: Plan) -> Array:
    """Codes that ranks could have agreed upon, where this one has `codes`."""
    own = codes.astype(np.int32) + CODE_BIAS
    more = np.minimum(own + rng.integers(0, 3, len(own)) * (32 if plan.up == 32 else 1), 0xFFE0)
    return (np.where(own == CODE_NOT_FINITE, own, more) - CODE_BIAS).astype(np.int16)


def _rotation(compare: _Compare, case: RotationCase) -> None:
    rng = np.random.default_rng(case.count)
    rotation = Rotation(case.count, block_for(case.count), clip_for(case.bound))
    x = _as_element(samples(rng, case.count, case.kind), case.element)
    signs = Randomness(3, 5).sign_words(case.count).view(np.int32)
    owed = (rng.standard_normal(rotation.padded) * 0.1).astype(np.float32) if case.feedback else None
    sent, cut = (np.zeros(rotation.padded, np.float32) for _ in range(2))
    squares = np.zeros(rotation.rows, np.float32)
    written = {"sent": sent, "cut": cut, "squares": squares}
    compare.call("rotate", rotation, x, signs, owed, sent, cut, squares, writes=written, any_nan=True)
    mean = samples(rng, rotation.padded, case.kind)
    out = np.zeros_like(x)
    written = {"x": out, "cut": cut}
    compare.call("rotate_back", rotation, mean, signs, out, owed, cut, squares, writes=written, any_nan=True)


def weight_differences(coder: Any, device: torch.device | str, bits: int, count: int, bucket: int) -> list[str]:
    """Differences between `DeviceWeights` (`coder` makes one of a plan) and the host's codec; NaN's bits may differ."""
    codec = ShiftedWeights(bits, bucket=bucket, seed=5)
    own, random, rng = coder(codec.device_plan()), Randomness(5, 3), np.random.default_rng(count)
    x = rng.standard_normal(count).astype(np.float32)
    x[:bucket] *= np.float32(1e-40)
    if count > bucket:
        x[bucket + 3] = np.nan
    host, place = np.zeros(codec.encoded_bytes(count), np.uint8), {"first": 4 * bucket}
    there = torch.zeros(1 + len(host), dtype=torch.uint8, device=device)[1:]  # rows of a gather begin anywhere
    with np.errstate(all="ignore"):
        codec.encode(x, host, random, 7, 2, **place)
        own.encode(torch.from_numpy(x).to(device), there, random, 7, 2, **place)
        found = [] if np.array_equal(there.cpu().numpy(), host) else ["bytes"]
        first = min(5, count - 1)
        rows = np.stack([host, host])
        values = np.zeros((2, count - first), np.float32)
        codec.decode_rows(rows, values, first=first, count=count)
        for dtype in TORCH.values():
            out = torch.zeros(values.shape, dtype=dtype, device=device)
            own.decode_rows(torch.from_numpy(rows).to(device), out, first=first, count=count)
            want = torch.from_numpy(values).to(dtype)
            same = torch.equal(out.cpu().nan_to_num(), want.nan_to_num()) and torch.equal(
                out.cpu().isnan(), want.isnan()
            )
            found += [] if same else [str(dtype)]
    return found
