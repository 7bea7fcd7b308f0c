"""One ZeroMQ context for all control connections of a process, for as long as there are any: a context has two threads.

A child of fork() has neither the threads nor, perhaps, the lock: it starts with none, and leaves its parent's alone.
"""

from __future__ import annotations

import os
import threading

import zmq

from fanin.host.session.threads import require

Context = zmq.Context[zmq.Socket[bytes]]
THREADS = 2
"""Number of threads of a context: it starts them with its first socket."""


class SharedContext:
    """Any thread may open and release; a socket is used by one thread at a time, as ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: Context | None = None
        self._users = 0
        self._inherited: list[Context] = []
        """Kept, in a child of fork(), since dropping them would end them."""

    def open(self) -> Context:
        """The context. Call `release` once for it, with all sockets closed."""
        with self._lock:
            if self._context is None:
                require(THREADS)
                self._context = zmq.Context()
            self._users += 1
            return self._context

    def release(self, context: Context) -> None:
        """One user less; the last one waits until what it has sent has left, at most as long as its sockets linger."""
        with self._lock:
            if context is not self._context:
                return  # the parent's
            self._users -= 1
            if self._users:
                return
            self._context = None
        context.term()

    def forget(self) -> None:
        """In a child of fork()."""
        self._lock = threading.Lock()
        if self._context is not None:
            self._inherited.append(self._context)
        self._context, self._users = None, 0


CONTROL = SharedContext()
os.register_at_fork(after_in_child=CONTROL.forget)
