"""The device's arithmetic without a GPU: numpy's is held to the word codecs, and Triton's to numpy's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fanin.errors import UnsupportedError
from fanin.host.codecs.words import codec_for
from fanin.host.codecs.words.packed_lanes import SHIFT_WORDS, zeros_word
from fanin.host.torch.device.arithmetic import CODE_BIAS, ELEMENTS, Plan, plan_of
from fanin.host.torch.device.launcher import DRIVER_MODULE, Launch, Launcher
from fanin.host.torch.device.numpy_arithmetic import NumpyArithmetic
from fanin.host.torch.device.triton_arithmetic import lane_differences
from fanin.numerics.reduction import EXACT, QUANTIZED_LANES, WIDE_SUMS, Element
from fanin.protocol.job import JobSpec
from tests.support.host_device import TensorArithmetic
from tests.torch.kernel_runs import MOST_REGISTERS

SPEC = JobSpec(
    job=1, generation=1, workers=3, quorum=3, slots=8, words_per_packet=352, codes_per_packet=2, tokens=(1, 2, 3),
    accumulators=True,
)  # fmt: skip
COUNT = 5003
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def _run(what: str) -> dict[str, Any]:
    said = subprocess.run(
        [sys.executable, "-m", "tests.torch.kernel_runs", what], capture_output=True, text=True, timeout=280
    )
    assert said.returncode == 0, said.stderr[-3000:]
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    assert found
    return found


@pytest.mark.processes
@needs_triton
@pytest.mark.parametrize("run", ["interpret", pytest.param("interpret-lanes", marks=pytest.mark.thorough)])
def test_interpreted_kernels_have_numpys_bits(run: str) -> None:
    differing = {case: found for case, found in _run(run).items() if found}
    assert not differing


@pytest.mark.processes
@needs_triton
def test_compiled_kernels_contract_and_approximate_nothing() -> None:
    found = _run("compile")
    assert {f"sm_{each}" for each in (80, 90, 120)} <= {name.split()[-1] for name in found}
    assert {name: each["has"] for name, each in found.items() if each["has"]} == {}
    assert {name: each["registers"] for name, each in found.items() if each["registers"] > MOST_REGISTERS} == {}


@pytest.mark.parametrize("lanes", [32, 16, 8, 4, *WIDE_SUMS])
def test_a_plan_cuts_and_encodes_as_the_engines_codec_does(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    x = rng.standard_normal(COUNT).astype(np.float32)
    owed = (rng.standard_normal(COUNT) * 0.1).astype(np.float32)
    codec = codec_for(Element.FLOAT32, lanes, COUNT, SPEC)
    plan = plan_of(Element.FLOAT32, lanes, COUNT, SPEC, contributors=1, divisor=3.0, factor=0.3)
    assert plan is not None
    arithmetic, left = NumpyArithmetic(), owed.copy()
    codes, words = np.zeros(plan.blocks(COUNT), np.int16), np.zeros(plan.words(COUNT), np.int32)
    arithmetic.codes(plan, x, left, codes)
    arithmetic.quantize(plan, x, left, codes, words)
    contributed = -(-COUNT * plan.up // 32)
    if plan.packet_words:  # a packet's contribution lies where its sum comes to lie
        rows = words.reshape(-1, plan.packet_words)
        assert not rows[:, plan.unit_elements * plan.up // 32 :].any()
        words = rows[:, : plan.unit_elements * plan.up // 32].reshape(-1)
        zeros = words[contributed:].view(np.uint32)
        assert (zeros == zeros_word(plan.up)).all()
    packets = [slice(first, first + count) for first, count in map(codec.span, range(codec.packets))]
    wanted = [codec.codes(x[here], 0.3, owed[here]) for here in packets]
    encoded = [codec.encode(n, x[here], wanted[n], 0.3, owed[here]) for n, here in enumerate(packets)]
    after = [codec.residual_after(x[here], wanted[n], 0.3, owed[here]) for n, here in enumerate(packets)]
    assert np.array_equal(codes.astype(np.int32) + CODE_BIAS, np.concatenate(wanted))
    assert np.array_equal(words[:contributed].view(np.uint32), np.concatenate(encoded))
    assert np.array_equal(left, np.concatenate(after))
    shifts = np.arange(codec.packets).astype(np.uint8) if lanes in WIDE_SUMS else None
    sums = rng.integers(0, 2**32, (codec.packets, codec.result_word_count(0)), dtype=np.uint32)
    values = [
        codec.decode_narrowed(sums[n], count, wanted[n], 1, 3.0, 0 if shifts is None else int(shifts[n]))
        for n, (_, count) in enumerate(map(codec.span, range(codec.packets)))
    ]
    if shifts is not None:
        behind = np.zeros((codec.packets, SHIFT_WORDS), np.uint32)
        behind[:, 0] = shifts
        sums = np.concatenate([sums, behind], axis=1)
    out = np.zeros(COUNT, np.float32)
    arithmetic.dequantize(plan, sums.reshape(-1).view(np.int32), codes, out)
    assert np.array_equal(out, np.concatenate(values))


def test_a_piece_of_a_sum_has_the_bits_of_the_whole() -> None:
    plan = plan_of(Element.BFLOAT16, 8, COUNT, SPEC, contributors=3, divisor=3.0)
    assert plan is not None
    rng, arithmetic, block = np.random.default_rng(1), NumpyArithmetic(), plan.block_elements
    sums = rng.integers(0, 2**31, plan.words(COUNT)).astype(np.int32)
    codes = rng.integers(-1000, 1000, plan.blocks(COUNT)).astype(np.int16)
    whole, piece = np.zeros(COUNT, np.uint16), np.zeros(1000, np.uint16)
    arithmetic.dequantize(plan, sums, codes, whole)
    arithmetic.dequantize(plan, sums[2 * plan.words(block) :], codes[2:], piece, skip=37)
    assert np.array_equal(piece, whole[2 * block + 37 :][:1000])


def test_values_are_nan_where_the_reduction_has_failed() -> None:
    plan = plan_of(Element.FLOAT32, 8, COUNT, SPEC, contributors=3)
    assert plan is not None
    out = np.zeros(COUNT, np.float32)
    zeros = np.zeros(plan.words(COUNT), np.int32), np.zeros(plan.blocks(COUNT), np.int16)
    NumpyArithmetic().dequantize(plan, *zeros, out, failed=np.ones(1, np.int32))
    assert np.isnan(out).all()


@pytest.mark.parametrize(("element", "lanes"), [(Element.FLOAT64, 8), (Element.INT32, 8), (Element.FLOAT32, EXACT)])
def test_what_is_not_quantized_has_no_plan(element: Element, lanes: int) -> None:
    assert plan_of(element, lanes, COUNT, SPEC, contributors=3) is None


class JITFunction:
    """A Triton kernel for a launcher: each launch notes what it was given, and by whom."""

    arg_names = ("x", "count", "WIDE", "TILE")

    def __init__(self, error: Exception | None = None, module: str = __name__) -> None:
        """`error`: raised by a launch, in a module of this name."""
        self.launched: list[tuple[Any, ...]] = []
        self.packed_metadata = None
        self._error = error
        self._place: dict[str, Any] = {"__name__": module}
        exec("def fail(error): raise error", self._place)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., JITFunction]:
        def launch(*arguments: Any, **named: Any) -> JITFunction:
            if self._error is not None:
                self._place["fail"](self._error)
            found = "compiled" if arguments and not isinstance(arguments[0], torch.Tensor) else "by triton"
            assert named.get("enable_fp_fusion") is (None if found == "compiled" else False)
            self.launched.append((found, grid, *arguments[1:], *(() if named else arguments[:1])))
            return self

        return launch


def test_a_launcher_keeps_a_kernel_for_each_kind_of_arguments() -> None:
    kernel = JITFunction()
    launcher, x = Launcher(kernel), torch.zeros(64)
    launch = Launch(128, 4)
    for tensor, count in ((x, 32), (x[16:], 48), (x[1:], 32), (x, 33), (x, 33), (x, 1), (x.half(), 32)):
        launcher(launch, (5,), tensor, count, TILE=128, WIDE=True)
    compiled = [each for each in kernel.launched if each[0] == "compiled"]
    assert compiled == [
        ("compiled", (5, 1, 1), 48, True, 128, x[16:].data_ptr()),
        ("compiled", (5, 1, 1), 33, True, 128, x.data_ptr()),
    ]
    assert len(kernel.launched) == 7


def test_a_kernel_that_does_not_compile_is_an_error_that_names_it_and_its_variant() -> None:
    launcher = Launcher(JITFunction(RuntimeError("PassManager::run failed")))
    with pytest.raises(UnsupportedError, match=r"'TILE': 128.*PassManager::run failed.*Remedy"):
        launcher(Launch(128, 4), (5,), torch.zeros(64), 32, TILE=128, WIDE=True)


def test_an_error_of_the_driver_is_not_taken_for_one_of_the_compiler() -> None:
    error = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    launcher = Launcher(JITFunction(error, module=DRIVER_MODULE))
    with pytest.raises(RuntimeError, match="illegal memory access") as raised:
        launcher(Launch(128, 4), (5,), torch.zeros(64), 32, TILE=128, WIDE=True)
    assert not isinstance(raised.value, UnsupportedError)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("lanes", QUANTIZED_LANES)
def test_the_probe_of_a_plan_says_which_buffers_differ(element: Element, lanes: int) -> None:
    plan = plan_of(element, lanes, COUNT, SPEC, contributors=3, divisor=3.0)
    assert plan is not None
    assert lane_differences(TensorArithmetic(), torch.device("cpu"), plan) == []

    class Wrong(TensorArithmetic):
        """An arithmetic that loses the last value."""

        def dequantize(self, plan: Plan, words: Any, codes: Any, out: Any, **named: Any) -> None:
            super().dequantize(plan, words, codes, out, **named)
            out[-1] = 77.0

    assert lane_differences(Wrong(), torch.device("cpu"), plan) == ["values"]
