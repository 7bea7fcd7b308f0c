"""Ethernet frames around packets of ours, and the wiring that all subjects of these tests share.

Worker w sits behind port w + 1 and is, to the twin, address 100 + w; a stranger has a port of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SWITCH_MAC = 0x02FA19000000
SWITCH_ADDRESS = 0x0A4D0001  # 10.77.0.1
SERVICE_PORT = 4920
UDP_OFFSET = 14 + 20 + 8


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a host or the switch: a port with addresses."""

    number: int

    @property
    def port(self) -> int:
        """Port of the switch."""
        return self.number + 1

    @property
    def mac(self) -> int:
        """MAC address of the host there."""
        return 0x021000000000 + self.number

    @property
    def address(self) -> int:
        """IPv4 address of the host, 10.77.1.x."""
        return 0x0A4D0100 + self.number

    @property
    def udp_port(self) -> int:
        """From which its packets come."""
        return 40_000 + self.number

    @property
    def twin_address(self) -> int:
        """The twin's number for this source."""
        return 100 + self.number


def frame_to_switch(source: Place, payload: bytes) -> bytes:
    """A datagram of somebody's to the switch."""
    ethernet = SWITCH_MAC.to_bytes(6, "big") + source.mac.to_bytes(6, "big") + b"\x08\0"
    ipv4 = struct.pack("!BBHHHBBHII", 0x45, 0, 28 + len(payload), 7, 0x4000, 64, 17, 0, source.address, SWITCH_ADDRESS)
    ipv4 = ipv4[:10] + checksum(ipv4).to_bytes(2, "big") + ipv4[12:]
    udp = struct.pack("!HHHH", source.udp_port, SERVICE_PORT, 8 + len(payload), 0)
    return ethernet + ipv4 + udp + payload


def payload_for(destination: Place, frame: bytes) -> bytes:
    """The datagram in a frame of the switch's, whose headers must be such that the host's socket takes it in."""
    assert frame[:14] == destination.mac.to_bytes(6, "big") + SWITCH_MAC.to_bytes(6, "big") + b"\x08\0"
    ipv4, (source, port, length, sum_) = frame[14:34], struct.unpack("!HHHH", frame[34:42])
    assert checksum(ipv4) == 0, "the IPv4 checksum is wrong"
    total, sender, receiver = struct.unpack("!2xH8xII", ipv4)
    assert (sender, receiver) == (SWITCH_ADDRESS, destination.address)
    assert (source, port, sum_) == (SERVICE_PORT, destination.udp_port, 0)
    assert total == 20 + length == len(frame) - 14
    return frame[UDP_OFFSET:]


def checksum(header: bytes) -> int:
    """The internet checksum (RFC 1071); 0 for a header that has the right one in it."""
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
