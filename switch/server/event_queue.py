"""Events of data threads, until the controller's thread takes them."""

from __future__ import annotations

import os
import threading
from collections import deque

from fanin.errors import FaninError
from fanin.protocol.events import BranchNarrowed, SwitchEvent


class EventQueue:
    """First in, first out, between threads, with a descriptor to poll."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """The lock of everything below."""
        self._events: deque[SwitchEvent] = deque()
        self._crash: Exception | None = None
        self._closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """A descriptor that is readable while `next` has something to say."""
        return self._bell

    def put(self, event: SwitchEvent) -> None:
        """Add an event, from any thread."""
        with self._changed:
            self._events.append(event)
            self._ring()

    def fail(self, error: Exception) -> None:
        """Nothing follows what is here: its source has crashed."""
        with self._changed:
            self._crash = error
            self._ring()

    def next(self, timeout_s: float) -> SwitchEvent | None:
        """The oldest event; waits up to `timeout_s` for one.

        When none is left after a crash: the FaninError that ended the source, or a RuntimeError with what else did.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._crash or self._closed, timeout_s)
            if self._events:
                event = self._events.popleft()
                self._silence()
                return event
            if isinstance(self._crash, FaninError):
                raise self._crash
            if self._crash is not None:
                raise RuntimeError(str(self._crash)) from self._crash
            return None

    def forget(self, job: int, worker: int) -> None:
        """Drop what was put of a worker and nobody has taken: another process has its place from here on."""
        with self._changed:
            left = [e for e in self._events if isinstance(e, BranchNarrowed) or (e.job, e.worker) != (job, worker)]
            if len(left) < len(self._events):
                self._events = deque(left)
                self._silence()

    def close(self) -> None:
        """End every wait; nothing can be put any more. A second call does nothing."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._changed.notify_all()
                os.close(self._bell)

    def _silence(self) -> None:
        if not self._events and self._crash is None and not self._closed:
            os.eventfd_read(self._bell)

    def _ring(self) -> None:
        if not self._closed:
            os.eventfd_write(self._bell, 1)
            self._changed.notify_all()
