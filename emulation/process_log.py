"""Read the end of a process's log, and the line of it that says why the process failed."""

from __future__ import annotations

import os
import re
from typing import IO

MAX_CAUSE_LINES = 8
MAX_LOG_BYTES = 1 << 20
"""Bytes that are kept of a worker's standard error, from its end, which holds the reason of a failure."""
EXCEPTION_LINE = re.compile(r"^(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b", re.MULTILINE)
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""The prefix that torch writes before every line of a traceback."""


def end_of(log: IO[bytes]) -> str:
    """The last MAX_LOG_BYTES of a file that a process may write into, where an exception is."""
    number = log.fileno()  # pread, since the process writes at the file's one position
    return os.pread(number, MAX_LOG_BYTES, max(0, os.fstat(number).st_size - MAX_LOG_BYTES)).decode(errors="replace")


def cause_in(log: str) -> str:
    """The end of a Python log: the text of the last exception, or else the last line."""
    lines = [RANK_PREFIX.sub("", line) for line in log.splitlines()]
    lines = [line for line in lines if line.strip()]
    for start in range(len(lines) - 1, -1, -1):
        if EXCEPTION_LINE.match(lines[start]):
            return "\n".join(lines[start : start + MAX_CAUSE_LINES])
    return lines[-1] if lines else "it wrote no message"
