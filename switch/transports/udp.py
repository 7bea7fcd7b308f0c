"""The switch's UDP port through an ordinary Python socket. The native server has the batched loop."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterable
from typing import Any

from fanin.errors import ConfigurationError
from fanin.protocol.ecn import Marked
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES
from fanin.schemes import SwitchEnd
from fanin.transports.addresses import AddressBook
from fanin.transports.marks import CONTROL_BYTES, Sender, is_marked, report_marks
from fanin.transports.transport import MAX_BATCH, Datagram
from fanin.transports.waker import Waker

SEND_WAIT_S = 0.01
"""How long one `send` waits, in all, for a full send buffer to drain before it drops the rest."""
RECEIVE_BYTES = 65_536
"""More than any datagram: one that is longer than a packet may be is seen whole, and counted for what it is."""


class UdpServerTransport:
    """A socket bound to `host` and `port` (0: any free one, see `port`). ConfigurationError when that cannot be had."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._sender = Sender(self._socket)
        self._peers: AddressBook[Any] = AddressBook()
        self._waker = Waker()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """The last complaint of the operating system about a datagram that it would not send."""
        return self._trouble

    def number_of(self, host: str, port: int) -> int:
        """The number of a peer at a numeric address, whether or not it was heard of."""
        return self._peers.number((host, port, 0, 0) if ":" in host else (host, port))

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send all; waits at most SEND_WAIT_S for a full buffer, then drops what is left."""
        may_wait = True
        for data, address in datagrams:
            peer = self._peers.key(address)
            if peer is None:
                continue
            try:
                self._sender.send(data, peer)
            except BlockingIOError:
                if not may_wait or not select.select([], [self._socket], [], SEND_WAIT_S)[1]:
                    return
                may_wait = False
            except OSError as error:
                self._trouble = f"sending to {peer[0]}:{peer[1]}: {error.strerror}"

    def receive(self, timeout_s: float) -> list[Datagram]:
        """At most MAX_BATCH datagrams."""
        arrived: list[Datagram] = []
        for descriptor, _ in self._poll.poll(max(timeout_s, 0.0) * 1000):
            if descriptor == self._waker.fileno():
                self._waker.drain()
                continue
            with contextlib.suppress(BlockingIOError):
                for _ in range(MAX_BATCH):
                    data, control, _, peer = self._socket.recvmsg(RECEIVE_BYTES, CONTROL_BYTES)
                    arrived.append((Marked(data) if is_marked(control) else data, self._peers.number(peer)))
        return arrived

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._waker.wake()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._waker.close()


def open_switch(end: SwitchEnd) -> UdpServerTransport:
    """As the table of schemes asks for it."""
    return UdpServerTransport(end.host, end.port)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            report_marks(opened)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                opened.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_REQUEST_BYTES)
            opened.bind(address)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise ConfigurationError(f"udp port {port} of {host!r} cannot be had: {error.strerror}") from error
    return opened
