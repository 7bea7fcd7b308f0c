"""Types that p4runtime_translation makes strings: names in P4Runtime, numbers in packets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from fanin.errors import ConfigurationError
from fanin.switch.p4runtime.server.device import Actions, Device
from fanin.switch.p4runtime.server.p4info import read_p4info
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.translated import Names, UnknownNameError, read_names
from tests.p4.router import CPU_PORT, P4INFO, document

EXACT, TERNARY, MARK, SEND = 33554433, 33554435, 16777220, 16777217
COLOUR, PORT = "Colour", "Port"
CHANGES = {
    'name: "x.a" bitwidth: 8 match_type': 'name: "x.a" type_name { name: "Colour" } match_type',
    'name: "value" bitwidth: 8': 'name: "value" type_name { name: "Colour" }',
    'name: "port" bitwidth: 9': 'name: "port" type_name { name: "Port" }',
}
TYPES = """
type_info {
  new_types { key: "Colour" value { translated_type { uri: "colours" sdn_string { } } } }
  new_types { key: "Port" value { translated_type { uri: "ports" sdn_string { } } } }
}
"""


def translated() -> str:
    """The router's P4Info with x.a, what `mark` writes, and ports as strings."""
    info = P4INFO
    for plain, named in CHANGES.items():
        assert plain in info
        info = info.replace(plain, named)
    return info + TYPES


def loaded(names: dict[str, dict[str, int]]) -> Device:
    made = Device(CPU_PORT, lambda limit: 0)
    made.names = names
    config = p4runtime_pb2.ForwardingPipelineConfig(
        p4info=read_p4info(translated()), p4_device_config=document().encode()
    )
    made.set_pipeline(Actions.VERIFY_AND_COMMIT, config)
    return made


@pytest.fixture
def device() -> Device:
    return loaded({"colours": {"red": 200}})


def entity(text: str) -> Any:
    return text_format.Parse(text, p4runtime_pb2.Entity())


def write(device: Device, kind: str, text: str) -> Code:
    try:
        device.write(p4runtime_pb2.Update(type=p4runtime_pb2.Update.Type.Value(kind), entity=entity(text)))
    except StatusError as error:
        return error.code
    return Code.OK


def key(colour: str) -> str:
    return f'match {{ field_id: 1 exact {{ value: "{colour}" }} }}'


def marks(colour: str, value: str) -> str:
    action = f'action {{ action {{ action_id: {MARK} params {{ param_id: 1 value: "{value}" }} }} }}'
    return f"table_entry {{ table_id: {EXACT} {key(colour)} {action} }}"


def test_what_is_written_with_names_does_what_their_numbers_say_and_is_read_with_names(device: Device) -> None:
    assert [write(device, "INSERT", each) for each in (marks("red", "blue"), marks("blue", "7"))] == [Code.OK] * 2
    port = 'match { field_id: 2 range { low: "\\x00" high: "\\x64" } }'
    send = f'action {{ action {{ action_id: {SEND} params {{ param_id: 1 value: "5" }} }} }}'
    assert write(device, "INSERT", f"table_entry {{ table_id: {TERNARY} priority: 1 {port} {send} }}") is Code.OK
    assert device.switch is not None
    blue = 1
    assert device.switch.process(1, bytes((200, 0)), 0.0) == [(5, bytes((200, blue)))]
    assert device.switch.process(1, bytes((blue, 0)), 0.0) == [(5, bytes((blue, 7)))]
    found = list(device.read(entity(f"table_entry {{ table_id: {EXACT} }}")))
    assert found == [entity(marks("red", "blue")), entity(marks("blue", "7"))]
    assert list(device.read(entity(f"table_entry {{ table_id: {EXACT} {key('red')} }}"))) == found[:1]


def test_only_an_insertion_makes_a_name_known(device: Device) -> None:
    assert not list(device.read(entity(f"table_entry {{ table_id: {EXACT} {key('green')} }}")))
    assert [write(device, kind, marks("green", "red")) for kind in ("MODIFY", "DELETE")] == [Code.NOT_FOUND] * 2
    assert write(device, "INSERT", marks("green", "red")) is Code.OK
    assert write(device, "INSERT", marks("green", "red")) is Code.ALREADY_EXISTS
    assert write(device, "DELETE", marks("green", "red")) is Code.OK


def test_packets_come_from_and_go_to_ports_with_names() -> None:
    device = loaded({PORT: {"uplink": 3}})
    message = text_format.Parse(
        'payload: "\\x09\\x00" metadata { metadata_id: 1 value: "uplink" }', p4runtime_pb2.PacketOut()
    )
    assert [port for port, _ in device.packet_out(message, 0.0)] == [3]
    message.metadata[0].value = b"nowhere"
    with pytest.raises(UnknownNameError, match="'nowhere'"):
        device.packet_out(message, 0.0)
    for number, name in ((3, b"uplink"), (4, b"4")):
        found = device.packet_in(bytes((number >> 1, (number & 1) << 7)) + b"\x09\x00")
        assert [each.value for each in found.metadata] == [name, b"\0"]


def test_names_have_neither_masks_nor_order(device: Device) -> None:
    masked = 'match { field_id: 1 ternary { value: "red" mask: "a" } }'
    assert write(device, "INSERT", f"table_entry {{ table_id: {TERNARY} priority: 1 {masked} }}") is Code.UNIMPLEMENTED


def test_no_two_names_share_a_number_and_every_number_has_one_name() -> None:
    names = Names(COLOUR, 3, {"red": 1, "zero": 0})
    numbers = {name: names.number(name.encode(), "x", new=True) for name in ("red", "5", "blue", "1", "9", "07")}
    assert numbers == {"red": 1, "5": 5, "blue": 2, "1": 3, "9": 4, "07": 6}
    assert all(names.name(number) == name.encode() for name, number in numbers.items())
    assert names.name(7) == b"7"
    assert names.number(b"7", "x", new=False) == 7
    assert names.number(b"last", "x", new=True) == 7
    with pytest.raises(StatusError, match="room for no more") as raised:
        names.number(b"beyond", "x", new=True)
    assert raised.value.code is Code.RESOURCE_EXHAUSTED
    assert names.number(b"blue", "x", new=True) == 2


@pytest.mark.parametrize(("data", "said"), [(b"\xff", "UTF-8"), (b"x" * 1025, "at most 1024 bytes")])
def test_what_is_no_name_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(StatusError, match=said):
        Names(COLOUR, 8, {}).number(data, "x", new=True)


@pytest.mark.parametrize(
    ("numbers", "said"), [({"a": 1, "b": 1}, "two of them"), ({"a": 256}, "'a' has none of 8"), ({"a": -1}, "'a'")]
)
def test_configured_numbers_that_do_not_fit_the_type_refuse_the_program(numbers: dict[str, int], said: str) -> None:
    with pytest.raises(StatusError, match=said) as raised:
        loaded({COLOUR: numbers})
    assert raised.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("text", ["", "[]", '{"Port": 1}', '{"Port": {"a": "1"}}', '{"Port": {"a": true}}', "[" * 5000])
def test_files_that_say_no_names_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(ConfigurationError, match="--names"):
        read_names(tmp_path / "names.json")


def test_names_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text('{"Port": {"eth0": 1}}')
    assert read_names(tmp_path / "names.json") == {"Port": {"eth0": 1}}
