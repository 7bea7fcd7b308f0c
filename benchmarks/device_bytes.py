"""Bytes that have passed the device of an emulated host (proc(5), net/dev)."""

from __future__ import annotations

from pathlib import Path

from fanin.emulation.network.fabric import WORKER_DEVICE


def device_bytes() -> tuple[int, int]:
    """Bytes that have left by this namespace's device so far, and that have come; 0 where there is none."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    found = [line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == WORKER_DEVICE]
    return sum(int(each[8]) for each in found), sum(int(each[0]) for each in found)
