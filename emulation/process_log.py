"""Reads the end of a process's log, and finds the line that says why the process failed."""

from __future__ import annotations

import os
import re
from typing import IO

MAX_CAUSE_LINES = 8
MAX_LOG_BYTES = 1 << 20
"""Bytes kept from the end of a worker's standard error, where the reason of a failure stands."""
EXCEPTION_LINE = re.compile(r"^(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b", re.MULTILINE)
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""The prefix that torch writes before every line of a traceback."""


def end_of(log: IO[bytes]) -> str:
    """The last MAX_LOG_BYTES of a log that its process may still write."""
    number = log.fileno()  # pread leaves the file's position alone, which the process shares
    return os.pread(number, MAX_LOG_BYTES, max(0, os.fstat(number).st_size - MAX_LOG_BYTES)).decode(errors="replace")


def cause_in(log: str) -> str:
    """The cause of a failure in a Python log: the last exception's lines, at most MAX_CAUSE_LINES, or the last line."""
    lines = [RANK_PREFIX.sub("", line) for line in log.splitlines()]
    lines = [line for line in lines if line.strip()]
    for start in range(len(lines) - 1, -1, -1):
        if EXCEPTION_LINE.match(lines[start]):
            return "\n".join(lines[start : start + MAX_CAUSE_LINES])
    return lines[-1] if lines else "it wrote no message"
