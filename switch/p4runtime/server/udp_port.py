"""A UDP socket as a port of an emulated switch: ordinary hosts on one side, Ethernet frames on the other.

The socket's address is the switch's; each sender gets a MAC address derived from its IP address. So the compiled
program reads and rewrites frames as on Ethernet, while hosts send and receive plain UDP.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from fanin import files
from fanin.errors import ConfigurationError
from fanin.formats.frames import Endpoint, Frame, mac_of, read_frame
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES
from fanin.protocol.wire import MAX_DATAGRAM_BYTES
from fanin.switch.p4runtime.server.native_ports import NativePorts, Receive, ReceiveNatively, native_ports

STAND_IN = "192.0.2.1"
"""The switch's address if the socket listens on all addresses (TEST-NET-1 of RFC 5737, never a real address)."""

MAX_BATCH = 64
"""Most datagrams that are passed on together: those that have arrived by the time the first is received."""


class UdpPort:
    """One port of an emulated switch, with number 1 if it is the only one. Not thread safe, except `send`."""

    NUMBER = 1
    interface: int | None = None
    """A socket is always up."""

    def __init__(self, host: str, port: int) -> None:
        """Bind the socket. ConfigurationError if that fails; IPv4 only, like the program's parser."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self._socket.setsockopt(socket.SOL_SOCKET, buffer, RECEIVE_BUFFER_REQUEST_BYTES)
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(f"udp port {port} of {host!r} cannot be had: {files.of_port(error)}") from None
        bound, self.port = self._socket.getsockname()
        self.name = f"udp:{host}:{self.port}"
        address = int.from_bytes(socket.inet_aton(STAND_IN if bound == "0.0.0.0" else bound), "big")
        self.end = Endpoint(mac_of(address), address, self.port)
        """The switch's addresses, as the program sees them."""
        self._thread: threading.Thread | None = None
        self._native: NativePorts | None = None
        self._closing = False

    def fileno(self) -> int:
        """The socket's descriptor, for select."""
        return self._socket.fileno()

    def receive(self, flags: int = socket.MSG_DONTWAIT) -> bytes | None:
        """The next datagram that has arrived, as a frame; None without one."""
        while True:
            try:
                payload, (host, port) = self._socket.recvfrom(MAX_DATAGRAM_BYTES, flags)
            except BlockingIOError:
                return None
            except OSError:  # an ICMP error of an earlier datagram
                continue
            address = int.from_bytes(socket.inet_aton(host), "big")
            return Frame(Endpoint(mac_of(address), address, port), self.end, payload).to_bytes()

    def send(self, data: bytes) -> bool:
        """Send the UDP payload of a frame that leaves the switch; False if it is not UDP, or cannot be sent."""
        frame = read_frame(data)
        if frame is None:
            return False
        try:
            self._socket.sendto(
                frame.payload, (socket.inet_ntoa(frame.destination.address.to_bytes(4, "big")), frame.destination.port)
            )
        except OSError:  # the port is closed, or the queue is full: datagrams get lost
            return False
        return True

    def add_to(self, native: Any, number: int) -> None:
        """Have native code take in and send what passes here (native/p4/p4_ports.hpp)."""
        native.add_udp(self._socket.fileno(), number, self.end.address, self.end.port)

    def start(self, receive: Receive, receive_natively: ReceiveNatively | None = None) -> None:
        """Pass frames to `receive([(port, frame), ...])`, in a thread, up to MAX_BATCH at a time.

        With `receive_natively` native code receives them, if the extension is used (native_ports.py).
        """
        native = None if receive_natively is None else native_ports([(self.NUMBER, self)])

        def serve() -> None:
            if native is None or receive_natively is None:
                self._serve(receive)
            else:
                native.serve(receive, receive_natively, lambda lost: None)

        self._native = native
        self._thread = threading.Thread(target=serve, name="fanin udp port", daemon=True)
        self._thread.start()

    def transmit(self, port: int, data: bytes) -> None:
        """Send a frame that leaves through this port; frames for other ports, which do not exist, are dropped."""
        if port == self.NUMBER:
            self.send(data)

    def close(self) -> None:
        """Stop the thread and close the socket."""
        self._closing = True
        if self._thread is not None:
            self._wake()
            self._thread.join()
        self._socket.close()

    def _wake(self) -> None:
        if self._native is not None:
            self._native.stop()
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            host = self._socket.getsockname()[0]
            waker.sendto(b"", ("127.0.0.1" if host == "0.0.0.0" else host, self.port))

    def _serve(self, receive: Receive) -> None:
        while not self._closing:
            batch: list[tuple[int, bytes]] = []
            flags = 0  # wait for the first one only
            while len(batch) < MAX_BATCH and (frame := self.receive(flags)) is not None:
                batch.append((self.NUMBER, frame))
                flags = socket.MSG_DONTWAIT
            receive(batch)
