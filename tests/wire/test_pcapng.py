"""Captures in pcapng: blocks in either byte order, several sections, and what is refused."""

from __future__ import annotations

import random
import struct

import pytest

from fanin.errors import ConfigurationError
from fanin.formats.capture import pcap_header, pcap_record
from fanin.formats.pcapng import read_capture

FRAMES = [bytes(range(length)) for length in (14, 15, 60, 61)]


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(f"{order}I", 12 + len(body))
    return struct.pack(f"{order}I", kind) + length + body + length


def section(order: str, *, link: int = 1, snap: int = 0) -> bytes:
    head = struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)
    return block(order, 0x0A0D0D0A, head) + block(order, 1, struct.pack(f"{order}HHI", link, 0, snap))


def enhanced(order: str, frame: bytes, *, interface: int = 0, whole: int | None = None) -> bytes:
    length = len(frame) if whole is None else whole
    return block(order, 6, struct.pack(f"{order}IIIII", interface, 0, 0, len(frame), length) + frame)


def simple(order: str, frame: bytes) -> bytes:
    return block(order, 3, struct.pack(f"{order}I", len(frame)) + frame)


def obsolete(order: str, frame: bytes) -> bytes:
    return block(order, 2, struct.pack(f"{order}HHIIII", 0, 0, 0, 0, len(frame), len(frame)) + frame)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("written", [enhanced, simple, obsolete])
def test_frames_of_every_kind_of_block_come_in_order(order: str, written) -> None:  # type: ignore[no-untyped-def]
    statistics = block(order, 5, bytes(12))
    data = section(order) + b"".join(written(order, frame) + statistics for frame in FRAMES)
    assert read_capture(data) == FRAMES


def test_each_section_has_a_byte_order_and_interfaces_of_its_own() -> None:
    data = section("<") + enhanced("<", FRAMES[0]) + section(">") + enhanced(">", FRAMES[1])
    assert read_capture(data) == FRAMES[:2]


def test_a_pcap_file_is_read_as_before() -> None:
    assert read_capture(pcap_header() + b"".join(pcap_record(1.0, each) for each in FRAMES)) == FRAMES


@pytest.mark.parametrize(
    ("says", "data"),
    [
        ("link type 113", section("<", link=113) + enhanced("<", FRAMES[0])),
        ("packet 1 of the capture is cut", section("<") + enhanced("<", FRAMES[0], whole=99)),
        ("packet 1 of the capture is cut", section("<", snap=10) + simple("<", FRAMES[0])),
        ("does not describe", section("<") + enhanced("<", FRAMES[0], interface=1)),
        ("ends within a block", section("<") + enhanced("<", FRAMES[0])[:-1]),
        ("without a byte order", block("<", 0x0A0D0D0A, bytes(16))),
        ("too short", section("<") + block("<", 6, bytes(4))),
        ("neither", b"\0" * 40),
    ],
)
def test_what_cannot_be_read_whole_is_refused_by_name(says: str, data: bytes) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_capture(data)


def test_any_damage_is_refused_or_harmless() -> None:
    draw = random.Random(3)
    whole = section("<") + b"".join(enhanced("<", frame) + simple("<", frame) for frame in FRAMES)
    for _ in range(2000):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            read_capture(bytes(changed[: draw.randint(1, len(changed))]))
        except ConfigurationError:
            continue
