"""A thread's own settings of arithmetic must not reach the numerics: ranks may differ in them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fanin.numerics.fixed_point import Codec
from fanin.numerics.reduction import Element
from tests.numerics.codecs import NativeCodec, assert_same_bits

torch = pytest.importorskip("torch")


def test_a_thread_that_flushes_subnormals_gets_the_same_bits() -> None:
    x = np.random.default_rng(3).standard_normal(512).astype(np.float32) * np.float32(1e-39)
    oracle, native = Codec(Element.FLOAT32, 32, 2), NativeCodec(Element.FLOAT32, 32, 2)
    codes = oracle.codes(x, 512)
    words = oracle.quantize(x, codes, 512)
    result = oracle.dequantize(words, codes, 512, x.size, 2)
    wanted: tuple[npt.NDArray[Any], ...] = (codes, words, result)
    assert np.any(result != 0)
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormals"
    try:
        flushes = bool(torch.tensor([1e-39]) * torch.tensor([1.0]) == 0)
        got: tuple[npt.NDArray[Any], ...] = (
            native.codes(x, 512),
            native.quantize(x, codes, 512),
            native.dequantize(words, codes, 512, x.size, 2),
        )
        flushes_still = bool(torch.tensor([1e-39]) * torch.tensor([1.0]) == 0)
    finally:
        torch.set_flush_denormal(False)
    assert flushes
    assert flushes_still, "the caller's setting is put back"
    for one, other in zip(got, wanted, strict=True):
        assert_same_bits(one, other)
