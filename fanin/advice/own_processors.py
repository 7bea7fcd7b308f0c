"""Measurements of `fanin advise` on a host's own processors: how many it may use, how fast, and how idle they are."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from fanin.benchmarks.processor import ProcessorMeter
from fanin.extension import native_extension
from fanin.numerics.reduction import Element
from fanin.processor_prices import KERNELS_S

KERNEL_BYTES, KERNEL_ROUNDS, BLOCK_ELEMENTS = 4 << 20, 15, 1024
CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""Quota and period of a container's processor time (cgroup v2)."""


def kernels_s() -> float | None:
    """Seconds per byte in which a core finds scale codes, quantizes and dequantizes; None without native code.

    The shortest of KERNEL_ROUNDS, which other load on the machine hardly changes.
    """
    native = native_extension(None)
    if native is None:
        return None
    values = np.linspace(-1.0, 1.0, KERNEL_BYTES // 4, dtype=np.float32)
    codec, data = native.Codec(Element.FLOAT32, 32, 2), values.view(np.uint8)
    words, out = np.empty(KERNEL_BYTES, np.uint8), np.empty_like(data)
    took = []
    for _ in range(KERNEL_ROUNDS):
        begun = time.perf_counter()
        codes = codec.codes(data, BLOCK_ELEMENTS)
        codec.quantize_into(data, codes, BLOCK_ELEMENTS, words)
        codec.dequantize_into(words, codes, BLOCK_ELEMENTS, len(values), 1, out, 2.0)
        took.append(time.perf_counter() - begun)
    return min(took) / KERNEL_BYTES


def core_speed() -> float:
    """Speed of a core of this host, as a multiple of the one in processor_prices.py; 1 where it cannot be measured."""
    found = kernels_s()
    return 1.0 if found is None else KERNELS_S / found


def core_limit(cores: int, limit: str) -> float:
    """Cores that this process may use: `cores` of the machine, at most the quota in `limit`, the text of a `cpu.max`.

    Text of another form, such as `max 100000`, is no limit.
    """
    fields = limit.split()
    if len(fields) != 2 or not all(field.isdecimal() and int(field) for field in fields):
        return float(cores)
    return min(float(cores), int(fields[0]) / int(fields[1]))


def own_core_limit(cores: int) -> float:
    """`core_limit` by the quota of this process' container."""
    try:
        return core_limit(cores, CGROUP_LIMIT.read_text(encoding="ascii"))
    except OSError:  # cgroup v1, the root of v2, or none
        return float(cores)


def idle_share(seconds: float) -> float:
    """Share of this machine's processor time that nobody uses while this process sleeps; 1 where it is not known."""
    meter = ProcessorMeter()
    meter.start()
    time.sleep(seconds)
    meter.stop()
    return 1.0 - (meter.share or 0.0)
