"""How busy this machine's processors were while something was timed (proc(5), the first line of /proc/stat)."""

from __future__ import annotations

from pathlib import Path

STATISTICS = Path("/proc/stat")
IDLE_AT, IOWAIT_AT, GUEST_AT = 3, 4, 8
"""Guests' time, from the last on, is contained in what stands before."""
MAX_BUSY = 0.9
"""Above this the processors, not the links, set the time."""


class ProcessorMeter:
    """Adds up the time between `start` and `stop`, over any number of stretches."""

    def __init__(self) -> None:
        self._busy = self._all = 0
        self._begin = (0, 0)

    def start(self) -> None:
        """Begin a stretch of measurement."""
        self._begin = _ticks()

    def stop(self) -> None:
        """End a stretch of measurement."""
        busy, total = _ticks()
        self._busy += busy - self._begin[0]
        self._all += total - self._begin[1]

    @property
    def share(self) -> float | None:
        """0..1 of all processors; None where the system does not say, or nothing was long enough to be seen."""
        return self._busy / self._all if self._all else None


def _ticks() -> tuple[int, int]:
    """Busy and in all, since the machine started; whatever else runs on it counts, too."""
    try:
        fields = STATISTICS.read_text(encoding="ascii").split("\n", 1)[0].split()[1 : 1 + GUEST_AT]
    except OSError:
        return 0, 0
    ticks = list(map(int, fields))
    return sum(ticks) - ticks[IDLE_AT] - ticks[IOWAIT_AT], sum(ticks)


def busy_in_words(share: float | None) -> str:
    """For a table: with a star where the processors set the time."""
    return "" if share is None else f"{share:.0%}{'*' if share > MAX_BUSY else ''}"
