"""How fast the kernels are: GB/s of float32 against memcpy and numpy, in one interleaved run.

    python -m benchmarks.kernels [--json FILE] [--rounds N]

Every kernel works on an array that fits the second-level cache (256 KiB), in chunks of 8 KiB that share a scale code,
as a packet of 2,048 words does. Rates count bytes of the float32 tensor, whatever the lanes; for the switch's sums,
bytes of incoming words. The ideal is memcpy over the same array, which also reads and writes each byte once. Rounds of
all kernels are interleaved, so that other load on the machine affects all alike, and the median is reported. Each
result is compared with the numpy oracle before anything is timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fanin import _native
from fanin.host.codecs import rotation
from fanin.numerics.fixed_point import Codec
from fanin.numerics.reduction import LANES, Element
from fanin.numerics.wide_sums import narrowed
from fanin.protocol import packet_tag
from fanin.protocol.tag_algorithm import GCM_SIV, SIPHASH
from fanin.protocol.wire import LaneField
from fanin.records.dataclass_files import write_rows

ELEMENTS = 64 * 1024
BLOCK_ELEMENTS = 2048
WORKERS = 4
CALLS_PER_ROUND = 20


@dataclass
class Row:
    """One kernel: the call to time, and the seconds that it took."""

    kernel: str
    lanes: int
    implementation: str
    call: Callable[[], object]
    seconds: list[float]

    def gigabytes_per_s(self) -> float:
        """Median rate in 10^9 bytes of float32 (or words) per second."""
        return ELEMENTS * 4 / statistics.median(self.seconds) / 1e9


def rows_of(implementation: str, lanes: int, x: npt.NDArray[np.float32]) -> list[Row]:
    """The kernels of one native implementation with one lane width, whose results are checked."""
    assert _native.use_kernels(implementation)
    oracle, native = Codec(Element.FLOAT32, lanes, WORKERS), _native.Codec(Element.FLOAT32, lanes, WORKERS)
    data = x.view(np.uint8)
    codes = oracle.codes(x, BLOCK_ELEMENTS)
    expected_words = oracle.quantize(x, codes, BLOCK_ELEMENTS)
    words_be = np.empty(len(expected_words) * 4, np.uint8)
    out = np.empty_like(data)
    residual = np.zeros(len(x), np.float32)

    def scale_codes() -> object:
        return native.codes(data, BLOCK_ELEMENTS)

    def quantize() -> None:
        native.quantize_into(data, codes, BLOCK_ELEMENTS, words_be)

    def dequantize() -> None:
        native.dequantize_into(words_be, codes, BLOCK_ELEMENTS, len(x), 1, out, 4.0)

    def divide_by_three() -> None:
        native.dequantize_into(words_be, codes, BLOCK_ELEMENTS, len(x), 1, out, 3.0)

    def with_residual() -> None:
        native.quantize_into(data, codes, BLOCK_ELEMENTS, words_be, 0.5, residual)

    assert (scale_codes() == codes).all()
    quantize()
    assert (words_be.view(">u4") == expected_words).all()
    for divisor, call in ((4.0, dequantize), (3.0, divide_by_three)):
        call()
        expected = oracle.dequantize(expected_words, codes, BLOCK_ELEMENTS, len(x), 1, divisor)
        assert (out.view(np.uint32) == expected.view(np.uint32)).all()
    calls: dict[str, Callable[[], object]] = {
        "quantize": quantize,
        "quantize, factor, residual": with_residual,
        "dequantize": dequantize,
    }
    calls["dequantize, / 3"] = divide_by_three
    if lanes == 32:
        calls["scale_codes"] = scale_codes
    return [Row(name, lanes, implementation, _with(implementation, call), []) for name, call in calls.items()]


def switch_rows(implementation: str) -> list[Row]:
    """The kernels of the switch's sums, whose results are checked."""
    assert _native.use_kernels(implementation)
    words = np.random.default_rng(1).integers(0, 1 << 32, ELEMENTS, np.uint32)
    words_be = words.astype(">u4").view(np.uint8)
    total = words_be.copy()
    _native.add_words(total, words_be)
    assert (total.view(">u4") == words + words).all()
    assert _native.crc32(words_be[:8192]) == _native.crc32(words_be[4096:8192], _native.crc32(words_be[:4096]))
    return [
        Row("add_words", 32, implementation, _with(implementation, partial(_native.add_words, total, words_be)), []),
        Row("crc32", 32, implementation, _with(implementation, partial(_native.crc32, words_be)), []),
    ]


def tag_rows(implementation: str) -> list[Row]:
    """Kernels of keyed tags of packets, as long as Ethernet frames allow, ELEMENTS words in all, checked.

    One row is for a train of packets, whose tags are computed several at a time, one for packets of two lengths in
    turn.
    """
    assert _native.use_kernels(implementation)
    dice = np.random.default_rng(2)
    key = dice.bytes(16)
    rows = []
    for name, lengths, algorithm in (
        ("siphash tags of a train", (1448, 1448), SIPHASH),
        ("siphash tags, each alone", (1448, 1444), SIPHASH),
        ("gcm-siv tags", (1448, 1448), GCM_SIV),
    ):
        if algorithm not in _native.tag_algorithms():
            continue
        datagrams = [dice.bytes(lengths[place % 2]) for place in range(ELEMENTS * 4 // lengths[0])]
        tags = partial(_native.packet_tags, [key] * len(datagrams), datagrams, True, algorithm)
        expected = [packet_tag.tag(key, each, packet_tag.Direction.TO_SWITCH, algorithm) for each in datagrams]
        assert tags() == expected
        rows.append(Row(name, 32, implementation, _with(implementation, tags), []))
    return rows


def narrowing_rows(implementation: str) -> list[Row]:
    """Kernels that narrow a packet's accumulators to 8 and 4 bits (`lanes`), checked; rates count 4 B per lane.

    They work packet by packet, as a switch does, on ELEMENTS lanes in all.
    """
    assert _native.use_kernels(implementation)
    rows = []
    for up, down in ((8, 8), (4, 8), (4, 4)):
        for dtype in (np.int16, np.int32):
            sums = np.random.default_rng(up).integers(-4000, 4000, BLOCK_ELEMENTS, dtype=dtype)
            # Accumulators lie plane by plane: first the lowest lanes of all bytes, then the next ones.
            planes = np.ascontiguousarray(sums.reshape(-1, 8 // up).T).view(np.uint8).reshape(-1)
            words, shift = narrowed(sums, down)
            out = np.empty(4 * len(words), np.uint8)
            most = int(np.abs(sums).max())
            narrow = partial(_native.narrow_lanes, planes, sums.itemsize, LaneField(up, down).field, most, out)
            assert narrow() == shift
            assert (out.view(">u4") == words).all()

            def packets(narrow: Callable[[], object] = narrow) -> None:
                for _ in range(ELEMENTS // BLOCK_ELEMENTS):
                    narrow()

            name = f"narrow {up}/{down} of int{8 * sums.itemsize}"
            rows.append(Row(name, down, implementation, _with(implementation, packets), []))
    return rows


def rotation_rows(x: npt.NDArray[np.float32]) -> list[Row]:
    """The rotation of gradient codecs, checked; it chooses its instructions by itself."""
    rotated, expected = x.copy(), x.copy()
    rotation.hadamard(rotated, rotation.LARGEST_BLOCK)
    rotation.oracle(expected, rotation.LARGEST_BLOCK)
    assert (rotated.view(np.uint32) == expected.view(np.uint32)).all()
    return [Row("rotate", 32, "native", partial(rotation.hadamard, rotated, rotation.LARGEST_BLOCK), [])]


def numpy_rows(x: npt.NDArray[np.float32]) -> list[Row]:
    """The Python twins of the kernels, which a worker without the extension runs."""
    rows = []
    for lanes in LANES:
        codec = Codec(Element.FLOAT32, lanes, WORKERS)
        codes = codec.codes(x, BLOCK_ELEMENTS)
        words = codec.quantize(x, codes, BLOCK_ELEMENTS)
        quantize = partial(codec.quantize, x, codes, BLOCK_ELEMENTS)
        dequantize = partial(codec.dequantize, words, codes, BLOCK_ELEMENTS, len(x), 1, 4.0)
        rows += [Row("quantize", lanes, "numpy", quantize, []), Row("dequantize", lanes, "numpy", dequantize, [])]
    return rows


def _with(implementation: str, call: Callable[[], object]) -> Callable[[], object]:
    def chosen() -> object:
        _native.use_kernels(implementation)
        return call()

    return chosen


def measure(rows: list[Row], rounds: int) -> None:
    """Time every row once per round: the mean of some calls in a row, after one that warms the caches."""
    for _ in range(rounds):
        for row in rows:
            calls = 1 if row.implementation == "numpy" else CALLS_PER_ROUND
            row.call()
            start_s = time.perf_counter()
            for _ in range(calls):
                row.call()
            row.seconds.append((time.perf_counter() - start_s) / calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--rounds", type=int, default=21)
    asked = parser.parse_args()
    first_choice = _native.kernels_in_use()
    x = np.random.default_rng(0).normal(size=ELEMENTS).astype(np.float32)
    copy = np.empty_like(x)
    rows = [Row("memcpy", 32, "libc", partial(np.copyto, copy, x), [])]
    for implementation in ("avx512", "avx2", "portable"):
        if _native.use_kernels(implementation):
            rows += switch_rows(implementation) + tag_rows(implementation) + narrowing_rows(implementation)
            for lanes in LANES:
                rows += rows_of(implementation, lanes, x)
    rows += rotation_rows(x) + numpy_rows(x)
    measure(rows, asked.rounds)
    _native.use_kernels(first_choice)
    ideal = rows[0].gigabytes_per_s()
    print(f"{ELEMENTS * 4 // 1024} KiB of float32, {WORKERS} contributions, median of {asked.rounds} rounds")
    print(f"{'kernel':28} {'lanes':>5}  {'implementation':14} {'GB/s':>7} {'of memcpy':>9}")
    for row in sorted(rows, key=lambda row: (row.kernel != "memcpy", row.kernel, -row.lanes)):
        rate = row.gigabytes_per_s()
        print(f"{row.kernel:28} {row.lanes:5}  {row.implementation:14} {rate:7.2f} {rate / ideal:9.0%}")
    if asked.json:
        keys = [(row.kernel, row.lanes, row.implementation, row.gigabytes_per_s()) for row in rows]
        names = ("kernel", "lanes", "implementation", "gb_per_s")
        write_rows(asked.json, [dict(zip(names, key, strict=True)) for key in keys])


if __name__ == "__main__":
    main()
