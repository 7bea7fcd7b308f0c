"""Checks the device's kernels on a GPU: their bits, their times, and how to divide their work.

    python -m tools.kernel_checks [bits] [times] [sweep]

tools/device_checks.py calls the same functions. Times are measured by CUDA events, as medians of REPEATS, over SETS
buffers in turn, so that none is in the L2 cache.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from fanin.host.codecs.rotated import clip_for
from fanin.host.torch.device.arithmetic import Plan, Rotation
from fanin.host.torch.device.launcher import Launch
from fanin.host.torch.device.triton_arithmetic import TritonArithmetic
from fanin.numerics.reduction import Element
from tests.support.kernel_cases import Case, differences, lane_cases, rotation_cases

BITS_COUNT = 100_000
"""Elements of a case whose bits are compared."""
BYTES = 25 << 20
"""Bytes of float32 with which kernels are timed."""
SETS = 4
REPEATS = 20
WARMUP = 3
SLEEP_CYCLES = 10_000_000
"""Cycles for which the device sleeps, some milliseconds: longer than REPEATS launches take."""

BLOCK = 1408
"""Elements that share a scale code in 8-bit lanes at an MTU of 1,500 bytes."""
TILES = {
    "codes": (512, 1024, 2048),
    "quantize": (64, 128, 512),
    "dequantize": (64, 128, 512),
    "rotate": (1, 2),
    "rotate_back": (1, 2),
}
WARPS = (2, 4, 8)
"""Warps to try; with TILES they make 39 kernels, each of which compiles in a third of a second."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Time of one kernel with one division of its work."""

    name: str
    tile: int
    warps: int
    ms: float
    gb_s: float
    """10^9 bytes per second, of those that must be read and written."""

    def __str__(self) -> str:
        return f"{self.name:14} tile {self.tile:5} warps {self.warps:2} {self.ms:8.4f} ms {self.gb_s:8.0f} GB/s"


def bits(device: torch.device, *, count: int = BITS_COUNT) -> list[str]:
    """A line for each case whose bits differ from numpy's; empty on a sound device."""
    arithmetic = TritonArithmetic()
    cases: Iterable[Case] = itertools.chain(lane_cases(count), rotation_cases(count))
    with torch.cuda.device(device):
        return [f"{case}: {each}" for case in cases for each in differences(arithmetic, device, case)]


class _Buffers:
    """Tensors that one reduction of BYTES reads and writes."""

    def __init__(self, device: torch.device, plan: Plan, rotation: Rotation) -> None:
        count = rotation.count
        self.x = torch.randn(count, device=device)
        self.residual, self.sent, self.cut = (torch.zeros(rotation.padded, device=device) for _ in range(3))
        self.codes = torch.zeros(plan.blocks(count), dtype=torch.int16, device=device)
        self.words = torch.zeros(plan.words(count), dtype=torch.int32, device=device)
        self.signs = torch.randint(-(2**31), 2**31, (-(-count // 32),), dtype=torch.int32, device=device)
        self.squares = torch.zeros(rotation.rows, device=device)


def _rows(arithmetic: TritonArithmetic, plan: Plan, rotation: Rotation) -> dict[str, tuple[float, Callable[..., None]]]:
    """By kernel's name: bytes moved per element, and a function that launches it on one set of buffers."""
    word_bytes = plan.up / 8
    return {
        "codes": (8, lambda b: arithmetic.codes(plan, b.x, b.residual, b.codes)),
        "quantize": (12 + word_bytes, lambda b: arithmetic.quantize(plan, b.x, b.residual, b.codes, b.words)),
        "dequantize": (4 + word_bytes, lambda b: arithmetic.dequantize(plan, b.words, b.codes, b.x)),
        "rotate": (
            16,
            lambda b: arithmetic.rotate(rotation, b.x, b.signs, b.residual, b.sent, b.cut, b.squares),
        ),
        "rotate_back": (
            8,
            lambda b: arithmetic.rotate_back(rotation, b.sent, b.signs, b.x, b.residual, b.cut, b.squares),
        ),
        "copy": (8, lambda b: b.sent.copy_(b.cut)),
    }


def times(device: torch.device, *, up: int = 8, element: Element = Element.FLOAT32) -> list[Timed]:
    """Times of each kernel, launched as in use on BYTES, and of a copy of as many elements."""
    arithmetic = TritonArithmetic()
    plan, rotation = _plan(up, element)
    launches = arithmetic.launches
    return [
        _timed(name, launches.get(name, Launch(0, 0)), row, sets)
        for sets in [_sets(device, plan, rotation)]
        for name, row in _rows(arithmetic, plan, rotation).items()
    ]


def sweep(device: torch.device, *, up: int = 8) -> list[Timed]:
    """Times of every division of each kernel's work, the fastest of each first."""
    plan, rotation = _plan(up, Element.FLOAT32)
    sets = _sets(device, plan, rotation)
    found = []
    for name, tiles in TILES.items():
        for tile, warps in itertools.product(tiles, WARPS):
            launch = Launch(tile, warps)
            row = _rows(TritonArithmetic(**{name: launch}), plan, rotation)[name]
            found.append(_timed(name, launch, row, sets))
    return sorted(found, key=lambda each: (list(TILES).index(each.name), each.ms))


def launch_us(device: torch.device, *, repeats: int = 200) -> float:
    """Microseconds that one launch takes the calling thread, without the device's work."""
    arithmetic = TritonArithmetic()
    plan, _ = _plan(8, Element.FLOAT32)
    x = torch.zeros(BLOCK, device=device)
    codes = torch.zeros(1, dtype=torch.int16, device=device)
    arithmetic.codes(plan, x, None, codes)
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(repeats):
        arithmetic.codes(plan, x, None, codes)
    took_s = time.perf_counter() - started
    torch.cuda.synchronize(device)
    return took_s / repeats * 1e6


def _plan(up: int, element: Element) -> tuple[Plan, Rotation]:
    count = BYTES // 4
    bound = {32: 536870911, 16: 8191, 8: 31, 4: 1}[up]
    plan = Plan(element, up, up, bound, BLOCK * 8 // up, 1, 0 if up == 32 else 4 * bound, divisor=4.0)
    return plan, Rotation(count, 1024, clip_for(bound))


def _sets(device: torch.device, plan: Plan, rotation: Rotation) -> list[_Buffers]:
    return [_Buffers(device, plan, rotation) for _ in range(SETS)]


def _timed(name: str, launch: Launch, row: tuple[float, Callable[..., None]], sets: list[_Buffers]) -> Timed:
    element_bytes, call = row
    for number in range(WARMUP):
        call(sets[number % SETS])
    torch.cuda._sleep(SLEEP_CYCLES)  # so that all launches are queued before the first one runs
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    marks[0].record()
    for number in range(REPEATS):
        call(sets[number % SETS])
        marks[number + 1].record()
    torch.cuda.synchronize()
    ms = statistics.median(first.elapsed_time(last) for first, last in itertools.pairwise(marks))
    return Timed(name, launch.tile, launch.warps, ms, element_bytes * (BYTES // 4) / ms / 1e6)


def _report(device: torch.device, wanted: set[str]) -> Iterator[str]:
    if "bits" in wanted:
        found = bits(device)
        yield from found
        yield f"bits: {len(found)} differ from numpy's"
    if "times" in wanted:
        yield f"a launch: {launch_us(device):.1f} us of the calling thread"
        for up in (8, 4, 32):
            yield f"{up}-bit lanes, {BYTES >> 20} MiB of float32:"
            yield from map(str, times(device, up=up))
    if "sweep" in wanted:
        yield from map(str, sweep(device))


if __name__ == "__main__":
    chosen = set(sys.argv[1:]) or {"bits", "times", "sweep"}
    for line in _report(torch.device("cuda", torch.cuda.current_device()), chosen):
        print(line, flush=True)
