"""Exact reductions: numpy and native agree to the bit, on any input, and both with plain float64 arithmetic."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin import _native
from fanin.numerics import exact
from fanin.numerics.fixed_point import DTYPES, Array, Residual
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import Element, Operator
from tests.golden import generate
from tests.numerics.codecs import (
    FLOATING,
    KERNELS,
    STYLES,
    assert_guards,
    assert_same_bits,
    junk,
    misaligned,
    random_array,
)

CASES = json.loads((generate.HERE / "exact.json").read_text(encoding="utf-8"))
FORMATS = {Element.FLOAT32: (24, -149), Element.FLOAT16: (11, -24), Element.BFLOAT16: (8, -133)}
"""Bits of the significand, and the power of two of the smallest subnormal."""


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Any:
    before = _native.kernels_in_use()
    if not _native.use_kernels(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    _native.use_kernels(before)


def native_encode(x: Array, element: Element, factor: float = 1.0, residual: Residual | None = None) -> Words:
    buffer, words_be = junk(exact.words_for(element, len(x)) * 4)
    _native.exact_encode_into(element, misaligned(x), words_be, factor, residual)
    assert_guards(buffer, words_be)
    return words_be.copy().view(">u4").astype(np.uint32)


def native_decode(
    element: Element,
    operator: Operator,
    words: Words,
    count: int,
    ranks: int,
    divisor: float = 1.0,
    present: int = exact.EVERYBODY,
    skip: int = 0,
    keep: int | None = None,
) -> Array:
    buffer, out = junk((count - skip if keep is None else keep) * element.bytes)
    words_be = misaligned(words.astype(">u4"))
    _native.exact_decode_into(element, operator, ranks, words_be, count, out, divisor, skip, present)
    assert_guards(buffer, out)
    return np.frombuffer(out.tobytes(), DTYPES[element])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    element = draw(st.sampled_from(Element))
    operator = draw(st.sampled_from([o for o in Operator if not (o.bitwise and element.floating)]))
    ranks, count = draw(st.integers(1, 40)), draw(st.integers(0, 300))
    divided = operator is Operator.SUM and element.floating
    style, seed = draw(st.sampled_from(STYLES)), draw(st.integers(0, 2**32 - 1))
    skip = draw(st.integers(0, count))
    return {
        "element": element,
        "operator": operator,
        "count": count,
        "ranks": ranks,
        "inputs": [random_array(element, count, style, seed + rank) for rank in range(ranks)],
        "divisor": draw(st.sampled_from([1.0, 3.0, 1e-300])) if divided else 1.0,
        "present": draw(st.sampled_from([exact.EVERYBODY, 0, 1, 0b1010])),
        "skip": skip,
        "keep": draw(st.integers(0, count - skip)),
    }


@given(cases())
def test_native_and_numpy_agree_to_the_bit(case: dict[str, Any]) -> None:
    element = case["element"]
    parts = [exact.encode(x, element) for x in case["inputs"]]
    for x, words in zip(case["inputs"], parts, strict=True):
        assert_same_bits(native_encode(x, element), words)
    codec = exact.ExactCodec(element, case["operator"], case["ranks"])
    row = np.concatenate(parts)
    whole = codec.decode(row, case["count"], case["divisor"], case["present"])
    fields = {name: case[name] for name in ("element", "operator", "count", "ranks", "divisor", "present")}
    wanted = whole[case["skip"] : case["skip"] + case["keep"]]
    assert_same_bits(native_decode(words=row, skip=case["skip"], keep=case["keep"], **fields), wanted)


@pytest.mark.parametrize("element", FLOATING)
@pytest.mark.parametrize("style", STYLES)
def test_every_instruction_set_agrees_with_numpy(kernels: str, element: Element, style: str) -> None:
    inputs = [random_array(element, 1000, style, seed) for seed in range(4)]
    residual = random_array(Element.FLOAT32, 1000, "uniform", 9)
    row = np.concatenate([exact.encode(x, element) for x in inputs])
    for operator in (Operator.SUM, Operator.MIN, Operator.MAX, Operator.PRODUCT):
        wanted = exact.ExactCodec(element, operator, 4).decode(row, 1000)
        assert_same_bits(native_decode(element, operator, row, 1000, 4), wanted)
    for factor in (0.3, -1e30):
        assert_same_bits(native_encode(inputs[0], element, factor), exact.encode(inputs[0], element, factor))
        if element is not Element.FLOAT64:
            wanted_words = exact.encode(inputs[0], element, factor, residual)
            assert_same_bits(native_encode(inputs[0], element, factor, residual), wanted_words)
            after = _native.exact_residual_after(element, misaligned(inputs[0]), factor, residual)
            assert_same_bits(after, exact.residual_after(inputs[0], element, factor, residual))


# --- against arithmetic that shares nothing with either ---


def rounded(value: Fraction, element: Element) -> float:
    """The number of the element type nearest to `value`, ties to even, by integers alone."""
    bits, smallest = FORMATS[element]
    if value == 0:
        return 0.0
    power = math.floor(math.log2(abs(value))) - bits + 2
    while abs(value) < Fraction(2) ** (power + bits - 1) and power > smallest:
        power -= 1
    steps = round(value / Fraction(2) ** max(power, smallest))
    result = steps * Fraction(2) ** max(power, smallest)
    limit = 2 ** {Element.FLOAT32: 128, Element.BFLOAT16: 128, Element.FLOAT16: 16}[element]
    return math.copysign(math.inf, value) if abs(result) >= limit else float(result)


@given(st.sampled_from(sorted(FORMATS)), st.floats(allow_nan=False, allow_infinity=False))
def test_a_float64_is_rounded_once_to_every_element_type(element: Element, value: float) -> None:
    for each in (value, math.ldexp(value, -900), math.ldexp(math.frexp(value)[0], -20)):
        result = exact.wide(exact.narrow(np.array([each]), element), element)[0]
        assert result == rounded(Fraction(each), element)
        assert math.copysign(1, result) == math.copysign(1, each)


@pytest.mark.parametrize("element", FLOATING)
@pytest.mark.parametrize("style", STYLES)
def test_a_sum_is_the_float64_sum_in_the_order_of_ranks_rounded_once(element: Element, style: str) -> None:
    inputs = [random_array(element, 400, style, seed) for seed in range(5)]
    words = np.concatenate([exact.encode(x, element) for x in inputs])
    result = exact.wide(native_decode(element, Operator.SUM, words, 400, 5), element)
    for position in range(400):
        total = float(exact.wide(inputs[0], element)[position])
        for x in inputs[1:]:
            total += float(exact.wide(x, element)[position])
        got = float(result[position])
        if math.isfinite(total) and element is not Element.FLOAT64:
            total = math.copysign(rounded(Fraction(total), element), total)
        assert got == total or (math.isnan(got) and math.isnan(total))
        assert math.isnan(got) or math.copysign(1, got) == math.copysign(1, total)


def one(element: Element, operator: Operator, *values: float, divisor: float = 1.0) -> float:
    """The reduction of one element of each rank; numpy and native agree on it."""
    words = np.concatenate([exact.encode(exact.narrow(np.array([value]), element), element) for value in values])
    result = exact.ExactCodec(element, operator, len(values)).decode(words, 1, divisor)
    assert_same_bits(native_decode(element, operator, words, 1, len(values), divisor), result)
    return float(exact.wide(result, element)[0])


@pytest.mark.parametrize("element", FLOATING)
def test_special_values_are_as_ieee_754_has_them(element: Element) -> None:
    inf, nan = math.inf, math.nan
    assert one(element, Operator.SUM, inf, 1, 2) == inf
    assert math.isnan(one(element, Operator.SUM, inf, -inf))
    assert math.isnan(one(element, Operator.SUM, nan, 1))
    assert math.copysign(1, one(element, Operator.SUM, -0.0, -0.0)) == -1
    assert math.copysign(1, one(element, Operator.SUM, -0.0, 0.0)) == 1
    assert math.isnan(one(element, Operator.MIN, 1, nan))
    assert math.isnan(one(element, Operator.MAX, nan, 1))
    assert math.copysign(1, one(element, Operator.MIN, 0.0, -0.0)) == -1
    assert math.copysign(1, one(element, Operator.MAX, -0.0, 0.0)) == 1
    assert one(element, Operator.MAX, -inf, -1) == -1
    assert math.isnan(one(element, Operator.PRODUCT, inf, 0))


def test_half_precision_overflows_where_it_should() -> None:
    assert one(Element.FLOAT16, Operator.SUM, 65504, 15) == 65504
    assert one(Element.FLOAT16, Operator.SUM, 65504, 16) == math.inf
    assert one(Element.FLOAT16, Operator.SUM, 65504, 16, divisor=2.0) == 32768


@pytest.mark.parametrize(("element", "largest"), [(Element.FLOAT32, 3e38), (Element.FLOAT64, 1.7e308)])
def test_a_mean_does_not_overflow_where_its_sum_does(element: Element, largest: float) -> None:
    values = [largest] * 4
    assert one(element, Operator.SUM, *values) == math.inf
    assert one(element, Operator.SUM, *values, divisor=4.0) == one(element, Operator.SUM, largest)
    assert one(element, Operator.SUM, largest, math.inf, divisor=2.0) == math.inf


def test_what_a_factor_loses_stays_in_the_residual() -> None:
    x, residual = np.array([1.0, 65504.0], np.float16), np.array([2.0**-14, 1.0], np.float32)
    assert exact.residual_after(x, Element.FLOAT16, 1.0, residual).tolist() == [2.0**-14, 1.0]
    assert exact.residual_after(x, Element.FLOAT16, 2.0, residual).tolist()[1] == 1.0, "it is not finite, and kept"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['element']}-{case['operator']}")
def test_both_reproduce_the_golden_vector(case: dict[str, Any]) -> None:
    element, operator = Element[case["element"]], Operator[case["operator"]]
    inputs = [np.frombuffer(bytes.fromhex(text), DTYPES[element]) for text in case["inputs"]]
    for x, text in zip(inputs, case["words"], strict=True):
        assert native_encode(x, element).astype(">u4").tobytes().hex() == text
    row = np.concatenate([exact.encode(x, element) for x in inputs])
    count, codec = case["count"], exact.ExactCodec(element, operator, 3)
    for name, divisor, present in (("result", 1.0, 7), ("mean", case["divisor"], 7), ("without_rank_1", 1.0, 5)):
        assert codec.decode(row, count, divisor, present).tobytes().hex() == case[name]
        assert native_decode(element, operator, row, count, 3, divisor, present).tobytes().hex() == case[name]
