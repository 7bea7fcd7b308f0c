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

TORCH_WARNING = re.compile(r"^\[[WI]\d{3,4} \d\d:\d\d:\d\d")
"""Beginning of a warning of c10's, such as `[W1129 10:20:30.123456789 socket.cpp:200] ...`."""


def end_of(log: IO[bytes]) -> str:
    """The last MAX_LOG_BYTES of a log that its process may still write."""
    number = log.fileno()  # pread leaves the file's position alone, which the process shares
    return os.pread(number, MAX_LOG_BYTES, max(0, os.fstat(number).st_size - MAX_LOG_BYTES)).decode(errors="replace")


def cause_in(log: str) -> str:
    """The cause of a failure in a Python log: the last exception's lines, at most MAX_CAUSE_LINES, or the last line.

    Warnings of torch's C++ code are no cause.
    """
    lines = [RANK_PREFIX.sub("", line) for line in log.splitlines()]
    lines = [line for line in lines if line.strip() and not TORCH_WARNING.match(line)]
    for start in range(len(lines) - 1, -1, -1):
        if EXCEPTION_LINE.match(lines[start]):
            return "\n".join(lines[start : start + MAX_CAUSE_LINES])
    return lines[-1] if lines else "it wrote no message"
