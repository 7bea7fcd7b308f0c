"""Weights on shifted grids: what they lose, how many bytes they take, and what stays exact."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from fanin.errors import ConfigurationError
from fanin.host.codecs import make_weights
from fanin.host.codecs.philox import Purpose, Randomness
from fanin.host.codecs.shifted_weights import BITS, ShiftedWeights
from fanin.host.codecs.weight_codec import Loss

Floats = npt.NDArray[np.float32]
RANDOM = Randomness(5, 2)


def normal(count: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def through(codec: ShiftedWeights, x: Floats, step: int = 0, rank: int = 0) -> tuple[Floats, Loss]:
    encoded = np.full(codec.encoded_bytes(len(x)), 0xA5, np.uint8)
    loss = codec.encode(x, encoded, RANDOM, step, rank)
    decoded = np.full(len(x), 7, np.float32)
    codec.decode(encoded, decoded)
    return decoded, loss


def by_element(codec: ShiftedWeights, x: Floats, step: int, rank: int) -> list[float]:
    """The equations of the module's head, an element at a time, in float64."""
    found = []
    for number, start in enumerate(range(0, len(x), codec.bucket)):
        bucket = x[start : start + codec.bucket].astype(np.float64)
        delta = (bucket.max() - bucket.min()) / (2**codec.bits - 1)
        shift = float(RANDOM.uniform(Purpose.SHIFTS, number + 1, step, rank)[number]) - 0.5
        offset = bucket.min() + shift * delta
        found += [offset + np.rint((value - offset) / delta) * delta for value in bucket]
    return found


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 1023, 1024, 1025, 3001])
def test_every_element_is_within_half_a_step_and_the_bytes_are_as_stated(bits: int, count: int) -> None:
    codec, x = ShiftedWeights(bits), normal(count)
    decoded, loss = through(codec, x)
    buckets = -(-count // 1024)
    assert codec.encoded_bytes(count) == 8 * buckets + -(-count * bits // 8)
    for start in range(0, count, 1024):
        part = x[start : start + 1024]
        step = (float(part.max()) - float(part.min())) / (2**bits - 1)
        assert np.abs(decoded[start : start + 1024] - part).max() <= 0.5001 * step + 1e-6
    if count > 1:
        assert loss.nmse == pytest.approx(np.square(decoded - x).sum() / np.square(x).sum(), rel=1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_it_does_what_its_equations_say(bits: int) -> None:
    codec, x = ShiftedWeights(bits, bucket=64), normal(150)
    np.testing.assert_allclose(through(codec, x, step=4, rank=3)[0], by_element(codec, x, 4, 3), atol=2e-6)


def test_1024_floats_take_1032_bytes_of_4096_with_8_bits() -> None:
    assert ShiftedWeights(8).encoded_bytes(1024) == 1032


@pytest.mark.parametrize("bits", BITS)
def test_the_mean_over_shifts_is_the_weight(bits: int) -> None:
    x = normal(64)
    draws = np.array([through(ShiftedWeights(bits), x, step)[0] for step in range(3000)], np.float64)
    standard_error = draws.std(axis=0) / np.sqrt(len(draws)) + 1e-7
    assert np.abs((draws.mean(axis=0) - x) / standard_error).max() < 5


def test_shifts_differ_between_steps_and_ranks_and_can_be_drawn_again() -> None:
    codec, x = ShiftedWeights(4), normal(2000)
    first, again, other_step, other_rank = (through(codec, x, *which)[0] for which in ((1, 0), (1, 0), (2, 0), (1, 1)))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other_step)
    assert not np.array_equal(first, other_rank)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.25e-20, 1e30])
def test_a_bucket_of_equal_elements_is_exact(value: float) -> None:
    x = np.full(1500, value, np.float32)
    assert np.array_equal(through(ShiftedWeights(4), x)[0], x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_bucket_nan_and_no_other(bad: float) -> None:
    x = normal(3000)
    x[1500] = bad
    decoded, loss = through(ShiftedWeights(8), x)
    assert np.isnan(decoded[1024:2048]).all()
    assert np.isfinite(decoded[:1024]).all()
    assert np.isfinite(decoded[2048:]).all()
    assert loss == Loss()


def test_a_wide_range_does_not_overflow_and_one_beyond_float32_is_nan() -> None:
    x = np.array([-1e38, 1e38, 0.0, 1e-45] * 300, np.float32)
    decoded, _ = through(ShiftedWeights(8), x)
    assert np.abs(decoded - x).max() < 4e35
    decoded, loss = through(ShiftedWeights(8), 3 * x)
    assert np.isnan(decoded).all()
    assert loss == Loss()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bucket", [64, 1000, 1024])
def test_native_and_numpy_have_the_same_bits(bits: int, bucket: int) -> None:
    codec, engine = ShiftedWeights(bits, bucket), pytest.importorskip("fanin._native")
    for count in (1, 5, 63, 1025, 3001):
        shifts = np.random.default_rng(count).uniform(-0.5, 0.5, -(-count // bucket)).astype(np.float32)
        for x in (normal(count), normal(count) * 1e30, normal(count) * 1e-42, np.full(count, 3.0)):
            given = x.astype(np.float32)
            for place, bad in ((0, given[0]), (count // 2, np.nan), (count - 1, np.inf)):
                given[place] = bad
                native, twin = (np.full(codec.encoded_bytes(count), 0xA5, np.uint8) for _ in range(2))
                energy, lost = engine.shifted_encode_into(given, bucket, bits, shifts, native)
                loss = codec.encode_oracle(given, shifts, twin)
                assert native.tobytes() == twin.tobytes()
                if loss.energy:
                    assert (energy, lost) == pytest.approx((loss.energy, loss.lost), rel=1e-3, abs=1e-30)
                values, decoded = np.empty((2, count), np.float32)
                codec.decode(native, values)
                codec.decode_oracle(native, decoded, 0, count)
                assert values.tobytes() == decoded.tobytes()
                part = np.empty(count - count // 3, np.float32)
                codec.decode_oracle(twin, part, count // 3, count)
                assert part.tobytes() == decoded[count // 3 :].tobytes()


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_rows_too_long_for_caches_are_what_short_ones_are(bits: int) -> None:
    """They are written past the caches, in lines of 64 bytes; a row begins and ends within one."""
    engine = pytest.importorskip("fanin._native")
    codec, count, rows = ShiftedWeights(bits), (2 << 20) // 4 + 2001, 2
    given = normal(count)
    codes = np.zeros((rows, codec.encoded_bytes(count)), np.uint8)
    for row in codes:
        codec.encode(given, row, RANDOM, step=3, rank=4)
    first, space = 1001, np.full((rows, count + 64), np.float32(7))
    into = space[:, 3 : 3 + count - first]
    assert into.size * 4 >= 4 << 20
    engine.shifted_decode_into(codes, count, codec.bucket, bits, first, into)
    short = np.empty((1, count), np.float32)
    engine.shifted_decode_into(codes[:1], count, codec.bucket, bits, 0, short)
    assert (into == short[0, first:]).all()
    assert (space[:, :3] == 7).all()
    assert (space[:, 3 + count - first :] == 7).all()


def test_rows_that_the_engine_cannot_decode_are_refused() -> None:
    codec, engine = ShiftedWeights(8), pytest.importorskip("fanin._native")
    codes, values = np.zeros((2, codec.encoded_bytes(8)), np.uint8), np.full((2, 8), np.float32(7))
    for given, into, wrong in (
        (codes, values[:1], "a row for each rank"),
        (codes[0], values, "a row for each rank"),
        (codes[:, 1:], values, "wrong length"),
        (codes, np.zeros((2, 9), np.float32), "beyond the last element"),
        (np.zeros((2, 2 * codec.encoded_bytes(8)), np.uint8)[:, ::2], values, "must lie in a row"),
        (codes, np.zeros((2, 16), np.float32)[:, ::2], "must lie in a row"),
    ):
        with pytest.raises(ValueError, match=wrong):
            engine.shifted_decode_into(given, 8, codec.bucket, codec.bits, 0, into)
    assert (values == 7).all()


def test_codecs_are_read_as_they_are_written() -> None:
    for text, codec in (
        ("8", ShiftedWeights(8)),
        ("shifted:4", ShiftedWeights(4)),
        ("shifted:6:bucket=256:seed=9", ShiftedWeights(6, 256, seed=9)),
    ):
        assert make_weights(text) == codec


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("7", "8, 6, 4 bits"),
        ("rotated:8", "no codec 'rotated' for weights, but shifted"),
        ("shifted:8:clip=3", "no field 'clip'"),
        ("shifted:8:bucket=some", "bucket = 'some' is not legal"),
        ("shifted:8:bucket=63", "multiple of 8"),
        ("shifted:8:seed=4294967296", r"0\.\.2\^32"),
        ("", "no codec ''"),
    ],
)
def test_unknown_codecs_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        make_weights(text)
