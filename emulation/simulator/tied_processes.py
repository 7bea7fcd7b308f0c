"""Processes of `multiprocessing` that end together with the one that started them, and without a word.

Ctrl-C reaches every process of a terminal, and SIGTERM those of a container or a service. In a process of a pool either
would print a traceback, or become the result of its work. So the processes are started within
`interruptions_blocked`, and call `end_with` first: the process that started them obeys the signal alone, and closes, or
loses, its end of a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptions_blocked() -> Iterator[None]:
    """Within the block, INTERRUPTIONS wait in this thread, and are blocked in processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        # multiprocessing's tracker ignores SIGINT and SIGTERM alone. Its start unblocks these two in this thread, so it
        # must not come later, as a part of another process's start.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(watched: Connection) -> None:
    """End this process at once when no process holds the other end of the pipe `watched` any more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)  # a fork server may have begun before, with none blocked

    def watch() -> None:
        watched.poll(None)
        os._exit(0)

    threading.Thread(target=watch, name="fanin tie", daemon=True).start()
