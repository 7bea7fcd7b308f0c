"""numpy and native read the same golden vectors, and neither may move a bit of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fanin import _native
from fanin.numerics.fixed_point import DTYPES, Array, Codec, Codes, Residual
from fanin.numerics.lanes import Words
from fanin.numerics.reduction import Element
from fanin.protocol.wire import LaneField
from tests.golden import generate
from tests.numerics.codecs import AnyCodec, NativeCodec

CASES = json.loads((generate.HERE / "numerics.json").read_text(encoding="utf-8"))


def elements(text: str, element: Element) -> Array:
    return np.frombuffer(bytes.fromhex(text), DTYPES[element])


def codes_of(text: str) -> Codes:
    return np.frombuffer(bytes.fromhex(text), ">u2").astype(np.uint16)


def words_of(text: str) -> Words:
    return np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32)


def residuals_of(case: dict[str, Any], name: str) -> list[Residual | None]:
    return [np.frombuffer(bytes.fromhex(text), np.float32) for text in case[name]] or [None] * case["contributions"]


@pytest.mark.parametrize("name", ["numerics.json", "exact.json", "wide_sums.json", "wire.json", "tags.json"])
def test_the_committed_vectors_are_what_the_script_writes(name: str) -> None:
    committed = (generate.HERE / name).read_text(encoding="utf-8")
    assert committed == generate.files()[name], "run: python -m tests.golden.generate"


@pytest.mark.parametrize("twin", [Codec, NativeCodec], ids=["numpy", "native"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['element']}-{case['lanes']}-{case['contributions']}")
def test_both_codecs_reproduce_the_vector(twin: type[AnyCodec], case: dict[str, Any]) -> None:
    element, block, factor = Element[case["element"]], case["block_elements"], case["factor"]
    codec = twin(element, case["lanes"], case["contributions"])
    agreed = codes_of(case["agreed_codes"])
    befores, afters = residuals_of(case, "residuals"), residuals_of(case, "residuals_after")
    for worker, text in enumerate(case["inputs"]):
        x, before, after = elements(text, element), befores[worker], afters[worker]
        assert codec.codes(x, block, factor, before).tolist() == codes_of(case["own_codes"][worker]).tolist()
        words = codec.quantize(x, agreed, block, factor, before)
        assert words.tolist() == words_of(case["words"][worker]).tolist()
        if after is not None:
            assert codec.residual_after(x, agreed, block, factor, before).tobytes() == after.tobytes()
    total = words_of(case["sum"])
    result = codec.dequantize(total, agreed, block, case["count"], case["contributions"], case["divisor"])
    assert result.tobytes().hex() == case["result"]


def test_every_element_and_lane_width_has_a_vector() -> None:
    floating = {(element, lanes) for element in ("FLOAT32", "FLOAT16", "BFLOAT16") for lanes in (32, 16, 8, 4)}
    rest = {(element, 32) for element in ("FLOAT64", "INT32", "INT16", "INT8", "UINT8")}
    assert {(case["element"], case["lanes"]) for case in CASES} == floating | rest


WIDE = json.loads((generate.HERE / "wide_sums.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", WIDE, ids=lambda case: f"{case['element']}-{case['up']}-{case['down']}")
def test_the_native_accumulators_reproduce_the_vector(case: dict[str, Any]) -> None:
    field = LaneField(case["up"], case["down"]).field
    words = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in case["words"]]
    sums = np.empty(2 * len(case["sums"]), np.uint8)
    most = 0
    for number, each in enumerate(words):
        most = _native.accumulate_lanes(sums, 2, field, each, first=number == 0)
    out = np.empty(len(case["narrowed"]) // 2, np.uint8)
    assert _native.narrow_lanes(sums, 2, field, most, out) == case["shift"]
    assert out.tobytes().hex() == case["narrowed"]
