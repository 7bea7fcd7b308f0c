"""Measures how busy this machine's processors are (proc(5), the first line of /proc/stat)."""

from __future__ import annotations

from pathlib import Path

STATISTICS = Path("/proc/stat")
IDLE_AT, IOWAIT_AT, GUEST_AT = 3, 4, 8
"""Indices of fields in /proc/stat; fields from GUEST_AT on are guests' time, which earlier fields contain."""
MAX_BUSY = 0.9
"""Load above which the processors, not the links, set the time."""


class ProcessorMeter:
    """Measures the load between `start` and `stop`, over any number of intervals together."""

    def __init__(self) -> None:
        self._busy = self._all = 0
        self._begin = (0, 0)

    def start(self) -> None:
        """Begin an interval of measurement."""
        self._begin = _ticks()

    def stop(self) -> None:
        """End an interval of measurement."""
        busy, total = _ticks()
        self._busy += busy - self._begin[0]
        self._all += total - self._begin[1]

    @property
    def share(self) -> float | None:
        """Load of all processors, 0..1; None if the system does not tell it, or if no tick passed."""
        return self._busy / self._all if self._all else None


def _ticks() -> tuple[int, int]:
    """Busy ticks and all ticks since the machine started, of all its processes."""
    try:
        fields = STATISTICS.read_text(encoding="ascii").split("\n", 1)[0].split()[1 : 1 + GUEST_AT]
    except OSError:
        return 0, 0
    ticks = list(map(int, fields))
    return sum(ticks) - ticks[IDLE_AT] - ticks[IOWAIT_AT], sum(ticks)


def busy_in_words(share: float | None) -> str:
    """The load for a table, with a star if the processors set the time; empty for None."""
    return "" if share is None else f"{share:.0%}{'*' if share > MAX_BUSY else ''}"
