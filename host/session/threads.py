"""Threads, also where a program ends: since Python 3.12 none starts any more once atexit's callbacks run.

The interpreter's end takes a daemon thread down where it next asks for the GIL, by unwinding its stack. Inside torch,
whose bindings take the GIL back in destructors, that aborts the process ("terminate called without an active
exception"; our own bindings do not, native/bind/bind_gil.hpp). So a thread of ours runs code of torch's, and callbacks
that may run it, as WORK alone: the end of the program waits for what is under way, and no more begins.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from fanin.errors import FaninError


class Work:
    """Work of daemon threads that must not meet the interpreter's end: `with WORK: ...`, also within each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._ended = False
        self._own = threading.local()

    def __enter__(self) -> None:
        depth = getattr(self._own, "depth", 0)
        if not depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._ended)  # for ever: the process is about to end
                self._under_way += 1
        self._own.depth = depth + 1

    def __exit__(self, *_: object) -> None:
        depth = getattr(self._own, "depth", 0)
        if not depth:
            return  # in a child of fork(), which a callback has made
        self._own.depth = depth - 1
        if depth == 1:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def end(self, timeout_s: float) -> bool:
        """Let no more begin, and wait for what is under way; returns whether it ended. For the end of the program."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._ended = True
            return self._changed.wait_for(lambda: not self._under_way, max(deadline - time.monotonic(), 0.0))

    def forget(self) -> None:
        """Begin anew in a child of fork(), which has none of these threads."""
        self.__init__()  # type: ignore[misc]


WORK = Work()
"""The work of this process's daemon threads."""
os.register_at_fork(after_in_child=WORK.forget)


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
