"""How many files this process may have open at once (getrlimit(2)), and how many it has open.

They are counted beforehand, since ZeroMQ ends the process, without any message of ours, when it cannot open a file.
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
    """Raise the limit to `wanted` where it is lower, as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        raised = wanted if hard == unlimited else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return sys.maxsize if soft == unlimited else soft


def make_room(count: int) -> None:
    """Raise the limit, as far as the system allows, where it leaves no room for `count` further files."""
    with contextlib.suppress(OSError):  # a system without /proc
        limit(len(os.listdir("/proc/self/fd")) + count)


def require() -> None:
    """Raise a limit below AMPLE as far as the system allows; ConfigurationError where it stays below NEEDED."""
    allowed = limit(AMPLE)
    if allowed < NEEDED:
        raise ConfigurationError(
            f"only {allowed} files may be open, and fanin needs {NEEDED}. Remedy: raise `ulimit -n`; {AMPLE} is enough"
        )
