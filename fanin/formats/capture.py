"""Packet capture files, to the byte: the pcap container and Ethernet/IP/UDP frames around fanin's datagrams.

Captures are made from inside a transport, which never sees the real headers; these are made up around the two
addresses, with correct lengths and checksums, so that Wireshark, tcpdump and scapy read them without complaint.
Source of the container: draft-ietf-opsawg-pcap; of the headers: IEEE 802.3, RFC 791, RFC 8200, RFC 768.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from fanin.errors import ConfigurationError
from fanin.formats.frames import ETHERTYPE_IPV4, PROTOCOL_UDP, internet_checksum

PCAP_MAGIC_MICROSECONDS = 0xA1B2C3D4
PCAP_MAGIC_NANOSECONDS = 0xA1B23C4D
PCAP_LINK_ETHERNET = 1
PCAP_HEADER_BYTES, PCAP_RECORD_BYTES = 24, 16
SNAP_BYTES = 262_144
"""tcpdump's own default: no datagram is cut."""

ETHERTYPE_IPV6 = 0x86DD
HOP_LIMIT = 64
UDP_HEADER_BYTES = 8

_MAC_PREFIX = b"\x02\xfa\x19"  # the 2 says: locally administered


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """One end of a captured datagram. `ip` is a literal IPv4 or IPv6 address; both ends must be of one family."""

    ip: str
    port: int


def pcap_header() -> bytes:
    """Head of a capture file: version 2.4, microseconds, Ethernet, big-endian."""
    return struct.pack("!IHHiIII", PCAP_MAGIC_MICROSECONDS, 2, 4, 0, 0, SNAP_BYTES, PCAP_LINK_ETHERNET)


def pcap_record(time_s: float, frame: bytes) -> bytes:
    """One frame at `time_s` seconds since 1970, to the microsecond."""
    seconds, microseconds = divmod(round(time_s * 1e6), 1_000_000)
    return struct.pack("!IIII", seconds, microseconds, len(frame), len(frame)) + frame


def read_pcap(data: bytes) -> list[bytes]:
    """The frames of a capture, of either byte order, in microseconds or nanoseconds. ConfigurationError for another."""
    magics = {PCAP_MAGIC_MICROSECONDS.to_bytes(4, "big"): "!", PCAP_MAGIC_NANOSECONDS.to_bytes(4, "big"): "!"}
    magics |= {magic[::-1]: "<" for magic in list(magics)}
    order = magics.get(data[:4])
    if order is None or len(data) < PCAP_HEADER_BYTES:
        raise ConfigurationError("this is neither hexadecimal nor a pcap file. Remedy: tcpdump -w makes such files")
    (link,) = struct.unpack_from(f"{order}I", data, PCAP_HEADER_BYTES - 4)
    if link & 0xFFFF != PCAP_LINK_ETHERNET:
        raise ConfigurationError(
            f"the capture is of link type {link & 0xFFFF}, and only Ethernet (1) is read. "
            "Remedy: capture on an Ethernet interface"
        )
    frames: list[bytes] = []
    at = PCAP_HEADER_BYTES
    while at + PCAP_RECORD_BYTES <= len(data):
        kept, whole = struct.unpack_from(f"{order}II", data, at + 8)
        at += PCAP_RECORD_BYTES
        if kept != whole or at + kept > len(data):
            raise ConfigurationError(f"packet {len(frames) + 1} of the capture is cut. Remedy: tcpdump -s 0")
        frames.append(data[at : at + kept])
        at += kept
    return frames


def ethernet_frame(payload: bytes, source: SocketAddress, destination: SocketAddress) -> bytes:
    """A UDP datagram in an Ethernet frame. struct.error for a payload longer than 65,507 bytes."""
    source_ip, destination_ip = ipaddress.ip_address(source.ip), ipaddress.ip_address(destination.ip)
    assert source_ip.version == destination_ip.version, f"{source_ip} and {destination_ip} are of two families"
    udp_bytes = UDP_HEADER_BYTES + len(payload)
    pseudo = source_ip.packed + destination_ip.packed + struct.pack("!II", udp_bytes, PROTOCOL_UDP)
    ports = struct.pack("!HHH", source.port, destination.port, udp_bytes)
    checksum = internet_checksum(pseudo + ports + b"\0\0" + payload) or 0xFFFF  # RFC 768: 0 would say "none"
    udp = ports + struct.pack("!H", checksum) + payload
    macs = _mac(destination_ip.packed) + _mac(source_ip.packed)
    if source_ip.version == 6:
        header = struct.pack("!IHBB", 6 << 28, udp_bytes, PROTOCOL_UDP, HOP_LIMIT)
        return macs + struct.pack("!H", ETHERTYPE_IPV6) + header + source_ip.packed + destination_ip.packed + udp
    addresses = source_ip.packed + destination_ip.packed
    head = struct.pack("!BBHHHBB", 0x45, 0, 20 + udp_bytes, 0, 0, HOP_LIMIT, PROTOCOL_UDP)
    header = head + struct.pack("!H", internet_checksum(head + b"\0\0" + addresses)) + addresses
    return macs + struct.pack("!H", ETHERTYPE_IPV4) + header + udp


def _mac(packed_ip: bytes) -> bytes:
    return _MAC_PREFIX + packed_ip[-3:]
