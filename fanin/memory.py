"""How much memory this process may use: the machine's, or less where it is in a container."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """The machine's memory, or the smallest limit of a control group (cgroups(7), both versions) above this process."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):  # no Linux
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits(cgroups, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(cgroups / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(root: Path, path: str, name: str) -> list[int]:
    """Limits of the control group and of all groups above it, in bytes."""
    group = root / path.lstrip("/")
    found = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        try:
            found.append(int((folder / name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return found
