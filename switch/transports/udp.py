"""The switch's UDP port on an ordinary Python socket. The native server has a batched loop instead.

A worker's socket is connected: it receives only from the address to which it sends. A port that is bound to all
addresses of a machine therefore replies from the address at which it was asked, whatever the route back suggests.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from fanin import files
from fanin.errors import ConfigurationError
from fanin.protocol.ecn import Marked
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES
from fanin.schemes import SwitchEnd
from fanin.transports.marks import CONTROL_BYTES, NONE, Control, Sender, is_marked, report_marks
from fanin.transports.numeric import socket_address
from fanin.transports.peer_numbers import MAX_PEERS, AddressBook
from fanin.transports.transport import MAX_BATCH, Datagram
from fanin.transports.waker import Waker

SEND_WAIT_S = 0.01
"""How long one `send` waits, in all, for a full send buffer to drain before it drops the rest."""
RECEIVE_BYTES = 65_536
"""More than any datagram has, so that one that is too long for a packet is received whole and counted as such."""
IP_PKTINFO, IPV6_RECVPKTINFO, IPV6_PKTINFO = 8, 49, 50
"""Numbers from Linux's linux/in.h and linux/in6.h, which not every Python's socket module has."""
IPV4_INFO, IPV6_INFO = struct.Struct("=I4s4s"), struct.Struct("=16sI")
"""in_pktinfo (interface, local address, header's destination) and in6_pktinfo (header's destination, interface); see
ip(7) and ipv6(7)."""
INFO_BYTES = socket.CMSG_SPACE(IPV6_INFO.size)
WILDCARDS = ("0.0.0.0", "::")


class UdpServerTransport:
    """A socket bound to `host` and `port` (0: any free one, see `port`). ConfigurationError if it is not available."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._sender = Sender(self._socket)
        self._peers: AddressBook[Any] = AddressBook()
        self._asked_at: OrderedDict[int, Control] = OrderedDict()
        """By number of a peer: control message that makes the kernel reply from the address at which the peer asked.
        Empty if the port is bound to one address."""
        self._waker = Waker()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """The operating system's last error about a datagram that it refused to send."""
        return self._trouble

    def number_of(self, host: str, port: int) -> int:
        """The number of a peer at a numeric address, even if nothing has come from it yet."""
        return self._peers.number(socket_address(host, port)[1])

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send all; waits at most SEND_WAIT_S for a full buffer, then drops what is left."""
        may_wait = True
        for data, number in datagrams:
            peer = self._peers.key(number)
            if peer is None:
                continue
            while not self._sent(data, number, peer):
                if not may_wait or not self._sender.wait_for_room(SEND_WAIT_S):
                    return
                may_wait = False

    def _sent(self, data: bytes, number: int, peer: Any) -> bool:
        """Send one datagram; False if the send buffer is full."""
        try:
            self._sender.send(data, peer, control=self._asked_at.get(number, NONE))
        except BlockingIOError:
            return False
        except OSError as error:
            self._trouble = f"sending to {peer[0]}:{peer[1]}: {error.strerror}"
        return True

    def receive(self, timeout_s: float) -> list[Datagram]:
        """At most MAX_BATCH datagrams."""
        arrived: list[Datagram] = []
        for descriptor, _ in self._poll.poll(max(timeout_s, 0.0) * 1000):
            if descriptor == self._waker.fileno():
                self._waker.drain()
                continue
            with contextlib.suppress(BlockingIOError):
                for _ in range(MAX_BATCH):
                    data, control, _, peer = self._socket.recvmsg(RECEIVE_BYTES, CONTROL_BYTES + INFO_BYTES)
                    number = self._peers.number(peer)
                    self._note(number, control)
                    arrived.append((Marked(data) if is_marked(control) else data, number))
        return arrived

    def _note(self, number: int, control: Control) -> None:
        """Note at which of our addresses a peer has asked, if the kernel reports it."""
        for level, kind, info in control:
            if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
                told = IPV4_INFO.pack(0, IPV4_INFO.unpack(info)[1], bytes(4))  # any interface: routes decide
            elif (level, kind) == (socket.IPPROTO_IPV6, IPV6_PKTINFO):
                told = IPV6_INFO.pack(IPV6_INFO.unpack(info)[0], 0)
            else:
                continue
            self._asked_at[number] = [(level, kind, told)]
            self._asked_at.move_to_end(number)
            if len(self._asked_at) > MAX_PEERS:
                self._asked_at.popitem(last=False)

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._waker.wake()

    def close(self) -> None:
        """Close the socket and its waker."""
        self._socket.close()
        self._waker.close()


def open_switch(end: SwitchEnd) -> UdpServerTransport:
    """Open the transport for the table of schemes."""
    return UdpServerTransport(end.host, end.port)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            report_marks(opened)
            if address[0] in WILDCARDS:
                wide = family == socket.AF_INET6
                level, option = (socket.IPPROTO_IPV6, IPV6_RECVPKTINFO) if wide else (socket.IPPROTO_IP, IP_PKTINFO)
                opened.setsockopt(level, option, 1)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                opened.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_REQUEST_BYTES)
            opened.bind(address)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise ConfigurationError(f"udp port {port} of {host!r} cannot be had: {files.of_port(error)}") from error
    return opened
