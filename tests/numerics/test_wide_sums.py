"""Sums that keep their bits: what narrowing is, and that every native kernel does the same as the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanin import _native
from fanin.numerics.lanes import WORD_BITS, unpack
from fanin.numerics.reduction import WIDE_SUMS
from fanin.numerics.wide_sums import MAX_CONTRIBUTIONS, accumulated, largest, narrowed
from fanin.protocol.wire import MAX_SHIFT, LaneField
from tests.numerics.codecs import KERNELS, misaligned

WIDTHS = tuple(WIDE_SUMS.values())
MAX_ADDED = 4  # inputs of one pass: native/kernels/kernels.hpp
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def planes(lanes: int, up: int) -> Any:
    """Place of each lane's accumulator: native/kernels/kernels.hpp has them in planes."""
    each = 8 // up
    index = np.arange(lanes)
    return index % each * (lanes // each) + index // each


def largest_of(sums: Any) -> int:
    """Magnitude in two's complement: that of the lowest integer is one more than the highest."""
    return int(np.abs(sums.astype(np.int64)).max(initial=0))


@MANY
@given(
    widths=st.sampled_from(WIDTHS), words=st.integers(0, 70), contributions=st.integers(1, 9), seed=st.integers(0, 999),
    size=st.sampled_from([2, 4]), shifted=st.booleans(), kernels=st.sampled_from(KERNELS),
)  # fmt: skip
def test_native_accumulators_hold_and_narrow_to_what_the_oracle_says(
    widths: tuple[int, int], words: int, contributions: int, seed: int, size: int, shifted: bool, kernels: str
) -> None:
    before = _native.kernels_in_use()
    if not _native.use_kernels(kernels):
        return
    try:
        random = np.random.default_rng(seed)
        lanes = words * WORD_BITS // widths[0]
        sums = np.full(lanes * size, 0xEE, np.uint8)
        total: Any = np.zeros(lanes, np.int16 if size == 2 else np.int32)
        added = 0
        while added < contributions:
            field = LaneField(*widths, shift=int(random.integers(0, MAX_SHIFT + 1)) if shifted else 0)
            together = [
                random.integers(0, 1 << 32, words, np.uint32)
                for _ in range(int(random.integers(1, min(MAX_ADDED, contributions - added) + 1)))
            ]
            inputs = [misaligned(each.astype(">u4")) for each in together]
            most = _native.accumulate_lanes(sums, size, field.field, *inputs, first=added == 0)
            for each in together:
                total = total + accumulated(each, field, size)
            added += len(together)
        assert most == largest_of(total)
        order = planes(lanes, widths[0])
        assert np.array_equal(sums.view(total.dtype)[order], total)
        expected, shift = narrowed(total, widths[1])
        out = np.full(words * 4 * widths[1] // widths[0], 0xEE, np.uint8)
        assert _native.narrow_lanes(sums, size, LaneField(*widths).field, most, out) == shift
        assert out.tobytes() == expected.astype(">u4").tobytes()
    finally:
        assert _native.use_kernels(before)


@MANY
@given(down=st.sampled_from([4, 8]), values=st.lists(st.integers(-(2**16), 2**16), min_size=8, max_size=8))
def test_narrowing_takes_the_least_shift_and_rounds_to_nearest_with_ties_to_even(down: int, values: list[int]) -> None:
    sums = np.array(values, np.int32)
    words, shift = narrowed(sums, down)
    steps = unpack(words, down, len(sums), largest(down), 1)
    assert steps.tolist() == np.rint(sums / 2.0**shift).astype(int).tolist()
    assert np.abs(steps).max() <= largest(down)
    if shift:
        assert np.rint(np.abs(sums).max() / 2.0 ** (shift - 1)) > largest(down)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("down", [4, 8])
def test_extremes_that_nobody_honest_sends_are_clamped_alike(size: int, down: int) -> None:
    info = np.iinfo(np.int16 if size == 2 else np.int32)
    sums = np.array([info.min, info.max, -1, 1] * 2, info.dtype)
    words, shift = narrowed(sums, down)
    steps = unpack(words, down, len(sums), largest(down), 1)
    assert shift <= MAX_SHIFT
    assert np.abs(steps).max() <= largest(down)
    out = np.empty(len(sums) * down // 8, np.uint8)
    native = np.empty_like(sums)
    native[planes(len(sums), down)] = sums
    field, most = LaneField(down, down).field, largest_of(sums)
    assert _native.narrow_lanes(native.view(np.uint8), size, field, most, out) == shift
    assert out.tobytes() == words.astype(">u4").tobytes()


def test_the_shift_covers_the_most_contributions() -> None:
    for up, down in WIDTHS:
        most = np.full(32, MAX_CONTRIBUTIONS * largest(up), np.int32)
        words, shift = narrowed(most, down)
        steps = unpack(words, down, 32, largest(down), 1)
        assert abs(int(steps[0]) * 2**shift - int(most[0])) <= 2**shift // 2
