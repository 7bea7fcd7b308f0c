"""Traces: one line per datagram, legal or not, that names what a person looks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.formats.trace import describe
from fanin.host.transports import TracingTransport
from fanin.protocol.wire import Packet
from fanin.transports.transport import SWITCH
from tests.transports.packets import ANY_PACKET, HAND_BUILT
from tests.transports.rigs import memory_rig, receive_exactly


def test_every_datagram_leaves_one_line_with_time_direction_and_rank(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    rig = memory_rig()
    clock = iter([1.0, 2.5])
    worker = TracingTransport(rig.worker(), str(path), clock.__next__, "rank=3 flow=0")
    worker.send([(HAND_BUILT["hello"].to_bytes(), SWITCH), (HAND_BUILT["pass"].to_bytes(), SWITCH)])
    rig.switch.send([(HAND_BUILT["notice"].to_bytes(), 0)])
    receive_exactly(worker, 1)
    assert worker.receive(0.0) == []
    worker.close()
    rig.close()
    assert path.read_text().splitlines() == [
        "rank=3 flow=0 1.000000 > HELLO job=258 worker=3 generation=0xa1b2c3d4 slot=1 base=0 codes=0 words=2 bytes=44",
        "rank=3 flow=0 1.000000 > CONTRIBUTION job=258 worker=1 generation=0xa1b2c3d4 slot=9 base=1 signature=0x0"
        " flags=PASS codes=0 words=0 bytes=36",
        "rank=3 flow=0 2.500000 < NOTICE job=258 worker=2 generation=0xa1b2c3d4 slot=0 base=0 reason=WORKER_LOST"
        " codes=0 words=2 bytes=44",
    ]


def test_standard_error_is_a_trace_too(capsys: pytest.CaptureFixture[str]) -> None:
    rig = memory_rig()
    worker = TracingTransport(rig.worker(), "-", lambda: 0.25)
    worker.send([(b"junk", SWITCH)])
    worker.close()
    rig.close()
    assert capsys.readouterr().err == "0.250000 > ILLEGAL reason=TOO_SHORT bytes=4 head=6a756e6b\n"


def test_a_full_disk_ends_the_trace_with_a_warning_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    rig = memory_rig()
    worker = TracingTransport(rig.worker(), "/dev/full")
    for _ in range(2):
        worker.send([(b"junk", SWITCH)])
    assert [data for data, _ in receive_exactly(rig.switch, 2)] == [b"junk", b"junk"]
    worker.close()
    rig.close()
    (warning,) = caplog.messages
    assert "/dev/full ends here: No space left on device" in warning


@pytest.mark.parametrize("name", [".", "a\0trace"], ids=["a folder", "no path"])
def test_a_file_that_cannot_be_written_is_a_configuration_error(tmp_path: Path, name: str) -> None:
    rig = memory_rig()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        TracingTransport(rig.worker(), str(tmp_path / name))
    rig.close()


@pytest.mark.parametrize("name", HAND_BUILT)
def test_a_legal_packet_is_described_by_kind_slot_and_worker(name: str) -> None:
    packet = HAND_BUILT[name]
    line = describe(packet.to_bytes())
    assert line.startswith(packet.kind.name)
    assert f" worker={packet.worker} " in line
    assert f" slot={packet.slot} " in line


@given(st.one_of(st.binary(max_size=60), ANY_PACKET.map(Packet.to_bytes)))
def test_any_bytes_are_described_in_one_line(data: bytes) -> None:
    line = describe(data)
    assert "\n" not in line
    assert f"bytes={len(data)}" in line
