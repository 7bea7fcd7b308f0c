"""How many files this process may have open at once (getrlimit(2)), and has.

They are counted before ZeroMQ is asked for one too many: it then ends the process without a word of ours.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys

from fanin.errors import ConfigurationError

NEEDED = 64
"""A switch over both carriers with one flow opens about 30; every flow and every connected worker another."""
AMPLE = 1024
"""Limit on open files that most systems set."""


def limit(wanted: int) -> int:
    """The limit, raised to `wanted` where it is lower, as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        raised = wanted if hard == unlimited else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return sys.maxsize if soft == unlimited else soft


def make_room(count: int) -> None:
    """Raise the limit where so many more files would not fit under it, as far as the system lets this process."""
    with contextlib.suppress(OSError):  # a system without /proc
        limit(len(os.listdir("/proc/self/fd")) + count)


def require() -> None:
    """Raise a low limit as far as this process may; ConfigurationError where that is too little."""
    allowed = limit(AMPLE)
    if allowed < NEEDED:
        raise ConfigurationError(
            f"only {allowed} files may be open, and fanin needs {NEEDED}. Remedy: raise `ulimit -n`; {AMPLE} is enough"
        )
