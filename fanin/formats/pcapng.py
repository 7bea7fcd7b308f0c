"""Frames of a pcapng file, which Wireshark and newer tools write; `read_capture` reads pcap files as well.

Source: draft-ietf-opsawg-pcapng, sections 3 and 4. Of the blocks, those of sections, interfaces and packets are read,
and all others are passed over; a file may have several sections, each in a byte order of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fanin.errors import ConfigurationError
from fanin.formats.capture import PCAP_LINK_ETHERNET, read_pcap

SECTION, INTERFACE, PACKET, SIMPLE_PACKET, ENHANCED_PACKET = 0x0A0D0D0A, 1, 2, 3, 6
BYTE_ORDER_MAGIC = 0x1A2B3C4D
SECTION_MAGIC = SECTION.to_bytes(4, "big")
"""First bytes of a pcapng file, in either byte order."""
BLOCK_BYTES = 12
"""Type and length at a block's start, and the length again at its end."""


def read_capture(data: bytes) -> list[bytes]:
    """The frames of a capture, pcap or pcapng. ConfigurationError for another file, another link, or a cut packet."""
    return read_pcapng(data) if data[:4] == SECTION_MAGIC else read_pcap(data)


def read_pcapng(data: bytes) -> list[bytes]:
    """The frames of all sections, in the file's order. ConfigurationError as `read_capture`."""
    frames: list[bytes] = []
    links: list[int] = []
    snaps: list[int] = []
    for kind, order, body in _blocks(data):
        if kind == SECTION:
            links, snaps = [], []
        elif kind == INTERFACE:
            link, _, snap = _unpacked(f"{order}HHI", body)
            links.append(link)
            snaps.append(snap)
        elif kind in (ENHANCED_PACKET, PACKET):
            form = f"{order}IIIII" if kind == ENHANCED_PACKET else f"{order}HHIIII"
            *_, kept, whole = _unpacked(form, body)
            interface = _unpacked(f"{order}{'I' if kind == ENHANCED_PACKET else 'H'}", body)[0]
            frames.append(_frame(body, kept, whole, links, interface, len(frames) + 1))
        elif kind == SIMPLE_PACKET:
            (whole,) = _unpacked(f"{order}I", body)
            kept = min(whole, snaps[0] or whole) if snaps else whole
            frames.append(_frame(body, kept, whole, links, 0, len(frames) + 1, head=4))
    return frames


def _blocks(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Type, byte order and body of each block."""
    at, order = 0, ""
    while at + BLOCK_BYTES <= len(data):
        if data[at : at + 4] == SECTION_MAGIC:
            magic = data[at + 8 : at + 12]
            order = next((each for each in "<>" if struct.pack(f"{each}I", BYTE_ORDER_MAGIC) == magic), "")
        if not order:
            raise ConfigurationError("the capture is a pcapng file without a byte order. Remedy: make it anew")
        kind, length = struct.unpack_from(f"{order}II", data, at)
        if length < BLOCK_BYTES or length % 4 or at + length > len(data):
            raise ConfigurationError("the capture ends within a block. Remedy: let the program that writes it end")
        yield kind, order, data[at + 8 : at + length - 4]
        at += length
    if at != len(data):
        raise ConfigurationError("the capture ends within a block. Remedy: let the program that writes it end")


def _unpacked(form: str, body: bytes) -> tuple[int, ...]:
    if len(body) < struct.calcsize(form):
        raise ConfigurationError("a block of the capture is too short to be one. Remedy: make the capture anew")
    return struct.unpack_from(form, body)


def _frame(
    body: bytes, kept: int, whole: int, links: list[int], interface: int, number: int, *, head: int = 20
) -> bytes:
    if interface >= len(links):
        raise ConfigurationError(
            f"packet {number} of the capture came by an interface that it does not describe. "
            "Remedy: capture it again, or name a whole file"
        )
    if links[interface] != PCAP_LINK_ETHERNET:
        raise ConfigurationError(
            f"the capture is of link type {links[interface]}, and only Ethernet (1) is read. "
            "Remedy: capture on an Ethernet interface"
        )
    if kept != whole or head + kept > len(body):
        raise ConfigurationError(f"packet {number} of the capture is cut. Remedy: tcpdump -s 0")
    return body[head : head + kept]
