"""Streams that are threads: the way of waiting that needs nothing of a device but copies.

Each stream is a thread that takes what it was given in order, waits for flags itself, and queues the rest on a stream
of the device below. So the pipeline is the same, and nobody's stream is blocked while the host waits: groups may be
used in any order. In return `Work.wait` blocks its caller until the result is on its way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from fanin.host.torch.device import flags
from fanin.host.torch.device.device import Action, Event, Flag, Memory, Stream

LOOK_S = 1.0
"""How often a stream that waits for a flag looks whether it is closed."""


@dataclass(slots=True, eq=False)
class Point:
    """An event of a stream that is a thread."""

    reached: threading.Event = field(default_factory=threading.Event)
    below: Event = None
    """The device's own event, once the thread has come there."""


class ThreadStream:
    """One stream's thread, started with the first thing it is given."""

    def __init__(self, name: str, below: Stream, failed: Callable[[BaseException], None]) -> None:
        self.below = below
        self._failed = failed
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._name = name
        self._thread: threading.Thread | None = None

    def put(self, action: Callable[[], None]) -> None:
        """Run an action on the thread, after all that were put before."""
        self._todo.put(action)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"fanin-stream-{self._name}", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float) -> None:
        """End the thread behind what it has been given."""
        self._todo.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (action := self._todo.get()) is not None:
            try:
                action()
            except Exception as error:
                self._failed(error)


class ThreadedDevice:
    """`Device` over one that copies, launches and records; flags are waited for by threads."""

    way = "block"

    def __init__(self, below: Any, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called with the error of a thread's action; the stream goes on with the next action."""
        self._below, self._told = below, failed
        self.device = below.device
        self._streams: list[ThreadStream] = []
        self._closed = False

    def stream(self, name: str) -> Stream:
        """Make a stream: a thread, and a stream of the device below."""
        made = ThreadStream(name, self._below.stream(name), self._told)
        self._streams.append(made)
        return made

    def current(self) -> Stream:
        """The calling thread's current stream, which is one of the device below."""
        return self._below.current()

    def record(self, stream: Stream) -> Event:
        """Record an event behind all that the stream was given so far."""
        point = Point()
        if not isinstance(stream, ThreadStream):
            point.below = self._below.record(stream)
            point.reached.set()
            return point

        def record() -> None:
            try:
                point.below = self._below.record(stream.below)
            finally:
                point.reached.set()

        stream.put(record)
        return point

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Make all later work of the stream begin after the event."""

        def wait() -> None:
            event.reached.wait()
            if event.below is not None:
                self._below.wait_event(stream.below, event.below)

        stream.put(wait)

    def copy(self, stream: Stream, target: Memory, source: Memory) -> None:
        """Queue a copy between the device's memory and pinned memory of the host."""
        stream.put(lambda: self._below.copy(stream.below, target, source))

    def launch(self, stream: Stream, action: Action) -> None:
        """Queue a call of the action, which queues kernels, with the stream as the current one."""
        stream.put(lambda: self._below.launch(stream.below, action))

    def wait_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Make all later work of the stream begin once the flag has reached the value."""

        def wait() -> None:
            while not flags.wait(flag, value, LOOK_S) and not self._closed:
                pass

        stream.put(wait)

    def write_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Let the stream set the flag once all its earlier work is done on the device."""

        def write() -> None:
            self._below.synchronize(stream.below)
            flags.store(flag, value)

        stream.put(write)

    def raise_flag(self, flag: Flag, value: int) -> None:
        """Set the flag now, from a thread of the host."""
        flags.store(flag, value)

    def done(self, event: Event) -> bool:
        """Whether the event has come."""
        return event.reached.is_set() and (event.below is None or self._below.done(event.below))

    def join(self, event: Event, timeout_s: float | None) -> bool:
        """Wait until the thread has come to the event, then let the caller's stream wait for the device's.

        Returns whether it came within the time.
        """
        if not event.reached.wait(timeout_s):
            return False
        return event.below is None or bool(self._below.join(event.below, timeout_s))

    def pinned(self, count_bytes: int) -> Memory:
        """Allocate pinned memory by the device below."""
        return self._below.pinned(count_bytes)

    def allocate(self, stream: Stream, count_bytes: int) -> Memory:
        """Allocate the device's memory by the device below."""
        return self._below.allocate(stream.below, count_bytes)

    def retire(self, stream: Stream, memory: Memory, beside: Memory) -> None:
        """Queue the release of memory by the device below."""
        stream.put(lambda: self._below.retire(stream.below, memory, beside))

    def close(self) -> None:
        """End the threads. Flags have been raised for all that waits."""
        self._closed = True
        for stream in self._streams:
            stream.close(LOOK_S)
