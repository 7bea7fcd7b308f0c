"""Processor time of this process and all its descendants: a rank, and the shard that it has started.

A process's clock (clock_getcpuclockid(3)) counts nanoseconds; only the kernel's ticks (proc(5), /proc/PID/stat) say how
they divide into user and system time. Neither includes the time of other processes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

PROCESSES = Path("/proc")
PARENT_AT, USER_AT, SYSTEM_AT = 1, 11, 12
"""Indices of fields of /proc/PID/stat, counted from behind the program's name, which may contain spaces."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
CPUCLOCK_SCHED = 2
"""Kind of a process's clock that reads the scheduler's count of nanoseconds (linux/posix-timers.h)."""


class Spent(NamedTuple):
    """Seconds of processor time."""

    total_s: float
    user_ticks_s: float
    """User time by ticks, which is too coarse except as a share of user and system ticks."""
    system_ticks_s: float

    def since(self, before: Spent) -> tuple[float, float]:
        """User and system seconds spent since `before`."""
        total_s = self.total_s - before.total_s
        user_s, system_s = self.user_ticks_s - before.user_ticks_s, self.system_ticks_s - before.system_ticks_s
        share = user_s / (user_s + system_s) if user_s + system_s else 1.0
        return total_s * share, total_s * (1 - share)


def spent(without: Collection[int] = ()) -> Spent:
    """Processor time so far of the living processes of the tree, except those in `without` and their descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, tuple[int, int]] = {}
    for process, fields in _statistics():
        children[int(fields[PARENT_AT])].append(process)
        ticks[process] = int(fields[USER_AT]), int(fields[SYSTEM_AT])
    total_s, user, system = 0.0, 0, 0
    found = [os.getpid()]
    for process in found:
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            total_s += time.clock_gettime(~process << 3 | CPUCLOCK_SCHED)
            user, system = user + ticks[process][0], system + ticks[process][1]
        found += [child for child in children[process] if child not in without]
    return Spent(total_s, user * TICK_S, system * TICK_S)


def _statistics() -> Iterator[tuple[int, list[str]]]:
    for folder in PROCESSES.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # the process has ended meanwhile
            continue
        yield int(folder.name), text.rpartition(")")[2].split()
