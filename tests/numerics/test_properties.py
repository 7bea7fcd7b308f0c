"""Promises of the numerics (docs/numerics.md), held against exact arithmetic, for both codecs: numpy and native."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.numerics.fixed_point import CODE_NOT_FINITE, CODE_ZERO, DTYPES, Array, Codec, from_bfloat16, to_bfloat16
from fanin.numerics.lanes import largest_step, pack, unpack
from fanin.numerics.reduction import LANES, Element
from tests.numerics.codecs import FLOATING, INTEGERS, AnyCodec, NativeCodec, random_array, reduce_chunk

FLOAT32_EPSILON = 2.0**-23
MOST_CONTRIBUTIONS = {32: 2**31 - 1, 16: 32_767, 8: 127, 4: 7}
BLOCK = 64

either_twin = pytest.mark.parametrize("twin", [Codec, NativeCodec], ids=["numpy", "native"])
seeds = st.integers(0, 2**32 - 1)


def gradients(workers: int, count: int, seed: int) -> list[npt.NDArray[np.float32]]:
    """Inputs of one magnitude, which differs from seed to seed over nearly all of float32."""
    generator = np.random.default_rng(seed)
    power = int(generator.integers(-120, 110))
    return [np.ldexp(generator.normal(size=count), power).astype(np.float32) for _ in range(workers)]


@given(workers=st.integers(1, 32), seed=seeds)
def test_float32_over_32_bit_lanes_is_within_one_epsilon_of_a_float64_sum(workers: int, seed: int) -> None:
    """The epsilon is of the chunk's maximum (of inputs and sums): every element up to 8 workers, their root mean square
    up to 32.
    """
    inputs = gradients(workers, BLOCK, seed)
    exact = np.sum(inputs, axis=0, dtype=np.float64)
    largest = max(np.abs(inputs).max(), np.abs(exact).max())
    for codec in (Codec(Element.FLOAT32, 32, workers), NativeCodec(Element.FLOAT32, 32, workers)):
        errors = (reduce_chunk(codec, list(inputs), BLOCK) - exact) / largest
        assert np.sqrt(np.mean(errors**2)) <= FLOAT32_EPSILON
        assert np.abs(errors).max() <= FLOAT32_EPSILON or workers > 8


@given(workers=st.integers(1, 96), lanes=st.sampled_from([16, 8, 4]), seed=seeds)
def test_narrow_lanes_err_by_half_a_step_for_each_worker(workers: int, lanes: int, seed: int) -> None:
    workers = min(workers, MOST_CONTRIBUTIONS[lanes])
    inputs = gradients(workers, BLOCK, seed)
    codec = Codec(Element.FLOAT32, lanes, workers)
    codes = np.max([codec.codes(x, BLOCK) for x in inputs], axis=0)
    bound = float((codes.astype(np.uint64) << np.uint64(47)).view(np.float64)[0])
    largest = np.abs(inputs).max()
    assert largest <= bound <= largest * (1 + 1 / 32)
    error = np.abs(reduce_chunk(codec, list(inputs), BLOCK) - np.sum(inputs, axis=0, dtype=np.float64)).max()
    step = bound / codec.bound
    assert error <= workers * step / 2 + 4 * 2.0**-24 * workers * bound


@given(workers=st.integers(1, 96), seed=seeds)
def test_32_bit_lanes_err_by_half_a_step_for_each_worker_and_one_rounding(workers: int, seed: int) -> None:
    """The worst case, exactly: rational arithmetic, no tolerance."""
    inputs = gradients(workers, 16, seed)
    codec = Codec(Element.FLOAT32, 32, workers)
    code = int(max(codec.codes(x, 16)[0] for x in inputs))
    step = Fraction(2) ** ((code >> 5) - 1023 - codec.exponent)
    result = reduce_chunk(codec, list(inputs), 16)
    for at in range(16):
        exact = sum((Fraction(float(x[at])) for x in inputs), Fraction(0))
        within = workers * step / 2
        assert abs(Fraction(float(result[at])) - exact) <= within + (abs(exact) + within) / 2**24


@given(seed=seeds, lanes=st.sampled_from(LANES), workers=st.integers(1, 7))
def test_every_step_is_the_nearest_with_ties_to_even(seed: int, lanes: int, workers: int) -> None:
    """Python's round() of an exact fraction is the oracle's oracle."""
    x = random_array(Element.FLOAT32, BLOCK, "halves", seed)
    codec = Codec(Element.FLOAT32, lanes, workers)
    codes = codec.codes(x, BLOCK)
    if codes[0] == CODE_ZERO:
        return
    power, mantissa = int(codes[0] >> 5) - 1023, 1 + (int(codes[0]) & 31) / 32
    multiplier = Fraction(2) ** (codec.exponent - power)
    if lanes != 32:  # B / m is rounded to float32 once, and the product once more
        multiplier = Fraction(float(np.float32(codec.bound / mantissa))) / Fraction(2) ** power
    products = [Fraction(float(value)) * multiplier for value in x]
    if lanes != 32:
        products = [Fraction(float(np.float32(float(product)))) for product in products]
    steps = unpack(codec.quantize(x, codes, BLOCK), lanes, BLOCK, codec.bound, 1)
    assert steps.tolist() == [round(product) for product in products]


@either_twin
def test_ties_go_to_even_wherever_they_stand(twin: type[AnyCodec]) -> None:
    """The same value rounds the same way at every position: whole groups, tails and blocks alike."""
    for value, expected in ((0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (126.5, 126)):
        for count in (1, 7, 16, 17, 63):
            x = np.full(count + 1, value, np.float32)
            x[-1] = 1 << 28  # with M = 4, k = 28: one step is exactly 1
            codec = twin(Element.FLOAT32, 32, 4)
            words = codec.quantize(x, codec.codes(x, BLOCK), BLOCK)
            assert words[:-1].view(np.int32).tolist() == [expected] * count


@either_twin
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("element", FLOATING)
def test_one_value_that_is_not_finite_makes_its_block_nan_for_everybody(
    twin: type[AnyCodec], lanes: int, bad: float, element: Element
) -> None:
    codec = twin(element, lanes, 3)
    inputs = [random_array(element, 3 * BLOCK + 5, "uniform", seed) for seed in range(3)]
    poison = np.array([bad], np.float64)
    inputs[1][BLOCK + 7 : BLOCK + 8] = (
        to_bfloat16(poison.astype(np.float32)) if element is Element.BFLOAT16 else poison.astype(inputs[1].dtype)
    )
    assert codec.codes(inputs[1], BLOCK)[1] == CODE_NOT_FINITE
    result = reduce_chunk(codec, inputs, BLOCK)
    values = from_bfloat16(result) if element is Element.BFLOAT16 else result
    assert np.isnan(values[BLOCK : 2 * BLOCK]).all()
    assert np.isfinite(values[:BLOCK]).all()
    assert np.isfinite(values[2 * BLOCK :]).all()


@either_twin
def test_a_product_that_overflows_is_not_finite_either(twin: type[AnyCodec]) -> None:
    x = np.full(8, 3e38, np.float32)
    assert twin(Element.FLOAT32, 32, 1).codes(x, 8, 2.0)[0] == CODE_NOT_FINITE


@given(lanes=st.sampled_from([16, 8, 4]), contributions=st.integers(1, 96), seed=seeds)
def test_nothing_is_carried_between_lanes_at_the_extremes(lanes: int, contributions: int, seed: int) -> None:
    contributions = min(contributions, MOST_CONTRIBUTIONS[lanes])
    bound = largest_step(lanes, contributions)
    signs = np.random.default_rng(seed).choice([-1, 1], 24).astype(np.int32)
    total = np.zeros(24 * lanes // 32, np.uint32)
    for _ in range(contributions):
        total += pack(signs * np.int32(bound), lanes, bound)
    assert (unpack(total, lanes, 24, bound, contributions) == signs * contributions * bound).all()


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_that_cannot_hold_the_contributions_are_refused_with_a_remedy(lanes: int) -> None:
    most = MOST_CONTRIBUTIONS[lanes]
    assert largest_step(lanes, most) == 1
    with pytest.raises(ConfigurationError, match="take "):
        Codec(Element.FLOAT32, lanes, most + 1)
    with pytest.raises(ValueError, match="wider lanes" if lanes != 32 else "32-bit"):
        NativeCodec(Element.FLOAT32, lanes, most + 1)


@either_twin
@pytest.mark.parametrize("element", INTEGERS)
def test_integers_are_exact_and_wrap_around(twin: type[AnyCodec], element: Element) -> None:
    inputs = [random_array(element, 101, "bits", seed) for seed in range(5)]
    expected = np.sum(inputs, axis=0, dtype=DTYPES[element])
    assert (reduce_chunk(twin(element, 32, 5), inputs, BLOCK) == expected).all()


@either_twin
def test_whole_numbers_in_floats_are_summed_exactly(twin: type[AnyCodec]) -> None:
    """Counts and masks survive: with 32-bit lanes every integer below 2^24 / N comes back as it is."""
    inputs = [np.random.default_rng(seed).integers(-1000, 1000, 200).astype(np.float32) for seed in range(8)]
    assert (reduce_chunk(twin(Element.FLOAT32, 32, 8), list(inputs), BLOCK) == np.sum(inputs, axis=0)).all()


@either_twin
def test_float64_keeps_twice_the_bits_of_one_word(twin: type[AnyCodec]) -> None:
    generator = np.random.default_rng(5)
    for power in (-1060, -1000, 0, 1000):
        inputs = [np.ldexp(generator.normal(size=100), power) for _ in range(4)]
        exact = [sum(Fraction(float(x[at])) for x in inputs) for at in range(100)]
        largest = max(abs(Fraction(float(value))) for x in inputs for value in x)
        result = reduce_chunk(twin(Element.FLOAT64, 32, 4), list(inputs), 100)
        errors = [abs(Fraction(float(value)) - sum_) for value, sum_ in zip(result, exact, strict=True)]
        assert max(errors) <= largest / 2**50 + Fraction(2) ** -1074


@either_twin
@given(lanes=st.sampled_from([16, 8, 4]), seed=seeds)
@settings(max_examples=30)
def test_error_feedback_telescopes(twin: type[AnyCodec], lanes: int, seed: int) -> None:
    """Over the steps, what was sent plus what is left over is what went in, up to float32 rounding."""
    codec = twin(Element.FLOAT32, lanes, 4)
    generator = np.random.default_rng(seed)
    residual = np.zeros(100, np.float32)
    sent, given_in, largest = np.zeros(100), np.zeros(100), 0.0
    for _ in range(20):
        x = generator.normal(size=100).astype(np.float32)
        codes = codec.codes(x, BLOCK, 0.5, residual)
        words = codec.quantize(x, codes, BLOCK, 0.5, residual)
        after = codec.residual_after(x, codes, BLOCK, 0.5, residual)
        sent += codec.dequantize(words, codes, BLOCK, 100, 1)
        given_in += x * np.float32(0.5)
        residual = np.asarray(after, np.float32)
        largest = max(largest, float(np.abs(x).max()), float(np.abs(residual).max()))
    assert np.abs(sent + residual - given_in).max() <= 20 * 4 * 2.0**-24 * largest


@either_twin
def test_a_block_that_is_not_finite_keeps_its_residual(twin: type[AnyCodec]) -> None:
    """A skipped step of mixed-precision training must not poison the steps after it."""
    x = np.array([1.0, np.nan, 3.0, 4.0] * 4, np.float32)
    residual = np.linspace(-1, 1, 16).astype(np.float32)
    codec = twin(Element.FLOAT32, 8, 2)
    codes = codec.codes(x, 16, 1.0, residual)
    assert (codec.residual_after(x, codes, 16, 1.0, residual) == residual).all()


@given(seed=seeds, lanes=st.sampled_from(LANES), element=st.sampled_from(FLOATING))
def test_the_order_of_contributions_changes_no_bit(seed: int, lanes: int, element: Element) -> None:
    inputs: list[Array] = [random_array(element, 50, "uniform", seed + worker) for worker in range(5)]
    codec = NativeCodec(element, lanes, 5)
    assert reduce_chunk(codec, inputs, BLOCK).tobytes() == reduce_chunk(codec, inputs[::-1], BLOCK).tobytes()


@either_twin
@pytest.mark.parametrize("lanes", LANES)
def test_the_smallest_and_the_largest_float32_survive(twin: type[AnyCodec], lanes: int) -> None:
    codec = twin(Element.FLOAT32, lanes, 1)
    for value in (2.0**-149, 2.0**-126, 1.5 * 2.0**-140, 2.0**127):
        x = np.array([value, -value, 0.0, value], np.float32)
        result = reduce_chunk(codec, [x], BLOCK)
        assert np.abs(result - x).max() <= value / 32 + 2.0**-149
        assert np.isfinite(result).all()
