"""Reads the byte counters of an emulated host's network device (proc(5), net/dev)."""

from __future__ import annotations

from pathlib import Path

from fanin.emulation.network.fabric import WORKER_DEVICE


def device_bytes() -> tuple[int, int]:
    """Bytes sent and received by this namespace's device so far; 0 without a device."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    found = [line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == WORKER_DEVICE]
    return sum(int(each[8]) for each in found), sum(int(each[0]) for each in found)
