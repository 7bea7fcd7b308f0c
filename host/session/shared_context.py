"""One ZeroMQ context for all control connections of a process, as long as there are any, since it has two threads.

A child of fork() does not have these threads, and the lock may be held: it starts without a context, and does not touch
its parent's.
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
    """The context and its number of users. Any thread may open and release; a socket is for one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: Context | None = None
        self._users = 0
        self._inherited: list[Context] = []
        """The parent's contexts, in a child of fork(): kept, since dropping them would terminate them."""

    def open(self) -> Context:
        """The context. Call `release` once for it, with all sockets closed."""
        with self._lock:
            if self._context is None:
                require(THREADS)
                self._context = zmq.Context()
            self._users += 1
            return self._context

    def release(self, context: Context) -> None:
        """Count one user less; the last one terminates the context, which waits as long as its sockets linger."""
        with self._lock:
            if context is not self._context:
                return  # the parent's
            self._users -= 1
            if self._users:
                return
            self._context = None
        context.term()

    def forget(self) -> None:
        """In a child of fork(): start without a context, and keep the parent's untouched."""
        self._lock = threading.Lock()
        if self._context is not None:
            self._inherited.append(self._context)
        self._context, self._users = None, 0


CONTROL = SharedContext()
os.register_at_fork(after_in_child=CONTROL.forget)
