"""A network interface as a port of an emulated switch: whole Ethernet frames, over a packet socket (packet(7)).

Frames that this machine itself sends on the interface are not taken in, only those from its other end. A VLAN tag that
the kernel has taken out of a frame is put back. A frame whose checksums the sender has left to a network card arrives
unfinished, as in any packet socket: `ethtool -K ... tx off` at the sender.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

from fanin.errors import ConfigurationError

ALL_FRAMES = 0x0003  # ETH_P_ALL
SOL_PACKET = 263
ADD_MEMBERSHIP, AUXILIARY_DATA, IGNORE_OUTGOING = 1, 8, 23
PROMISCUOUS = 1
MEMBERSHIP = struct.Struct("iHH8s")
AUXILIARY = struct.Struct("=IIIHHHH")
VLAN_VALID, TPID_VALID = 1 << 4, 1 << 6
VLAN_TPID = 0x8100
MACS_BYTES = 12
MAX_FRAME_BYTES = (1 << 16) + 64
MAX_NAME_BYTES = 15


class RawPort:
    """One interface. Not thread safe, but for `send` beside `receive`."""

    def __init__(self, interface: str) -> None:
        """ConfigurationError for an interface that is not there, or where packet sockets are not allowed."""
        self.name = interface
        if not interface or len(interface.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES or "\0" in interface:
            raise ConfigurationError(f"port {interface!r}: no network interface has such a name")
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # no frame of any other interface
        except OSError as error:
            raise ConfigurationError(
                f"port {interface}: packet sockets cannot be had: {error.strerror}. Remedy: run as root, or with "
                "CAP_NET_RAW"
            ) from None
        try:
            number = socket.if_nametoindex(interface)
            self.interface: int | None = number
            self._socket.setsockopt(SOL_PACKET, AUXILIARY_DATA, 1)
            self._socket.setsockopt(
                SOL_PACKET, ADD_MEMBERSHIP, MEMBERSHIP.pack(number, PROMISCUOUS, 0, b"")
            )  # as a switch: frames to any address
            with contextlib.suppress(OSError):  # before Linux 4.20: `receive` leaves them out
                self._socket.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
            self._socket.bind((interface, ALL_FRAMES))
        except OSError as error:
            self._socket.close()
            said = error.strerror or "there is no such interface"
            raise ConfigurationError(
                f"port {interface}: {said}. Remedy: `ip link` lists the interfaces that are here"
            ) from None
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """The socket's descriptor, for select."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """A frame that has arrived; None when there is none."""
        while True:
            try:
                frame, ancillary, _, address = self._socket.recvmsg(MAX_FRAME_BYTES, socket.CMSG_SPACE(AUXILIARY.size))
            except OSError:  # nothing there; or the interface went down, which is said once
                return None
            if address[2] != socket.PACKET_OUTGOING:
                return _tagged(frame, ancillary)

    def send(self, data: bytes) -> bool:
        """Send a frame; whether it could be: it is longer than the MTU allows, or the interface is down or full."""
        try:
            self._socket.send(data)
        except OSError:
            return False
        return True

    def add_to(self, native: Any, number: int) -> None:
        """Have native code take in and send what passes here (native/p4/p4_ports.hpp)."""
        native.add_raw(self._socket.fileno(), number)

    def close(self) -> None:
        """Give up the socket."""
        self._socket.close()


def _tagged(frame: bytes, ancillary: list[tuple[int, int, bytes]]) -> bytes:
    for level, kind, data in ancillary:
        if level == SOL_PACKET and kind == AUXILIARY_DATA and len(data) >= AUXILIARY.size:
            status, _, _, _, _, tag, protocol = AUXILIARY.unpack_from(data)
            if status & VLAN_VALID:
                return (
                    frame[:MACS_BYTES]
                    + struct.pack("!HH", protocol if status & TPID_VALID else VLAN_TPID, tag)
                    + frame[MACS_BYTES:]
                )
    return frame
