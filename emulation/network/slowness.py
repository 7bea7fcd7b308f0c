"""Workers that are slower than the others: their processes are stopped for a part of every short period.

A worker slowed down by 2 runs half of the time at most, with all its threads, as on a machine half as fast. With fewer
cores than workers the others wait for a core as well, so the effect on a run is smaller than the factor.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType

PERIOD_S = 0.02
"""Short against a training step, long against a context switch."""
LOOK_EVERY_PERIODS = 25
"""Periods between two searches for new processes of a worker."""


class Slowness:
    """Slows down some workers from entry to exit."""

    def __init__(self, factors: dict[int, float], processes_of: Callable[[int], set[int]]) -> None:
        """`factors`: by rank, 1 or more; `processes_of` returns the ids of a rank's processes."""
        self._factors = {rank: factor for rank, factor in factors.items() if factor > 1}
        self._processes_of = processes_of
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._slow, args=item, name="fanin slowness", daemon=True)
            for item in self._factors.items()
        ]

    def __enter__(self) -> Slowness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _slow(self, rank: int, factor: float) -> None:
        running_s = PERIOD_S / factor
        found: set[int] = set()
        periods = 0
        while not self._over.is_set():
            if periods % LOOK_EVERY_PERIODS == 0:
                found = self._processes_of(rank)
            periods += 1
            _signal(found, signal.SIGSTOP)
            self._over.wait(PERIOD_S - running_s)
            _signal(found, signal.SIGCONT)  # at the end, too, so that no process stays stopped
            self._over.wait(running_s)


def _signal(processes: set[int], number: signal.Signals) -> None:
    for pid in processes:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
