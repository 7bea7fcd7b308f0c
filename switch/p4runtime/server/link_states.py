"""States of network interfaces, as the kernel reports them: the link group of netlink (rtnetlink(7)).

An interface counts as up if frames can leave: it is set up, and its link is established (IFF_RUNNING). A removed
interface is down for good, even if another gets its name, since a port's socket belongs to the removed one.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Iterator

NEW_LINK, DELETED_LINK, GET_LINK, DONE, ERROR = 16, 17, 18, 3, 2
LINK_GROUP = 1  # RTMGRP_LINK
REQUEST, DUMP = 1, 0x300
IS_UP, IS_RUNNING = 1 << 0, 1 << 6
HEADER = struct.Struct("=IHHII")
LINK = struct.Struct("=BxHiII")
MAX_MESSAGE_BYTES = 1 << 16
ALIGNMENT = 4


def read_links(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield type, interface index and whether it is up, for each message of a netlink datagram; index 0: no interface.

    Ends at an incomplete message.
    """
    at = 0
    while at + HEADER.size <= len(data):
        size, kind, *_ = HEADER.unpack_from(data, at)
        if size < HEADER.size or at + size > len(data):
            return
        index, up = 0, False
        if kind in (NEW_LINK, DELETED_LINK) and size >= HEADER.size + LINK.size:
            _, _, index, flags, _ = LINK.unpack_from(data, at + HEADER.size)
            up = kind == NEW_LINK and flags & (IS_UP | IS_RUNNING) == IS_UP | IS_RUNNING
        yield kind, index, up
        at += -(-size // ALIGNMENT) * ALIGNMENT


class LinkStates:
    """Receives state changes of all interfaces of this network namespace. Not thread safe."""

    def __init__(self) -> None:
        """Subscribe to the changes. OSError if netlink is not available."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        try:
            self._socket.bind((0, LINK_GROUP))
            self._ask()
        except BaseException:
            self._socket.close()
            raise

    def _ask(self) -> None:
        """Ask the kernel for the states of all interfaces."""
        self._socket.send(
            HEADER.pack(HEADER.size + LINK.size, GET_LINK, REQUEST | DUMP, 0, 0) + LINK.pack(0, 0, 0, 0, 0)
        )

    def all(self) -> dict[int, bool]:
        """Whether each interface is up, by index. Must be called once, before `changes`."""
        found: dict[int, bool] = {}
        while True:
            for kind, index, up in read_links(self._socket.recv(MAX_MESSAGE_BYTES)):
                if kind in (DONE, ERROR):
                    return found
                if index:
                    found[index] = up

    def changes(self, wake: int) -> Iterator[tuple[int, bool]]:
        """Yield changes that the kernel reports, index and whether it is up, until descriptor `wake` is readable."""
        while True:
            readable, _, _ = select.select([self._socket.fileno(), wake], [], [])
            if wake in readable:
                return
            try:
                data = self._socket.recv(MAX_MESSAGE_BYTES)
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # the socket's buffer has overflowed, so that changes are lost
                    raise
                self._ask()
                continue
            yield from ((index, up) for _, index, up in read_links(data) if index)

    def close(self) -> None:
        """Close the netlink socket."""
        self._socket.close()
