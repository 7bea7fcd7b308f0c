"""Threads, also where a program ends: since Python 3.12 none starts any more once atexit's callbacks run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fanin.errors import FaninError


def require(count: int) -> None:
    """Raise FaninError unless `count` more threads can be started: where libzmq gets none, it ends the process."""
    go_on = threading.Event()
    threads = [threading.Thread(target=go_on.wait, name="fanin-tried", daemon=True) for _ in range(count)]
    tried: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            tried.append(thread)
    except RuntimeError:
        raise FaninError(
            "no further thread can be started. Remedy: raise `ulimit -u`, or end other processes"
        ) from None
    finally:
        go_on.set()
        for thread in tried:
            thread.join()


def started(target: Callable[..., object], *arguments: object, name: str) -> threading.Thread | None:
    """Start a daemon thread and return it; None where none starts: the interpreter ends, or the system has no more."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
