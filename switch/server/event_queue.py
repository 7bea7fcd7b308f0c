"""Events of data threads, until the controller's thread takes them."""

from __future__ import annotations

import os
import threading
from collections import deque

from fanin.errors import FaninError
from fanin.protocol.events import BranchNarrowed, SwitchEvent


class EventQueue:
    """Thread-safe FIFO queue of events, with a descriptor to poll."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Guards the attributes below; notified of every change."""
        self._events: deque[SwitchEvent] = deque()
        self._crash: Exception | None = None
        self._closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """A descriptor that is readable while `next` has an event or an error."""
        return self._bell

    def put(self, event: SwitchEvent) -> None:
        """Add an event, from any thread."""
        with self._changed:
            self._events.append(event)
            self._ring()

    def fail(self, error: Exception) -> None:
        """Note that the source of events has crashed: `next` raises after the events that are queued."""
        with self._changed:
            self._crash = error
            self._ring()

    def next(self, timeout_s: float) -> SwitchEvent | None:
        """Wait up to `timeout_s` for the oldest event; None without one.

        After a crash, once the queue is empty: raises the FaninError that ended the source, or a RuntimeError for any
        other exception.
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
        """Drop queued events of a worker, because another process has its place from now on."""
        with self._changed:
            left = [e for e in self._events if isinstance(e, BranchNarrowed) or (e.job, e.worker) != (job, worker)]
            if len(left) < len(self._events):
                self._events = deque(left)
                self._silence()

    def close(self) -> None:
        """End every wait; later events are not signalled. A second call does nothing."""
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
