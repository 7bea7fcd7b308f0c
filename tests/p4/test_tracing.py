"""A packet's way in words: what `fanin p4 trace` prints, and that looking changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from fanin import cli
from fanin.formats.capture import pcap_header, pcap_record
from fanin.switch.p4.tracing import TracedSwitch
from fanin.switch.p4runtime.server.device import Device
from fanin.switch.p4runtime.server.p4info import read_p4info
from fanin.switch.p4runtime.server.server import GrpcServer, Service
from tests.p4.router import CPU_PORT, ENTRIES, P4INFO, document

TERNARY = 33554435

WAY = """\
packet of 2 bytes at port 1: 1f07
parser
  state start: 0 bytes
  state packet: 2 bytes
    x.a: 0 -> 0x1f
    x.b: 0 -> 7
    x is valid: 0 -> 1
ingress, port 1
  table first: nothing()
  condition from_cpu: false
  table exact (x.a=0x1f): hit [x.a=0x1f]: mark(value=9)
    write register r[1] = 9
    x.b: 7 -> 9
  table lpm (x.b=9): miss: nothing()
  table t (x.a=0x1f, x.b=9): hit [x.a=0x10&0xf0, x.b=0..0xff] priority 3: send(port=3)
    standard_metadata.egress_spec: 0 -> 3
egress, port 3
  condition to_cpu: false
leaves port 3 with 2 bytes: 1f09
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A program, its P4Info and entries."""
    (tmp_path / "router.json").write_text(document())
    (tmp_path / "router.txtpb").write_text(P4INFO)
    (tmp_path / "entries.txtpb").write_text(ENTRIES)
    return tmp_path


def traced(folder: Path, packet: str, *more: str) -> int:
    names = [f"--program={folder / 'router.json'}", f"--p4info={folder / 'router.txtpb'}"]
    return cli.run(["p4", "trace", packet, *names, f"--entries={folder / 'entries.txtpb'}", *more])


def test_the_way_of_a_packet_names_states_tables_keys_entries_and_changes(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert traced(files, "1f 07") == 0
    assert capsys.readouterr().out == WAY


def test_every_packet_of_a_capture_is_traced(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = files / "two.pcap"
    capture.write_bytes(pcap_header() + pcap_record(1.0, b"\x1f\x07") + pcap_record(2.0, b"\x2f\x00"))
    assert traced(files, str(capture), "--port=1") == 0
    output = capsys.readouterr().out
    assert output.startswith(WAY)
    assert output.endswith("nothing leaves\n")
    capture.write_bytes(pcap_header() + pcap_record(1.0, b"\x1f\x07")[:-1])
    assert traced(files, str(capture)) == 2
    assert "packet 1 of the capture is cut" in capsys.readouterr().err


def test_a_packet_that_is_cut_short_shows_where_the_parser_stops(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert traced(files, "1f") == 0
    assert "  state packet: stops with PacketTooShort after 0 bytes\n" in capsys.readouterr().out


def test_a_refused_entry_is_named_by_its_number(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "entries.txtpb").write_text(ENTRIES.replace(f"table_id: {TERNARY}", "table_id: 7"))
    assert traced(files, "1f07") == 2
    assert "update 2 is refused: there is no table with id 0x7" in capsys.readouterr().err


def test_a_traced_switch_sends_what_an_untraced_one_does() -> None:
    device = loaded()
    lines: list[str] = []
    watched = Device(CPU_PORT, lambda limit: 0, False, TracedSwitch.from_json)
    commit(watched)
    assert watched.switch is not None
    assert isinstance(watched.switch, TracedSwitch)
    watched.switch.report = lines.extend
    assert device.switch is not None
    packets = [(port, bytes([a, b])) for port in (1, CPU_PORT) for a in (0x1F, 0x2F) for b in range(0, 256, 51)]
    assert watched.switch.process_batch(packets, 0.0) == device.switch.process_batch(packets, 0.0)
    assert sum(line.startswith("packet of") for line in lines) == len(packets)
    cells = [each.switch.program.registers["r"].cells for each in (watched, device) if each.switch is not None]
    assert list(cells[0]) == list(cells[1])


def commit(device: Device) -> None:
    config = p4runtime_pb2.ForwardingPipelineConfig(p4info=read_p4info(P4INFO), p4_device_config=document().encode())
    device.set_pipeline(p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)
    for update in text_format.Parse(ENTRIES, p4runtime_pb2.WriteRequest()).updates:
        device.write(update)


def loaded() -> Device:
    device = Device(CPU_PORT, lambda limit: 0)
    commit(device)
    return device


def test_a_devices_entries_and_registers_are_read_and_left_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Over gRPC, as another client than its controller."""
    device = loaded()
    assert device.switch is not None
    device.switch.program.registers["r"].cells[1] = 0x55
    server = GrpcServer(Service(device, 7, lambda port, data: None), "127.0.0.1", 0)
    try:
        address = f"127.0.0.1:{server.port}"
        assert cli.run(["p4", "trace", "1f07", f"--p4runtime={address}", "--device-id=7"]) == 0
        assert capsys.readouterr().out == WAY
        assert device.switch.program.registers["r"].cells[1] == 0x55
        assert device.switch.tally.packets_in == 0
        assert cli.run(["p4", "trace", "1f07", f"--p4runtime={address}"]) == 1
        assert "this server has device 7, not 0" in capsys.readouterr().err
    finally:
        server.close()


def test_no_device_is_said_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("nothing is traced")

    monkeypatch.setattr("fanin.switch.p4runtime.standalone.load_config", refused)
    assert cli.run(["p4", "trace", "00", "--p4runtime=127.0.0.1:1"]) == 1
    assert "no P4Runtime device answers at 127.0.0.1:1" in capsys.readouterr().err
