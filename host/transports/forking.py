"""Connections of libzmq's that a forked child closes: its copies would keep them open beyond its parent's death."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

_CONNECTIONS: weakref.WeakSet[OwnConnection] = weakref.WeakSet()


class OwnConnection:
    """One that is this process's alone, for as long as this object is held."""

    def __init__(self, port: int) -> None:
        """`port` is the peer's, by which the descriptor is known again."""
        self._port = port
        self.descriptor: int | None = None
        """Descriptor that libzmq's monitor told last; None while there is no connection."""
        _CONNECTIONS.add(self)

    def close_copy(self) -> None:
        """In a child: give up the copy, if the descriptor is still the connection's."""
        if self.descriptor is None:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.descriptor)) as copy:
            if copy.getpeername()[1] == self._port:
                os.close(self.descriptor)
        self.descriptor = None


def _in_child() -> None:
    for connection in list(_CONNECTIONS):
        connection.close_copy()


os.register_at_fork(after_in_child=_in_child)
