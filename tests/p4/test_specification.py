"""Rules of the specification of P4Runtime 1.4.1 for single writes and reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from fanin.switch.p4runtime.server.device import Device
from fanin.switch.p4runtime.server.p4info import read_p4info
from fanin.switch.p4runtime.server.status import Code, StatusError
from tests.p4.bmv2 import field
from tests.p4.router import CPU_PORT, P4INFO, document

EXACT, MARK, COUNTER, REGISTER, VALUES, PROFILE = 33554433, 16777220, 302055425, 369098753, 9, 8
MORE = f"""
value_sets {{
  preamble {{ id: {VALUES} name: "v" }} match {{ id: 1 name: "x.a" bitwidth: 8 match_type: EXACT }} size: 3
}}
action_profiles {{ preamble {{ id: {PROFILE} name: "p" }} with_selector: true size: 4 max_group_size: 3 }}
"""
CELL = f"counter_entry {{ counter_id: {COUNTER} index {{ index: %d }} %s }}"
GROUP = "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 3 %s } }"
CLONE = "packet_replication_engine_entry { clone_session_entry { session_id: 3 %s } }"
MEMBERS = f"value_set_entry {{ value_set_id: {VALUES} %s }}"
MEMBER = 'members { match { field_id: 1 exact { value: "%s" } } }'
SHARED = f"action_profile_group {{ action_profile_id: {PROFILE} group_id: 1 max_size: %d }}"
KEY = 'match { field_id: 1 exact { value: "\\005" } }'
ACTION = f'action {{ action {{ action_id: {MARK} params {{ param_id: 1 value: "\007" }} }} }}'
ENTRY = f"table_entry {{ table_id: {EXACT} %s {ACTION} }}"
COUNTED = f"direct_counter_entry {{ table_entry {{ table_id: {EXACT} {KEY} }} %s }}"


@pytest.fixture
def device() -> Device:
    """The router, with a value set and a selector that no packet gets to."""
    body = json.loads(document(parse_vsets=[{"name": "v", "id": 0, "compressed_bitwidth": 8}]))
    profile = {"name": "p", "id": 0, "max_size": 4, "selector": {"algo": "identity", "input": [field("x", "a")]}}
    body["pipelines"][0]["action_profiles"] = [profile]
    made = Device(CPU_PORT, lambda limit: 0)
    config = p4runtime_pb2.ForwardingPipelineConfig(
        p4info=read_p4info(P4INFO + MORE), p4_device_config=json.dumps(body).encode()
    )
    made.set_pipeline(p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)
    return made


def write(device: Device, kind: str, text: str) -> Code:
    update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.Type.Value(kind))
    text_format.Parse(text, update.entity)
    try:
        device.write(update)
    except StatusError as error:
        return error.code
    return Code.OK


def read(device: Device, text: str) -> list[Any]:
    return list(device.read(text_format.Parse(text, p4runtime_pb2.Entity())))


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("MODIFY", CELL % (-1, "data {}"), Code.INVALID_ARGUMENT),
        ("MODIFY", CELL % (4, "data {}"), Code.OUT_OF_RANGE),
        ("MODIFY", f"register_entry {{ register_id: {REGISTER} index {{ index: -1 }} data {{ bitstring: 'a' }} }}", 3),
        ("INSERT", "", Code.INVALID_ARGUMENT),
        ("INSERT", ENTRY % f"{KEY} time_since_last_hit {{}}", Code.INVALID_ARGUMENT),
        ("INSERT", ENTRY % f"{KEY} meter_config {{}}", Code.INVALID_ARGUMENT),
        ("INSERT", GROUP % "replicas { egress_port: 1 instance: 65536 }", Code.INVALID_ARGUMENT),
        ("INSERT", GROUP % "replicas { egress_port: 512 }", Code.INVALID_ARGUMENT),
        ("INSERT", CLONE % "class_of_service: 1", Code.UNIMPLEMENTED),
        ("INSERT", CLONE % "packet_length_bytes: -5", Code.INVALID_ARGUMENT),
        ("INSERT", CLONE.replace("3", "32768") % "", Code.INVALID_ARGUMENT),
        ("MODIFY", MEMBERS % (MEMBER % "a" + MEMBER % "a"), Code.ALREADY_EXISTS),
        ("MODIFY", MEMBERS % "".join(MEMBER % each for each in "abcd"), Code.RESOURCE_EXHAUSTED),
        ("INSERT", GROUP.replace("3", "0") % "", Code.INVALID_ARGUMENT),
        ("INSERT", GROUP.replace("3", "65536") % "", Code.OUT_OF_RANGE),
        ("INSERT", SHARED % 4, Code.INVALID_ARGUMENT),
        ("INSERT", SHARED % -1, Code.INVALID_ARGUMENT),
        ("MODIFY", COUNTED % "data {}", Code.NOT_FOUND),
    ],
)
def test_a_write_that_breaks_a_rule_has_its_code_and_changes_nothing(
    device: Device, kind: str, text: str, code: Code
) -> None:
    assert write(device, kind, text) == code
    for what in ("table_entry {}", "packet_replication_engine_entry {}", "action_profile_group {}"):
        assert not read(device, what)
    assert not read(device, MEMBERS % "")[0].value_set_entry.members


def test_a_read_of_no_kind_and_one_of_an_entry_that_is_not_there_are_refused(device: Device) -> None:
    for text, code in (("", Code.INVALID_ARGUMENT), (COUNTED % "", Code.NOT_FOUND)):
        with pytest.raises(StatusError) as raised:
            read(device, text)
        assert raised.value.code is code
    assert not read(device, f"direct_counter_entry {{ table_entry {{ table_id: {EXACT} }} }}")


def test_a_counter_that_is_written_without_data_goes_on(device: Device) -> None:
    assert write(device, "INSERT", ENTRY % KEY) is Code.OK
    for cell, empty in ((CELL % (2, "data { packet_count: 5 }"), CELL % (2, "")),
                        (COUNTED % "data { packet_count: 5 }", COUNTED % "")):  # fmt: skip
        assert [write(device, "MODIFY", each) for each in (cell, empty)] == [Code.OK] * 2
    (cell,), (counted,) = read(device, CELL % (2, "")), read(device, COUNTED % "")
    assert (cell.counter_entry.data.packet_count, counted.direct_counter_entry.data.packet_count) == (5, 5)


def test_what_a_group_an_entry_and_a_default_action_are_told_to_keep_is_kept(device: Device) -> None:
    assert write(device, "INSERT", GROUP % 'replicas { egress_port: 1 } metadata: "mine"') is Code.OK
    (group,) = read(device, GROUP % "")
    assert group.packet_replication_engine_entry.multicast_group_entry.metadata == b"mine"
    default = ENTRY % 'is_default_action: true metadata: "also" counter_data { packet_count: 6 }'
    assert write(device, "MODIFY", default) is Code.OK
    wanted = f"table_entry {{ table_id: {EXACT} is_default_action: true counter_data {{}} }}"
    (found,) = read(device, wanted)
    assert (found.table_entry.metadata, found.table_entry.counter_data.packet_count) == (b"also", 6)
    assert write(device, "MODIFY", f"table_entry {{ table_id: {EXACT} is_default_action: true }}") is Code.OK
    (found,) = read(device, wanted)
    assert (found.table_entry.metadata, found.table_entry.counter_data.packet_count) == (b"", 0)
    assert write(device, "DELETE", GROUP % "") is Code.OK
    assert not read(device, "packet_replication_engine_entry {}")


def test_a_value_set_is_read_as_it_was_written(device: Device) -> None:
    written = MEMBERS % (MEMBER % "a" + MEMBER % "b")
    assert write(device, "MODIFY", written) is Code.OK
    assert read(device, MEMBERS % "") == [text_format.Parse(written, p4runtime_pb2.Entity())]
    assert read(device, "value_set_entry {}") == read(device, MEMBERS % "")
    assert write(device, "MODIFY", MEMBERS % "") is Code.OK
    assert not read(device, MEMBERS % "")[0].value_set_entry.members


def test_the_size_of_a_group_of_members_is_fixed_when_it_is_made(device: Device) -> None:
    assert write(device, "INSERT", SHARED % 3) is Code.OK
    codes = [write(device, "MODIFY", SHARED % size) for size in (3, 0, 2)]
    assert codes == [Code.OK, Code.OK, Code.INVALID_ARGUMENT]
