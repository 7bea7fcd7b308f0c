"""UDP through an ordinary Python socket: one system call per datagram. The native engine has the batched loop.

The socket is connected, so the kernel delivers only what the switch sends, and reports what comes back as ICMP: a port
where nobody listens, a path that is too narrow, a network that is not there. None of these ends the transport: the
worker machine's timers decide when silence is a failure, and `trouble` then explains it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterable

from fanin.addresses import host_and_port
from fanin.errors import SwitchUnreachableError
from fanin.protocol.ecn import Marked
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES
from fanin.schemes import WorkerEnd
from fanin.transports.marks import CONTROL_BYTES, Sender, is_marked, report_marks
from fanin.transports.transport import MAX_BATCH, SWITCH, Datagram
from fanin.transports.waker import Waker

SEND_WAIT_S = 0.01
"""How long one `send` waits, in all, for a full send buffer to drain before it drops the rest."""
RECEIVE_BYTES = 65_536
"""More than any datagram, so that one that is longer than a packet may be is read whole, and counted as too long."""

_TROUBLES = {
    errno.ECONNREFUSED: "nothing listens at this port: is the switch running, and is the port right?",
    errno.EMSGSIZE: "a packet is too long for the path: lower FANIN_WORDS_PER_PACKET",
    errno.ENETUNREACH: "no route to this network: check the address and this machine's routes",
    errno.EHOSTUNREACH: "the host does not answer: check the address, and that both machines are on the network",
    errno.EPERM: "this machine's firewall forbids it: allow outgoing UDP to this port",
    errno.EACCES: "this machine's firewall or a broadcast address forbids it",
}


class UdpTransport:
    """A socket to `udp://host:port`. SwitchUnreachableError when the name does not resolve or has no route."""

    def __init__(self, host: str, port: int) -> None:
        self._address = f"udp://{host_and_port(host, port)}"
        self._trouble = ""
        self._socket = self._connect(host, port)
        self._sender = Sender(self._socket)
        self.local: tuple[str, int] = _numeric(self._socket.getsockname())
        """This end's address and port."""
        self.peer: tuple[str, int] = _numeric(self._socket.getpeername())
        """The switch's numeric address and port."""
        self._waker = Waker()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)

    @property
    def trouble(self) -> str:
        """The last complaint of the operating system since something was last received."""
        return self._trouble

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send all; waits at most SEND_WAIT_S for a full buffer, then drops what is left."""
        may_wait = True
        for data, _ in datagrams:
            while not self._sent(data):
                if not may_wait or not self._sender.wait_for_room(SEND_WAIT_S):
                    return
                may_wait = False

    def receive(self, timeout_s: float) -> list[Datagram]:
        """At most MAX_BATCH datagrams."""
        ready = self._poll.poll(max(timeout_s, 0.0) * 1000)
        arrived: list[Datagram] = []
        for descriptor, _ in ready:
            if descriptor == self._waker.fileno():
                self._waker.drain()
            else:
                self._receive_into(arrived)
        return arrived

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._waker.wake()

    def close(self) -> None:
        """Close the socket and its waker."""
        self._socket.close()
        self._waker.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError as error:
            text = f"{self._address}: the name {host!r} does not resolve ({error.strerror})"
            raise SwitchUnreachableError(self._address, f"{text}. Remedy: correct the switch's address") from error
        family, kind, protocol, _, address = found[0]
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            opened.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_REQUEST_BYTES)
        report_marks(opened)
        try:
            opened.connect(address)
        except OSError as error:
            opened.close()
            text = (
                f"{self._address}: {_explain(error)}. Remedy: see the switch's address, and the way there (`ip route`)"
            )
            raise SwitchUnreachableError(self._address, text) from error
        return opened

    def _sent(self, data: bytes) -> bool:
        """Send one datagram; False where there is no room for it.

        An error that an earlier datagram left on the socket is noted, and this one is sent again.
        """
        for _ in range(2):
            try:
                self._sender.send(data)
                return True
            except BlockingIOError:
                return False
            except OSError as error:
                self._trouble = f"{self._address}: {_explain(error)}"
        return True

    def _receive_into(self, arrived: list[Datagram]) -> None:
        for _ in range(MAX_BATCH):
            try:
                data, control, _, _ = self._socket.recvmsg(RECEIVE_BYTES, CONTROL_BYTES)
                arrived.append((Marked(data) if is_marked(control) else data, SWITCH))
            except BlockingIOError:
                return
            except OSError as error:
                self._trouble = f"{self._address}: {_explain(error)}"
                return
            self._trouble = ""


def open_worker(end: WorkerEnd) -> UdpTransport:
    """Open the transport for the table of schemes."""
    return UdpTransport(end.host, end.port)


def _numeric(address: tuple[str, int]) -> tuple[str, int]:
    """Host and port of a socket address, without an IPv6 zone."""
    return address[0].partition("%")[0], address[1]


def _explain(error: OSError) -> str:
    known = _TROUBLES.get(error.errno or 0)
    text = os.strerror(error.errno) if error.errno else str(error)
    return f"{text}: {known}" if known else text
