"""P4Runtime of meters and action profiles, and what a device says unasked: digests and entries that are idle."""

from __future__ import annotations

import json
import queue
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from google.protobuf import text_format  # noqa: E402
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc  # noqa: E402

from fanin.switch.p4runtime.server.device import Device  # noqa: E402
from fanin.switch.p4runtime.server.digests import DigestConfig, DigestList, DigestStreams  # noqa: E402
from fanin.switch.p4runtime.server.p4info import read_p4info  # noqa: E402
from fanin.switch.p4runtime.server.server import GrpcServer, Service  # noqa: E402
from fanin.switch.p4runtime.server.status import Code, StatusError  # noqa: E402
from tests.p4.bmv2 import action, call, data, extract, field, number, program, state, table  # noqa: E402

COLOURED, SPREAD, TO, SEEN, DIRECT, INDIRECT, PROFILE = 1, 2, 11, 21, 31, 32, 41
P4INFO = f"""
pkg_info {{ arch: "v1model" }}
tables {{
  preamble {{ id: {COLOURED} name: "coloured" }} size: 8 idle_timeout_behavior: NOTIFY_CONTROL
  match_fields {{ id: 1 name: "x.v" bitwidth: 8 match_type: EXACT }}
  action_refs {{ id: {TO} }} direct_resource_ids: {DIRECT}
}}
tables {{
  preamble {{ id: {SPREAD} name: "spread" }} size: 8 implementation_id: {PROFILE}
  match_fields {{ id: 1 name: "x.v" bitwidth: 8 match_type: EXACT }}
  action_refs {{ id: {TO} }}
}}
actions {{ preamble {{ id: {TO} name: "to" }} params {{ id: 1 name: "port" bitwidth: 9 }} }}
action_profiles {{ preamble {{ id: {PROFILE} name: "p" }} table_ids: {SPREAD} with_selector: true size: 4 }}
direct_meters {{ preamble {{ id: {DIRECT} name: "d" }} spec {{ unit: PACKETS }} direct_table_id: {COLOURED} }}
meters {{ preamble {{ id: {INDIRECT} name: "m" }} spec {{ unit: BYTES }} size: 3 }}
digests {{ preamble {{ id: {SEEN} name: "seen" }} type_spec {{ struct {{ name: "seen" }} }} }}
"""


def document() -> bytes:
    """Two bytes, x and y: `coloured` writes its meter's colour into y, `spread` sends by a hash of y; x is learned."""
    body = program(
        types={"byte_t": [["v", 8]]},
        headers={"x": "byte_t", "y": "byte_t"},
        states=[state("start", [extract("x"), extract("y")])],
        actions=[
            action("to", call("assign", field("standard_metadata", "egress_spec"), data(0)), widths=(9,), names="port"),
            action("learn", call("generate_digest", number(1), number(5))),
        ],
        ingress=[
            table("first", ["learn"], default=(1, ()), then="coloured"),
            table(
                "coloured", ["to"], [("exact", "x", "v")], size=8, direct_meters="d", support_timeout=True,
                then="spread",
            ),
            table("spread", ["to"], [("exact", "x", "v")], size=8, type="indirect_ws", action_profile="p"),
        ],
        meter_arrays=[
            {
                "name": "d", "id": 0, "is_direct": True, "size": 8, "rate_count": 2, "type": "packets",
                "binding": "coloured", "result_target": ["y", "v"],
            },
            {"name": "m", "id": 1, "is_direct": False, "size": 3, "rate_count": 2, "type": "bytes"},
        ],
        learn_lists=[
            {"name": "seen", "id": 5, "elements": [field("x", "v"), field("standard_metadata", "ingress_port")]}
        ],
    )  # fmt: skip
    profile = {"name": "p", "id": 0, "max_size": 4, "selector": {"algo": "identity", "input": [field("y", "v")]}}
    body["pipelines"][0]["action_profiles"] = [profile]
    return json.dumps(body).encode()


def config() -> Any:
    return p4runtime_pb2.ForwardingPipelineConfig(p4info=read_p4info(P4INFO), p4_device_config=document())


@pytest.fixture
def device() -> Device:
    made = Device(510, lambda limit: 0)
    made.set_pipeline(p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config())
    return made


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("unit: PACKETS", "unit: BYTES", "meter d: unit is bytes"),
        ("unit: BYTES } size: 3", "unit: BYTES } size: 4", "meter m: size is 4"),
        ('name: "m"', 'name: "n"', "meter 'n', and the program has none"),
        ("with_selector: true size: 4", "size: 4", "action profile p: whether it has a selector"),
        ("with_selector: true size: 4", "with_selector: true size: 5", "action profile p: size is 5"),
        ('name: "p"', 'name: "other"', "table spread: action profile is other"),
        ("idle_timeout_behavior: NOTIFY_CONTROL", "is_const_table: true", "table coloured is constant"),
    ],
)
def test_meters_and_profiles_of_another_build_are_refused(old: str, new: str, said: str) -> None:
    assert old in P4INFO
    request = p4runtime_pb2.ForwardingPipelineConfig(
        p4info=read_p4info(P4INFO.replace(old, new, 1)), p4_device_config=document()
    )
    with pytest.raises(StatusError, match=said):
        Device(510, lambda limit: 0).set_pipeline(
            p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, request
        )


def write(device: Device, kind: str, text: str, now: float = 0.0) -> Code:
    """The code with which an entity is written."""
    update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.Type.Value(kind))
    text_format.Parse(text, update.entity)
    try:
        device.write(update, now)
    except StatusError as error:
        return error.code
    return Code.OK


def read(device: Device, text: str, now: float = 0.0) -> list[Any]:
    return list(device.read(text_format.Parse(text, p4runtime_pb2.Entity()), now))


def entry(table_id: int, value: int, action: str, more: str = "") -> str:
    return (
        f'table_entry {{ table_id: {table_id} match {{ field_id: 1 exact {{ value: "\\x{value:02x}" }} }} '
        f"action {{ {action} }} {more} }}"
    )


def to(port: int) -> str:
    return f'action {{ action_id: {TO} params {{ param_id: 1 value: "\\x{port:02x}" }} }}'


def sent(device: Device, *values: int, now: float = 0.0) -> list[tuple[int, bytes]]:
    assert device.switch is not None
    return device.switch.process(1, bytes(values), now)


# --- action profiles ---


def member(number: int, port: int) -> str:
    return f"action_profile_member {{ action_profile_id: {PROFILE} member_id: {number} {to(port)} }}"


def group(number: int, *weights: tuple[int, int]) -> str:
    members = " ".join(f"members {{ member_id: {each} weight: {weight} }}" for each, weight in weights)
    return f"action_profile_group {{ action_profile_id: {PROFILE} group_id: {number} max_size: 4 {members} }}"


def test_members_and_groups_are_written_read_and_kept_while_in_use(device: Device) -> None:
    assert [write(device, "INSERT", member(at, 10 + at)) for at in (1, 2)] == [Code.OK] * 2
    assert write(device, "INSERT", member(1, 3)) is Code.ALREADY_EXISTS
    assert write(device, "INSERT", group(6, (1, 1), (2, 2))) is Code.OK
    assert write(device, "INSERT", entry(SPREAD, 7, "action_profile_group_id: 6")) is Code.OK
    assert write(device, "INSERT", entry(SPREAD, 8, "action_profile_member_id: 2")) is Code.OK
    assert [sent(device, 7, value)[0][0] for value in range(3)] == [11, 12, 12]
    assert sent(device, 8, 0)[0][0] == 12
    assert write(device, "MODIFY", member(2, 5)) is Code.OK
    assert sent(device, 8, 0)[0][0] == 5
    assert write(device, "DELETE", member(1, 11)) is Code.FAILED_PRECONDITION
    assert write(device, "DELETE", group(6)) is Code.FAILED_PRECONDITION
    assert write(device, "MODIFY", group(6, (2, 1))) is Code.OK
    assert write(device, "DELETE", member(1, 11)) is Code.OK
    members = [each.action_profile_member for each in read(device, "action_profile_member {}")]
    assert [(each.member_id, each.action.params[0].value) for each in members] == [(2, b"\x05")]
    (found,) = read(device, f"action_profile_group {{ action_profile_id: {PROFILE} }}")
    assert [(each.member_id, each.weight) for each in found.action_profile_group.members] == [(2, 1)]
    entries = [each.table_entry.action for each in read(device, f"table_entry {{ table_id: {SPREAD} }}")]
    assert [each.WhichOneof("type") for each in entries] == ["action_profile_group_id", "action_profile_member_id"]


def watching(number: int, *watches: str) -> str:
    members = " ".join(f"members {{ member_id: {at} weight: 1 {each} }}" for at, each in enumerate(watches, 1))
    return f"action_profile_group {{ action_profile_id: {PROFILE} group_id: {number} max_size: 4 {members} }}"


def test_members_watch_ports_and_are_read_as_they_were_written(device: Device) -> None:
    assert [write(device, "INSERT", member(at, 10 + at)) for at in (1, 2, 3)] == [Code.OK] * 3
    watched = watching(6, 'watch_port: "\\x02"', "watch: 3", "")
    assert write(device, "INSERT", watched) is Code.OK
    assert write(device, "INSERT", entry(SPREAD, 7, "action_profile_group_id: 6")) is Code.OK
    (found,) = read(device, "action_profile_group {}")
    assert found == text_format.Parse(watched, p4runtime_pb2.Entity())
    device.set_port(2, up=False)
    assert [sent(device, 7, value)[0][0] for value in range(4)] == [12, 13, 12, 13]
    device.set_port(3, up=False)
    assert sent(device, 7, 0)[0][0] == 13
    assert read(device, "action_profile_group {}") == [found], "what was written stays"
    device.set_port(2, up=True)
    assert [sent(device, 7, value)[0][0] for value in range(4)] == [11, 13, 11, 13]
    for port in ('watch_port: "\\x02\\x00"', "watch: 512", "watch: -1"):
        assert write(device, "MODIFY", watching(6, port)) is Code.INVALID_ARGUMENT, port
    assert write(device, "MODIFY", watching(6, 'watch_port: ""', "watch: 0")) is Code.OK
    assert [sent(device, 7, value)[0][0] for value in range(2)] == [11, 12]


def test_a_program_that_is_loaded_later_knows_which_ports_are_down(device: Device) -> None:
    device.set_port(2, up=False)
    device.set_pipeline(p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config())
    actions = f'action_profile_actions {{ {to(3)} weight: 1 watch_port: "\\x02" }} '
    actions += f"action_profile_actions {{ {to(4)} weight: 1 }}"
    written = entry(SPREAD, 1, f"action_profile_action_set {{ {actions} }}")
    assert write(device, "INSERT", written) is Code.OK
    assert [sent(device, 1, value)[0][0] for value in range(2)] == [4, 4]
    assert read(device, f"table_entry {{ table_id: {SPREAD} }}") == [text_format.Parse(written, p4runtime_pb2.Entity())]


def test_the_default_action_of_a_table_with_an_action_profile_is_constant(device: Device) -> None:
    default = f"table_entry {{ table_id: %d is_default_action: true action {{ {to(3)} }} }}"
    assert write(device, "MODIFY", default % SPREAD) is Code.INVALID_ARGUMENT
    assert write(device, "MODIFY", default % COLOURED) is Code.OK


def test_a_selector_takes_its_actions_in_one_go(device: Device) -> None:
    actions = " ".join(f"action_profile_actions {{ {to(port)} weight: {weight} }}" for port, weight in ((3, 1), (4, 1)))
    assert write(device, "INSERT", entry(SPREAD, 1, f"action_profile_action_set {{ {actions} }}")) is Code.OK
    assert [sent(device, 1, value)[0][0] for value in range(3)] == [3, 4, 3]
    (found,) = read(device, f"table_entry {{ table_id: {SPREAD} }}")
    made = found.table_entry.action.action_profile_action_set.action_profile_actions
    assert [(each.action.params[0].value, each.weight) for each in made] == [(b"\x03", 1), (b"\x04", 1)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (entry(SPREAD, 1, to(3)), Code.INVALID_ARGUMENT),
        (entry(SPREAD, 1, "action_profile_member_id: 3"), Code.NOT_FOUND),
        (entry(SPREAD, 1, "action_profile_group_id: 3"), Code.NOT_FOUND),
        (entry(SPREAD, 1, f"action_profile_action_set {{ action_profile_actions {{ {to(3)} weight: 0 }} }}"),
         Code.INVALID_ARGUMENT),
        (entry(COLOURED, 1, "action_profile_member_id: 3"), Code.INVALID_ARGUMENT),
        (group(1, (9, 1)), Code.NOT_FOUND),
        (member(1, 3).replace(f"{PROFILE}", "77"), Code.INVALID_ARGUMENT),
        (entry(SPREAD, 1, "action_profile_member_id: 3", "idle_timeout_ns: 5"), Code.INVALID_ARGUMENT),
        (f"meter_entry {{ meter_id: {INDIRECT} }}", Code.INVALID_ARGUMENT),
        ("digest_entry { digest_id: 7 }", Code.NOT_FOUND),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(device: Device, text: str, code: Code) -> None:
    assert write(device, "INSERT", text) is code


# --- meters ---


RATES = "{ cir: 0 cburst: 1 pir: 0 pburst: 2 }"


def test_a_direct_meter_comes_with_its_entry_or_by_itself(device: Device) -> None:
    assert write(device, "INSERT", entry(COLOURED, 7, to(3), f"meter_config {RATES}")) is Code.OK
    assert [sent(device, 7, 9)[0][1][1] for _ in range(3)] == [0, 1, 2]
    (found,) = read(device, "direct_meter_entry { table_entry {} }")
    assert (found.direct_meter_entry.config.cburst, found.direct_meter_entry.config.pburst) == (1, 2)
    key = f'table_entry {{ table_id: {COLOURED} match {{ field_id: 1 exact {{ value: "\\x07" }} }} }}'
    assert write(device, "MODIFY", f"direct_meter_entry {{ {key} }}") is Code.OK
    assert sent(device, 7, 9)[0][1][1] == 0
    (found,) = read(device, f"table_entry {{ table_id: {COLOURED} meter_config {{}} }}")
    assert not found.table_entry.HasField("meter_config")
    wrong = RATES.replace("cir: 0", "cir: 1")
    assert write(device, "MODIFY", f"direct_meter_entry {{ {key} config {wrong} }}") is Code.INVALID_ARGUMENT


def test_indirect_meters_are_set_and_read_by_index_or_all_at_once(device: Device) -> None:
    one = f"meter_entry {{ meter_id: {INDIRECT} index {{ index: 1 }} config {RATES} }}"
    assert write(device, "MODIFY", one) is Code.OK
    assert write(device, "MODIFY", one.replace("index: 1", "index: 3")) is Code.OUT_OF_RANGE
    found = [each.meter_entry for each in read(device, "meter_entry {}")]
    assert [(each.index.index, each.HasField("config")) for each in found] == [(0, False), (1, True), (2, False)]
    assert write(device, "MODIFY", f"meter_entry {{ meter_id: {INDIRECT} }}") is Code.OK
    assert not any(each.meter_entry.HasField("config") for each in read(device, "meter_entry {}"))


# --- digests ---


def test_a_list_leaves_when_it_is_full_or_its_time_has_come_and_not_twice() -> None:
    streams = DigestStreams()
    assert streams.learn(1, (1,), 0.0) == [], "nobody wants it"
    streams.configure(1, DigestConfig(max_timeout_ns=2_000_000_000, max_list_size=3, ack_timeout_ns=10_000_000_000))
    assert streams.learn(1, (1,), 0.0) == []
    assert streams.learn(1, (1,), 0.5) == [], "it waits already"
    assert streams.next_due() == 2.0
    assert streams.due(1.9) == []
    assert streams.due(2.0) == [DigestList(1, 1, ((1,),))]
    assert streams.next_due() is None
    assert [streams.learn(1, (at,), 3.0) for at in (1, 2, 3)] == [[]] * 3
    assert streams.learn(1, (4,), 3.5) == [DigestList(1, 2, ((2,), (3,), (4,)))]
    streams.acknowledge(1, 2)
    assert streams.learn(1, (2,), 4.0) == []
    assert streams.next_due() == 6.0, "after its acknowledgement it is news again"
    assert streams.learn(1, (1,), 11.9) == []
    assert streams.due(12.1) == [DigestList(1, 3, ((2,),))]
    streams.learn(1, (1,), 12.2)
    assert streams.due(14.2) == [DigestList(1, 4, ((1,),))], "it was never acknowledged"


def test_without_a_timeout_every_digest_leaves_at_once(device: Device) -> None:
    assert write(device, "INSERT", f"digest_entry {{ digest_id: {SEEN} config {{}} }}") is Code.OK
    assert write(device, "INSERT", f"digest_entry {{ digest_id: {SEEN} config {{}} }}") is Code.ALREADY_EXISTS
    sent(device, 7, 0)
    (message,) = device.announcements(1.0)
    (learned,) = message.digest.data
    assert [each.bitstring for each in learned.struct.members] == [b"\x07", b"\x01"]
    assert (message.digest.digest_id, message.digest.list_id) == (SEEN, 1)
    assert device.announcements(1.0) == []
    assert len(read(device, "digest_entry {}")) == 1
    assert write(device, "DELETE", f"digest_entry {{ digest_id: {SEEN} }}") is Code.OK
    sent(device, 7, 0)
    assert device.announcements(2.0) == []


# --- ageing ---


def test_an_entry_that_no_packet_finds_is_announced_once_for_each_time_that_it_becomes_idle(device: Device) -> None:
    assert write(device, "INSERT", entry(COLOURED, 7, to(3), "idle_timeout_ns: 2000000000"), now=1.0) is Code.OK
    assert write(device, "INSERT", entry(COLOURED, 8, to(3)), now=1.0) is Code.OK
    assert device.announcements(1.0) == []
    assert device.next_announcement() == 3.0
    sent(device, 7, 0, now=2.5)
    assert device.announcements(3.0) == []
    assert device.next_announcement() == 4.5
    (message,) = device.announcements(4.5)
    (idle,) = message.idle_timeout_notification.table_entry
    assert (idle.table_id, idle.match[0].exact.value, idle.idle_timeout_ns) == (COLOURED, b"\x07", 2_000_000_000)
    assert device.announcements(6.5) == [], "it was told"
    sent(device, 7, 0, now=7.0)
    assert device.announcements(8.5) == []
    assert len(device.announcements(9.0)) == 1
    (found,) = read(device, entry(COLOURED, 7, "").replace("action {  }", "time_since_last_hit {}"), now=10.0)
    assert found.table_entry.time_since_last_hit.elapsed_ns == 3_000_000_000


# --- over gRPC ---


def test_the_primary_is_told_of_digests_and_idle_entries_over_its_stream() -> None:
    """The clock is the server's: what is due at once, or after a millisecond, comes by itself."""
    service = Service(Device(510, lambda limit: 0), 7, lambda port, data: None)
    server = GrpcServer(service, "127.0.0.1", 0)
    requests: queue.Queue[Any] = queue.Queue()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            stream = stub.StreamChannel(iter(requests.get, None), timeout=30)
            first = p4runtime_pb2.StreamMessageRequest()
            first.arbitration.device_id, first.arbitration.election_id.low = 7, 1
            requests.put(first)
            answers = iter(stream)
            assert next(answers).arbitration.status.code == 0
            load = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=7, action=3, config=config())
            load.election_id.low = 1
            stub.SetForwardingPipelineConfig(load)
            request = p4runtime_pb2.WriteRequest(device_id=7)
            request.election_id.low = 1
            for text in (
                f"digest_entry {{ digest_id: {SEEN} config {{ max_timeout_ns: 1000000 max_list_size: 5 }} }}",
                entry(COLOURED, 9, to(3), "idle_timeout_ns: 1000000"),
            ):
                text_format.Parse(text, request.updates.add(type=1).entity)
            stub.Write(request)
            idle = next(answers).idle_timeout_notification.table_entry
            assert [each.match[0].exact.value for each in idle] == [b"\x09"]
            service.receive([(2, b"\x05\x00"), (3, b"\x05\x00")])
            learned = next(answers).digest
            members = [[each.bitstring for each in data.struct.members] for data in learned.data]
            assert members == [[b"\x05", b"\x02"], [b"\x05", b"\x03"]]
            ack = p4runtime_pb2.StreamMessageRequest()
            ack.digest_ack.digest_id, ack.digest_ack.list_id = learned.digest_id, learned.list_id
            requests.put(ack)
            requests.put(None)
            stream.cancel()
    finally:
        server.close()
