"""A device as the pipeline sees it: streams, copies, events, and flags in memory that host and device share.

`cuda.py` implements it with torch and CUDA's driver, `threads.py` with a thread per stream, and tests in virtual time
(fake_device.py). Everything here returns at once; what it asks for happens in the order of the stream.
"""

from __future__ import annotations

from typing import Any, Protocol

Stream = Any
"""A queue of work on the device; opaque."""
Event = Any
"""A point in a stream; opaque."""
Flag = Any
"""A 32-bit word that host and device see. Values count up and around: one has come once `stands - value`, read as a
signed number, is not negative."""
Memory = Any
"""Flat bytes, of the device or of the host: `memory[first:last]` is a part of them."""
Action = Any
"""A callable without arguments that queues kernels on the current stream."""


class Device(Protocol):
    """Operations that one reduction queues on a device, and the flags by which the host answers them."""

    def stream(self, name: str) -> Stream:
        """Make a stream of our own; `name` is for people."""

    def record(self, stream: Stream) -> Event:
        """The point behind all that the stream was given so far."""

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Make all later work of the stream begin after the event."""

    def copy(self, stream: Stream, target: Memory, source: Memory) -> None:
        """Copy between the device's memory and pinned memory of the host; as many bytes in both."""

    def launch(self, stream: Stream, action: Action) -> None:
        """Call the action, which queues kernels, with the stream as the current one."""

    def wait_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Make all later work of the stream begin once the flag has reached the value."""

    def write_value(self, stream: Stream, flag: Flag, value: int) -> None:
        """Set the flag once all before is done and can be seen by the host."""

    def raise_flag(self, flag: Flag, value: int) -> None:
        """Set the flag now, by a thread of the host. Asks the device for nothing, so it can be called at any time."""
