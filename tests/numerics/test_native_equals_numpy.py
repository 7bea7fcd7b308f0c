"""Every native implementation of the kernels gives the bits of the numpy oracle, on any input whatever."""

import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanin import _native
from fanin.numerics.fixed_point import CODE_NOT_FINITE, Codec
from tests.numerics.codecs import (
    FLOATING,
    INTEGERS,
    KERNELS,
    Case,
    NativeCodec,
    as_bytes,
    assert_same_bits,
    cases,
    misaligned,
    random_array,
)

MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""The kernels stay in use over all examples of one test, so that a fixture may choose them."""


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """One implementation in use, and the first choice again afterwards."""
    before = _native.kernels_in_use()
    if not _native.use_kernels(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    assert _native.use_kernels(before)


def both(case: Case) -> tuple[Codec, NativeCodec]:
    native = NativeCodec(case.element, case.lanes, case.contributions)
    return Codec(case.element, case.lanes, case.contributions), native


@MANY
@given(case=cases())
def test_a_whole_reduction_has_the_same_bits(kernels: str, case: Case) -> None:
    oracle, native = both(case)
    block, factor = case.block_elements, case.factor
    inputs = case.inputs()
    own = []
    for worker, x in enumerate(inputs):
        own.append(oracle.codes(x, block, factor, case.residuals(worker)))
        assert_same_bits(native.codes(x, block, factor, case.residuals(worker)), own[-1])
    codes = np.max(own, axis=0)
    words = np.zeros(oracle.words_for(case.count), np.uint32)
    for worker, x in enumerate(inputs):
        residual = case.residuals(worker)
        contribution = oracle.quantize(x, codes, block, factor, residual)
        assert_same_bits(native.quantize(x, codes, block, factor, residual), contribution)
        if case.with_residual and residual is not None:
            expected = oracle.residual_after(x, codes, block, factor, residual)
            assert_same_bits(native.residual_after(x, codes, block, factor, residual), expected)
        words += contribution
    result = oracle.dequantize(words, codes, block, case.count, case.contributors, case.divisor)
    actual = native.dequantize(words, codes, block, case.count, case.contributors, case.divisor)
    assert_same_bits(actual, result)


@MANY
@given(case=cases(), word_seed=st.integers(0, 2**32 - 1))
def test_codes_and_words_that_no_honest_worker_sends_still_mean_the_same(
    kernels: str, case: Case, word_seed: int
) -> None:
    """Codes that do not cover the input, any words at all: garbage in, but defined, and the same garbage out."""
    oracle, native = both(case)
    block = case.block_elements
    generator = np.random.default_rng(word_seed)
    blocks = -(-case.count // block)
    codes = generator.choice([0, 1, 31, 32, 0x7FE0, 0xFFDF, 0xFFE0, 0xFFE1, 0xFFFE, CODE_NOT_FINITE], blocks)
    codes = np.where(generator.random(blocks) < 0.5, codes, generator.integers(0, 1 << 16, blocks)).astype(np.uint16)
    x, residual = case.inputs()[0], case.residuals(0)
    expected = oracle.quantize(x, codes, block, case.factor, residual)
    assert_same_bits(native.quantize(x, codes, block, case.factor, residual), expected)
    words = generator.integers(0, 1 << 32, oracle.words_for(case.count), np.uint32)
    result = oracle.dequantize(words, codes, block, case.count, case.contributors, case.divisor)
    assert_same_bits(native.dequantize(words, codes, block, case.count, case.contributors, case.divisor), result)


@MANY
@given(case=cases(FLOATING + INTEGERS), data=st.data())
def test_any_part_of_a_chunk_is_that_part_of_the_whole(kernels: str, case: Case, data: st.DataObject) -> None:
    oracle, native = both(case)
    x = case.inputs()[0]
    codes = oracle.codes(x, case.block_elements)
    words = oracle.quantize(x, codes, case.block_elements)
    skip = data.draw(st.integers(0, case.count))
    keep = data.draw(st.integers(0, case.count - skip))
    whole = oracle.dequantize(words, codes, case.block_elements, case.count, 1, case.divisor)
    part = native.dequantize(words, codes, case.block_elements, case.count, 1, case.divisor, skip, keep)
    assert_same_bits(part, whole[skip : skip + keep])


@MANY
@given(case=cases(INTEGERS))
def test_integers_have_the_same_words_and_sums(kernels: str, case: Case) -> None:
    oracle, native = both(case)
    none = np.empty(0, np.uint16)
    words = np.zeros(case.count, np.uint32)
    for x in case.inputs():
        assert native.codes(x, 1).size == oracle.codes(x, 1).size == 0
        assert_same_bits(native.quantize(x, none, 1), oracle.quantize(x, none, 1))
        words += oracle.quantize(x, none, 1)
    expected = oracle.dequantize(words, none, 1, case.count, case.contributors)
    assert_same_bits(native.dequantize(words, none, 1, case.count, case.contributors), expected)


def test_every_half_precision_value_converts_as_numpy_converts_it(kernels: str) -> None:
    """All 65,536 bit patterns in, and the results back, one block each, so that nothing hides behind a shared scale."""
    for one in FLOATING[2:]:
        x = np.arange(1 << 16, dtype=np.uint16).view(np.float16 if one is FLOATING[2] else np.uint16)
        oracle, native = Codec(one, 32, 3), NativeCodec(one, 32, 3)
        codes = oracle.codes(x, 1)
        assert_same_bits(native.codes(x, 1), codes)
        words = oracle.quantize(x, codes, 1)
        assert_same_bits(native.quantize(x, codes, 1), words)
        for divisor in (1.0, 3.0, 2.0**10):
            expected = oracle.dequantize(words, codes, 1, len(x), 1, divisor)
            assert_same_bits(native.dequantize(words, codes, 1, len(x), 1, divisor), expected)


@MANY
@given(count=st.integers(0, 300), seed=st.integers(0, 2**32 - 1))
def test_switch_words_add_up_in_wire_order(kernels: str, count: int, seed: int) -> None:
    first, *others = np.random.default_rng(seed).integers(0, 1 << 32, (5, count), np.uint32)
    inputs = [misaligned(each.astype(">u4")) for each in others]
    for number in range(1, 5):
        total = as_bytes(first.astype(">u4")).copy()
        expected = np.sum(others[:number], axis=0, dtype=np.uint32)
        _native.add_words(total, *inputs[:number])
        assert_same_bits(total, as_bytes((first + expected).astype(">u4")))
        _native.add_words(total, *inputs[:number], starts=True)
        assert_same_bits(total, as_bytes(expected.astype(">u4")))


@MANY
@given(codes=st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)), max_size=70))
def test_the_larger_code_of_each_pair_stays(codes: list[tuple[int, int]]) -> None:
    pairs = np.array(codes, ">u2").reshape(-1, 2)
    held = as_bytes(pairs[:, 0]).copy()
    _native.max_codes(held, as_bytes(pairs[:, 1]))
    assert_same_bits(held, as_bytes(pairs.max(axis=1).astype(">u2") if codes else np.empty(0, ">u2")))


@MANY
@given(data=st.binary(max_size=700), start=st.integers(0, 2**32 - 1))
def test_crc32_is_that_of_zlib(kernels: str, data: bytes, start: int) -> None:
    assert _native.crc32(np.frombuffer(data, np.uint8), start) == zlib.crc32(data, start)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 127, 128, 1000, 9000])
def test_crc32_of_packet_sized_data_is_that_of_zlib(kernels: str, size: int) -> None:
    data = random_array(INTEGERS[3], size, "bits", size)
    assert _native.crc32(data) == zlib.crc32(data.tobytes())
    assert _native.crc32(misaligned(data), 7) == zlib.crc32(data.tobytes(), 7)


def test_a_name_that_nobody_knows_changes_nothing() -> None:
    before = _native.kernels_in_use()
    assert not _native.use_kernels("abacus")
    assert _native.kernels_in_use() == before
