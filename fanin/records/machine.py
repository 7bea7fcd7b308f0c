"""The machine on which a run was measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """Processor and cores, for people."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
