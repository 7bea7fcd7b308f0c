"""The device's kernels in a process of their own, without a GPU: `python -m tests.torch.kernel_runs RUN`, one of RUNS.

Triton decides when a kernel is decorated whether it is interpreted, so one process cannot do both. Each prints a JSON
object of what it found, by name: differences from numpy's bits, or what a compiled kernel has that it must not have.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fanin.host.torch.device.arithmetic import CODE_BIAS, ELEMENTS, Plan
from fanin.numerics import wide_sums
from fanin.numerics.fixed_point import DTYPES, Array, Codec
from fanin.numerics.reduction import Element
from tests.support.kernel_cases import Case, differences, lane_cases, random_cases, rotation_cases, weight_differences

GOLDEN = Path(__file__).parents[1] / "golden"
COUNT = 1700
"""Elements of an interpreted case: a full block of each kind and a part of another, or a row and a part of another."""
ARCHITECTURES = (80, 90, 120)
MOST_REGISTERS = 64
"""The 65,536 registers of a multiprocessor hold eight programs of 128 threads then."""
FORBIDDEN = r"fma\.rn", r"div\.full", r"div\.approx", r"sqrt\.approx", r"rcp\.approx", r"ex2\.approx", r"\.ftz"
"""Contraction, approximations, subnormals flushed: whatever gives other bits than numpy."""


def interpreted_lanes() -> dict[str, list[str]]:
    """Differences of the interpreted kernels from numpy, in every case of lanes."""
    return _by_case(lane_cases(COUNT))


def _by_case(cases: Iterable[Case]) -> dict[str, list[str]]:
    from fanin.host.torch.device import triton_arithmetic as module

    arithmetic = module.TritonArithmetic()
    return {str(case): differences(arithmetic, "cpu", case) for case in cases}


def interpreted() -> dict[str, list[str]]:
    """Differences from golden vectors, and from numpy in rotations, weights and the probe of a device."""
    from fanin.host.torch.device import triton_arithmetic as module

    arithmetic = module.TritonArithmetic()
    found = _by_case([*rotation_cases(COUNT), *random_cases(400)])
    with np.errstate(all="ignore"):
        probed = {"the probe of a device": module.differences(arithmetic, torch.device("cpu"))}
        probed["marks of ranks"] = module.mark_differences(arithmetic, torch.device("cpu"))
        return found | _golden(arithmetic) | _weights() | probed


def _weights() -> dict[str, list[str]]:
    """Weights in every number of bits: bytes, and what a part of them becomes."""
    from fanin.host.torch.device.weights import DeviceWeights

    return {
        f"weights in {bits} bits, {count} elements": weight_differences(DeviceWeights, "cpu", bits, count, bucket)
        for bits, count, bucket in ((8, 1100, 1024), (6, 200, 64), (4, 333, 256), (8, 1, 64))
    }


def _golden(arithmetic: Any) -> dict[str, list[str]]:
    """Golden vectors of numerics.json and wide_sums.json, of one rank each, and their sums.

    Each width in one element type: numpy's arithmetic, to which the other cases are held, is held to all vectors.
    """
    found = {}
    for case in json.loads((GOLDEN / "numerics.json").read_text()):
        element = Element[case["element"]]
        if case["contributions"] == 3 and element is ELEMENTS[case["lanes"] // 8 % len(ELEMENTS)]:
            bits, bound = case["lanes"], case["bound"]
            offset = 0 if bits == 32 else case["contributions"] * bound
            plan = Plan(element, bits, bits, bound, case["block_elements"], 9, offset, case["divisor"], case["factor"])
            found[f"golden {element.name} in {bits} bits"] = _golden_case(arithmetic, plan, case)
    for case in json.loads((GOLDEN / "wide_sums.json").read_text()):
        element, up, down = Element[case["element"]], case["up"], case["down"]
        if element is not ELEMENTS[(up + down) // 2 % len(ELEMENTS)]:
            continue
        bound, offset = wide_sums.largest(up), wide_sums.largest(down)
        packet_words = 9 * case["block_elements"] * down // 32 + 4
        plan = Plan(
            element, up, down, bound, case["block_elements"], 9, offset, divisor=4.0, packet_words=packet_words
        )  # fmt: skip
        found[f"golden {element.name} in {up}/{down} bits"] = _golden_case(arithmetic, plan, case)
    return found


def _golden_case(arithmetic: Any, plan: Plan, case: dict[str, Any]) -> list[str]:
    dtype = np.dtype(DTYPES[plan.element]).newbyteorder("<")
    x = _tensor(_array(case["inputs"][0], dtype))
    residual = _tensor(_array(case["residuals"][0], "<f4")) if case.get("residuals") else None
    agreed = _tensor((_array(case["agreed_codes"], ">u2").astype(np.int32) - CODE_BIAS).astype(np.int16))
    differing = []
    if "own_codes" in case:
        codes = torch.zeros_like(agreed)
        arithmetic.codes(plan, x, residual, codes)
        own = (codes.numpy().astype(np.int32) + CODE_BIAS).astype(">u2")
        differing += ["codes"] if own.tobytes().hex() != case["own_codes"][0] else []
    words = torch.zeros(plan.words(case["count"]), dtype=torch.int32)
    arithmetic.quantize(plan, x, residual, agreed, words)
    contributed = words.numpy()[: -(-case["count"] * plan.up // 32)]
    differing += ["words"] if contributed.astype(">i4").tobytes().hex() != case["words"][0] else []
    if residual is not None and residual.numpy().tobytes().hex() != case["residuals_after"][0]:
        differing.append("residual")
    summed = _tensor(_array(case.get("sum") or case["narrowed"], ">i4").astype(np.int32))
    out = torch.zeros_like(x)
    if plan.packet_words:
        words[: len(summed)], words[plan.shift_at] = summed, case["shift"]
        summed = words
    arithmetic.dequantize(plan, summed, agreed, out)
    values = out.view(torch.int16 if out.element_size() == 2 else torch.int32).numpy().tobytes().hex()
    return differing + (["values"] if values != (case.get("result") or case["mean"]) else [])


def _array(text: str, dtype: Any) -> Array:
    return np.frombuffer(bytes.fromhex(text), dtype)


def _tensor(array: Array) -> torch.Tensor:
    """In native byte order; uint16 are the bits of bfloat16."""
    own = array.astype(array.dtype.newbyteorder("="))
    return (
        torch.from_numpy(own.view(np.int16)).view(torch.bfloat16) if own.dtype == np.uint16 else torch.from_numpy(own)
    )


def compiled() -> dict[str, dict[str, Any]]:
    """By kernel and architecture: the registers of a thread, and what of FORBIDDEN its PTX has."""
    from fanin.host.torch.device import kernels, rotation_kernels, weight_kernels

    floats, codes, words = "*fp32", "*i16", "*i32"
    prepared = {"x_ptr": floats, "residual_ptr": floats, "codes_ptr": codes, "count": "i32", "factor": "fp32"}
    decoded = {
        "words_ptr": words, "codes_ptr": codes, "failed_ptr": words, "count": "i32",
        "skip": "i32", "divisor": "fp32", "offset": "i32",
    }  # fmt: skip
    rows = {"signs_ptr": words, "owed_ptr": floats, "cut_ptr": floats, "squares_ptr": floats, "x_ptr": floats}
    rows |= {"count": "i32", "rows": "i32", "scale": "fp32"}
    common: dict[str, Any] = {"HAS_FACTOR": True, "HAS_RESIDUAL": True}
    square: dict[str, Any] = {"ROWS": 1, "BLOCK": 1024, "LOG": 10, "HAS_OWED": True}
    wanted: list[tuple[str, Any, dict[str, str], dict[str, Any], tuple[int, ...]]] = []
    for bits, element in ((8, "*fp32"), (32, "*fp32"), (8, "*bf16"), (4, "*fp16"), (16, "*fp32")):
        scale: dict[str, Any] = {
            "BOUND": Codec(Element.FLOAT32, bits, 2).bound,
            "BLOCK": 352 * 32 // bits,
            "EXPONENT": 7,
            "TILE": 128,
        }
        architectures = ARCHITECTURES if (bits, element) == (8, "*fp32") else (90,)
        given = {**prepared, "x_ptr": element, "words_ptr": words}
        packets: dict[str, Any] = {"PACKET": 2, "PACKET_WORDS": 708 if bits == 4 else 0}
        constants = {**common, **scale, **packets, "ADDS": bits == 8, "BITS": bits}
        wanted.append((f"quantize {bits} {element}", kernels.quantize, given, constants, architectures))
        sixteen = element[1:] if element != "*fp32" else ""
        given = {**decoded, "out_ptr": "*i16" if sixteen else "*fp32"}
        constants = {**scale, **packets, "UP": bits, "DOWN": bits, "WATCHED": True}
        constants["SIXTEEN"] = sixteen
        wanted.append((f"dequantize {bits} {element}", kernels.dequantize, given, constants, architectures))
    constants = {**common, "POWERS": False, "BLOCK": 1408, "TILE": 512}
    wanted.append(("codes", kernels.scale_codes, prepared, constants, ARCHITECTURES))
    given = {"codes_ptr": codes, "marks_ptr": codes, "count": "i32", "marks": "i32", "rank": "i32"}
    wanted.append(("mark", kernels.mark, given, {"TILE": 1024}, ARCHITECTURES))
    wanted.append(("level", kernels.level, {"codes_ptr": codes, "count": "i32"}, {"TILE": 1024}, (90,)))
    given = {**prepared, "words_ptr": words, "key": "i64", "bucket": "i32", "step_low": "i32", "step_high": "i32"}
    del given["factor"]
    constants = {"HAS_RESIDUAL": True, "BITS": 4, "BOUND": 7, "BLOCK": 704, "PACKET": 2, "PACKET_WORDS": 356}
    wanted.append(("round", kernels.quantize_at_random, given, {**constants, "TILE": 128}, ARCHITECTURES))
    given = {**rows, "sent_ptr": floats, "clip": "fp32"}
    wanted.append(("rotate", rotation_kernels.rotate, given, {**square, "CLIPS": True}, ARCHITECTURES))
    given = {**rows, "mean_ptr": floats}
    constants = {**square, "HAS_CUT": True, "SIXTEEN": ""}
    wanted.append(("rotate_back", rotation_kernels.rotate_back, given, constants, ARCHITECTURES))
    grid = {"BITS": 6, "GROUP": 4, "GROUP_BYTES": 3, "BUCKET": 1024, "TILE": 256}
    given = {"x_ptr": floats, "into_ptr": "*u8", "losses_ptr": floats, "count": "i32", "buckets": "i32"}
    given |= {"first_bucket": "i32", "key": "i64", "group_number": "i32", "step_low": "i32", "step_high": "i32"}
    wanted.append(("encode weights", weight_kernels.encode, given, grid, (90,)))
    given = {"encoded_ptr": "*u8", "out_ptr": "*i16", "encoded_stride": "i32", "out_stride": "i32", "buckets": "i32"}
    given |= {"first": "i32", "stop": "i32"}
    wanted.append(("decode weights", weight_kernels.decode, given, {**grid, "SIXTEEN": "bf16"}, (90,)))
    return {
        f"{name} sm_{architecture}": _compile(kernel, given, constants, architecture)
        for name, kernel, given, constants, architectures in wanted
        for architecture in architectures
    }


def _compile(kernel: Any, given: dict[str, str], constants: dict[str, Any], architecture: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    assert sorted(names) == sorted([*given, *constants]), f"{kernel}: {set(names) ^ {*given, *constants}}"
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in given if name.endswith("_ptr")}
    signature = {name: given.get(name, "constexpr") for name in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"enable_fp_fusion": False, "num_warps": 4}
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    ptx = made.asm["ptx"]
    return {"has": [each for each in FORBIDDEN if re.search(each, ptx)], "registers": _registers(made.asm["cubin"])}


def _registers(cubin: bytes) -> int:
    import triton

    tool = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+)", said.stdout + said.stderr)
    assert found, said
    return int(found[1])


RUNS: dict[str, Callable[[], dict[str, Any]]] = {
    "interpret": interpreted,
    "interpret-lanes": interpreted_lanes,
    "compile": compiled,
}

if __name__ == "__main__":
    if sys.argv[1] == "compile":
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = "1"
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        print(json.dumps(RUNS[sys.argv[1]]()))
