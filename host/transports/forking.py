"""Connections of libzmq whose copies a forked child closes: they would stay open beyond the parent's death."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

_CONNECTIONS: weakref.WeakSet[OwnConnection] = weakref.WeakSet()


class OwnConnection:
    """A connection of this process alone: while this object exists, every forked child closes its copy."""

    def __init__(self, port: int) -> None:
        """`port`: the peer's, by which a child checks that the descriptor is still that of the connection."""
        self._port = port
        self.descriptor: int | None = None
        """Descriptor that libzmq's monitor reported last; None while there is no connection."""
        _CONNECTIONS.add(self)

    def close_copy(self) -> None:
        """In a child: close the copy, if the descriptor is still the connection's."""
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
