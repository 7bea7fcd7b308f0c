"""Ethernet frames around our datagrams, for switches whose pipeline sees the wire: IPv4 without options, and UDP."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

ETHERNET, IPV4, UDP = struct.Struct("!6s6sH"), struct.Struct("!BBHHHBBHII"), struct.Struct("!HHHH")
HEAD_BYTES = ETHERNET.size + IPV4.size + UDP.size
"""Bytes in front of the payload."""
ETHERTYPE_IPV4 = 0x0800
PROTOCOL_UDP = 17
DO_NOT_FRAGMENT = 0x4000
TTL = 64


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a UDP conversation."""

    mac: bytes
    address: int
    """An IPv4 address of 32 bits."""
    port: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A UDP datagram in its frame."""

    source: Endpoint
    destination: Endpoint
    payload: bytes

    def answered(self, payload: bytes) -> Frame:
        """Return a frame with that payload back to the sender of this one."""
        return replace(self, source=self.destination, destination=self.source, payload=payload)

    def to_bytes(self) -> bytes:
        """The frame. UDP has no checksum (RFC 768 allows 0 over IPv4), as in what a pipeline sends."""
        length = UDP.size + len(self.payload)
        head = IPV4.pack(
            0x45,
            0,
            IPV4.size + length,
            0,
            DO_NOT_FRAGMENT,
            TTL,
            PROTOCOL_UDP,
            0,
            self.source.address,
            self.destination.address,
        )
        return (
            ETHERNET.pack(self.destination.mac, self.source.mac, ETHERTYPE_IPV4)
            + head[:10]
            + struct.pack("!H", internet_checksum(head))
            + head[12:]
            + UDP.pack(self.source.port, self.destination.port, length, 0)
            + self.payload
        )


def read_frame(data: bytes) -> Frame | None:
    """A frame, or None for bytes that are no whole UDP datagram over IPv4 without options."""
    if len(data) < HEAD_BYTES:
        return None
    to_mac, from_mac, ethertype = ETHERNET.unpack_from(data)
    first, _, total, _, fragment, _, protocol, _, source, destination = IPV4.unpack_from(data, ETHERNET.size)
    if ethertype != ETHERTYPE_IPV4 or first != 0x45 or fragment & 0x3FFF or protocol != PROTOCOL_UDP:
        return None
    source_port, destination_port, length, _ = UDP.unpack_from(data, ETHERNET.size + IPV4.size)
    end = ETHERNET.size + IPV4.size + length
    if length < UDP.size or end > len(data) or IPV4.size + length > total:
        return None
    return Frame(
        Endpoint(from_mac, source, source_port), Endpoint(to_mac, destination, destination_port), data[HEAD_BYTES:end]
    )


def mac_of(address: int) -> bytes:
    """A locally administered MAC address for an IPv4 address, where nobody has given one."""
    return b"\x02\x00" + address.to_bytes(4, "big")


def internet_checksum(data: bytes) -> int:
    """RFC 1071: the complement of the ones' complement sum of 16-bit words; of odd lengths as if a zero followed.

    Since 2**16 is 1 modulo 65,535, the sum is the data as one big number modulo 65,535.
    """
    total = int.from_bytes(data + b"\0" * (len(data) % 2), "big")
    folded = total % 0xFFFF
    return 0xFFFF - (0xFFFF if folded == 0 and total else folded)
