"""A descriptor by which a thread ends another thread's poll."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """Poll `fileno()` for reading; any thread's `wake` makes it readable until `drain`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Make it readable. Harmless when it already is, and after `close`."""
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def drain(self) -> None:
        """Take back all wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        """Give up the descriptors."""
        self._reader.close()
        self._writer.close()
