"""Threads, also where a program ends: since Python 3.12 none starts any more once atexit's callbacks run."""

from __future__ import annotations

import threading
from collections.abc import Callable


def started(target: Callable[..., object], *arguments: object, name: str) -> threading.Thread | None:
    """A daemon thread that runs; None where the interpreter ends, or the system has no more, and none starts."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
