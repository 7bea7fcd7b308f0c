"""Captures: the frames are correct to the byte, and other people's tools read them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.formats.capture import SocketAddress, ethernet_frame, pcap_header
from fanin.formats.frames import internet_checksum
from fanin.host.transports import PcapTransport, PcapWriter
from fanin.transports.transport import SWITCH
from tests.support.disk import room_for
from tests.transports.packets import HAND_BUILT
from tests.transports.rigs import memory_rig, receive_exactly

HERE, THERE = SocketAddress("10.0.0.2", 40_001), SocketAddress("10.0.0.1", 4711)
START_S = 1_700_000_000.000001


@given(st.binary(max_size=100))
def test_the_checksum_is_rfc_1071s(data: bytes) -> None:
    padded = data + b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(padded[at : at + 2], "big") for at in range(0, len(padded), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    assert internet_checksum(data) == 0xFFFF - total


def _capture(path: Path, name: str = "first") -> list[bytes]:
    """Record one packet of every kind, alternately sent and received, one second apart."""
    rig = memory_rig()
    clock = iter(START_S + step for step in range(100))
    worker = PcapTransport(rig.worker(), PcapWriter(str(path)), HERE, THERE, clock.__next__)
    recorded = []
    for index, packet in enumerate(HAND_BUILT.values()):
        data = packet.to_bytes()
        if index % 2:
            rig.switch.send([(data, 0)])
            assert receive_exactly(worker, 1) == [(data, SWITCH)]
        else:
            worker.send([(data, SWITCH)])
            assert receive_exactly(rig.switch, 1)[0][0] == data
        recorded.append(data)
    worker.close()
    rig.close()
    return recorded


def test_scapy_finds_every_packet_in_the_capture_with_its_time_and_addresses(tmp_path: Path) -> None:
    pytest.importorskip("scapy", reason="the scapy layer is an extra: pip install fanin[scapy]")
    from scapy.layers.inet import IP, UDP
    from scapy.utils import rdpcap

    from fanin.scapy_layer import Fanin

    recorded = _capture(tmp_path / "capture.pcap")
    frames = rdpcap(str(tmp_path / "capture.pcap"))
    assert len(frames) == len(recorded)
    for index, (frame, data) in enumerate(zip(frames, recorded, strict=True)):
        source, destination = (THERE, HERE) if index % 2 else (HERE, THERE)
        assert (frame[IP].src, frame[UDP].sport) == (source.ip, source.port)
        assert (frame[IP].dst, frame[UDP].dport) == (destination.ip, destination.port)
        assert bytes(frame[UDP].payload) == data
        assert bytes(Fanin(bytes(frame[UDP].payload))) == data
        assert abs(float(frame.time) - (START_S + index)) < 1e-6


@pytest.mark.parametrize(("here", "there"), [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")])
@pytest.mark.parametrize("length", [0, 1, 100, 65_507])
def test_headers_are_as_scapy_builds_them(here: str, there: str, length: int) -> None:
    pytest.importorskip("scapy", reason="the scapy layer is an extra: pip install fanin[scapy]")
    from scapy.layers.inet import IP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.packet import Raw

    payload = bytes(index % 251 for index in range(length))
    frame = ethernet_frame(payload, SocketAddress(here, 40_001), SocketAddress(there, 4711))
    udp = UDP(sport=40_001, dport=4711) / Raw(payload)
    packet = IP(src=here, dst=there, id=0) / udp if "." in here else IPv6(src=here, dst=there) / udp
    assert frame[14:] == bytes(packet)
    assert frame[12:14] == (b"\x08\x00" if "." in here else b"\x86\xdd")


def test_a_checksum_that_comes_out_zero_is_sent_as_ones() -> None:
    """RFC 768: a zero would say that there is none."""
    for low in range(0x10000):
        frame = ethernet_frame(low.to_bytes(2, "big"), HERE, THERE)
        assert frame[40:42] != b"\0\0"
        if frame[40:42] == b"\xff\xff":
            return
    pytest.fail("no payload of two bytes has that checksum")


def test_a_second_run_is_appended_to_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    _capture(path)
    once = path.read_bytes()
    _capture(path)
    assert path.read_bytes() == once + once[len(pcap_header()) :]


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.tex"
    path.write_text("years of work")
    with pytest.raises(ConfigurationError, match="no capture"):
        PcapWriter(str(path))
    assert path.read_text() == "years of work"


def test_a_disk_that_fills_ends_the_capture_with_a_warning_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = memory_rig()
    writer = PcapWriter(str(tmp_path / "capture.pcap"))
    worker = PcapTransport(rig.worker(), writer, HERE, THERE)
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(writer, "_file", full)
        for _ in range(2):
            worker.send([(b"junk", SWITCH)])
        monkeypatch.undo()
    assert len(receive_exactly(rig.switch, 2)) == 2
    worker.close()
    rig.close()
    (warning,) = caplog.messages
    assert "capture.pcap ends here: No space left on device" in warning


def test_a_capture_ends_with_a_whole_record_where_the_disk_took_a_part_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    writer = PcapWriter(str(path))
    writer.write(START_S, HERE, THERE, [b"first"])
    once = path.read_bytes()
    with room_for(len(once) + 10), pytest.raises(OSError, match=r"File too large: '.*capture\.pcap'"):
        writer.write(START_S, HERE, THERE, [b"second"])
    writer.close()
    assert path.read_bytes() == once


def test_a_file_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No space left on device"):
        PcapWriter("/dev/full")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        PcapWriter(str(tmp_path / "no" / "such" / "folder.pcap"))


def test_the_addresses_of_a_connected_socket_fit_a_frame() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        assert ethernet_frame(b"x", SocketAddress(*opened.getsockname()), THERE)
