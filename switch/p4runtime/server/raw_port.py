"""A network interface as a port of an emulated switch: whole Ethernet frames, over a packet socket (packet(7)).

Only frames from the link's other end are received, not those that this machine sends on the interface. A VLAN tag that
the kernel has removed from a frame is put back. If the sender leaves checksums to its network card, frames may arrive
without valid checksums, as on any packet socket; `ethtool -K ... tx off` at the sender prevents that.
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
    """A port on one interface. Not thread safe, except that `send` and `receive` may run at the same time."""

    def __init__(self, interface: str) -> None:
        """Open the interface. ConfigurationError if it does not exist, or packet sockets are not allowed."""
        self.name = interface
        if not interface or len(interface.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES or "\0" in interface:
            raise ConfigurationError(
                f"port {interface!r}: no network interface has such a name. "
                "Remedy: name an interface that `ip link` shows"
            )
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
            with contextlib.suppress(OSError):  # before Linux 4.20 `receive` has to skip outgoing frames
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
        """The next frame that has arrived; None without one."""
        while True:
            try:
                frame, ancillary, _, address = self._socket.recvmsg(MAX_FRAME_BYTES, socket.CMSG_SPACE(AUXILIARY.size))
            except OSError:  # no frame; or the interface went down, which one call reports
                return None
            if address[2] != socket.PACKET_OUTGOING:
                return _tagged(frame, ancillary)

    def send(self, data: bytes) -> bool:
        """Send a frame; False if it is longer than the MTU, or the interface is down or its queue full."""
        try:
            self._socket.send(data)
        except OSError:
            return False
        return True

    def add_to(self, native: Any, number: int) -> None:
        """Register the socket with native ports, which then receive and send for it (native/p4/p4_ports.hpp)."""
        native.add_raw(self._socket.fileno(), number)

    def close(self) -> None:
        """Close the packet socket."""
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
