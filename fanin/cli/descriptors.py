"""Open files, counted before ZeroMQ is asked for one too many: it then ends the process without a word of ours."""

from __future__ import annotations

import contextlib
import resource

from fanin.errors import ConfigurationError

NEEDED = 64
"""A switch over both carriers with one flow opens about 30; every flow and every connected worker another."""
AMPLE = 1024
"""What most systems allow."""


def require() -> None:
    """Raise a low limit as far as this process may; ConfigurationError where that is too little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < AMPLE:
        wanted = AMPLE if hard == unlimited else min(hard, AMPLE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != unlimited and soft < NEEDED:
        raise ConfigurationError(
            f"only {soft} files may be open, and fanin needs {NEEDED}. Remedy: raise `ulimit -n`; {AMPLE} is enough"
        )
