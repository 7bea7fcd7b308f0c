"""Open files, counted before ZeroMQ is asked for one too many: it then ends the process without a word of ours."""

from __future__ import annotations

from fanin import open_files
from fanin.errors import ConfigurationError

NEEDED = 64
"""A switch over both carriers with one flow opens about 30; every flow and every connected worker another."""
AMPLE = 1024
"""Limit of open files on most systems."""


def require() -> None:
    """Raise a low limit as far as this process may; ConfigurationError where that is too little."""
    allowed = open_files.limit(AMPLE)
    if allowed < NEEDED:
        raise ConfigurationError(
            f"only {allowed} files may be open, and fanin needs {NEEDED}. Remedy: raise `ulimit -n`; {AMPLE} is enough"
        )
