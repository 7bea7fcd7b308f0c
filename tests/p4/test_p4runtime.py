"""The P4Runtime server, talked to by p4runtime-shell as it is published, and by raw stubs for what that cannot say."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")
shell = pytest.importorskip("p4runtime_sh.shell", reason="needs p4runtime-shell")

from google.rpc import status_pb2  # noqa: E402
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc  # noqa: E402

from fanin.switch.p4runtime.server.device import Device  # noqa: E402
from fanin.switch.p4runtime.server.p4info import read_p4info  # noqa: E402
from fanin.switch.p4runtime.server.server import ENTITIES_PER_RESPONSE, GrpcServer, Service  # noqa: E402
from fanin.switch.p4runtime.server.status import Code  # noqa: E402
from tests.p4.bmv2 import field  # noqa: E402
from tests.p4.router import CPU_PORT, P4INFO, document  # noqa: E402

WAIT_S = 20.0
THREE_RATES = {"name": "m", "type": "packets", "is_direct": False, "rate_count": 3, "size": 1}
EXACT, LPM, TERNARY = 33554433, 33554434, 33554435
SEND, FLOOD, LOSE, MARK = 16777217, 16777218, 16777219, 16777220


class Bench:
    """A served device, what left its ports, and stubs to talk to it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.service = Service(Device(CPU_PORT, lambda limit: 0), 7, lambda port, data: self.sent.append((port, data)))
        self.server = GrpcServer(self.service, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.port}"
        self.channel = grpc.insecure_channel(self.address)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)

    def close(self) -> None:
        self.channel.close()
        self.server.close()

    def packet(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        """The packets that leave, other than to the control plane."""
        self.sent.clear()
        self.service.receive([(port, data)])
        return list(self.sent)

    def write(self, election_id: int, *updates: Any) -> list[Code]:
        """Write; the code of each update, or the call's own alone."""
        request = p4runtime_pb2.WriteRequest(device_id=7, updates=updates)
        request.election_id.low = election_id
        call = self.stub.Write.future(request)
        if call.code() is grpc.StatusCode.OK:
            return [Code.OK] * len(updates)
        details = [value for key, value in call.trailing_metadata() if key == "grpc-status-details-bin"]
        if not details:
            return [Code(call.code().value[0])]
        assert call.code() is grpc.StatusCode.UNKNOWN
        return [_unpacked(each) for each in status_pb2.Status.FromString(details[0]).details]


def _unpacked(detail: Any) -> Code:
    error = p4runtime_pb2.Error()
    assert detail.Unpack(error)
    return Code(error.canonical_code)


class Controller:
    """A controller's StreamChannel and its messages."""

    def __init__(self, bench: Bench, election_id: int, device_id: int = 7) -> None:
        self.requests: queue.Queue[Any] = queue.Queue()
        self.call = bench.stub.StreamChannel(iter(self.requests.get, None))
        self.replies: Iterator[Any] = iter(self.call)
        self.advertise(election_id, device_id)

    def advertise(self, election_id: int, device_id: int = 7) -> None:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id, request.arbitration.election_id.low = device_id, election_id
        self.requests.put(request)

    def told(self) -> tuple[Code, int]:
        update = next(self.replies).arbitration
        return Code(update.status.code), update.election_id.low

    def end(self) -> None:
        self.requests.put(None)
        self.call.cancel()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def programmed(bench: Bench) -> Iterator[Bench]:
    """With the router loaded, by a controller whose election id is 1."""
    controller = Controller(bench, 1)
    assert controller.told() == (Code.OK, 1)
    bench.stub.SetForwardingPipelineConfig(pipeline(bench))
    yield bench
    controller.end()


def pipeline(bench: Bench, text: str | None = None, info: str = P4INFO, action: str = "VERIFY_AND_COMMIT") -> Any:
    request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
        device_id=7, action=p4runtime_pb2.SetForwardingPipelineConfigRequest.Action.Value(action)
    )
    request.election_id.low = 1
    request.config.p4info.CopyFrom(read_p4info(info))
    request.config.p4_device_config = (document() if text is None else text).encode()
    request.config.cookie.cookie = 99
    return request


def code_of(call: Any, *arguments: Any) -> Code:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    return Code(caught.value.code().value[0])


def entry(kind: str, table_id: int, action: int | None, *parameters: int, priority: int = 0, **match: Any) -> Any:
    update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.Type.Value(kind))
    made = update.entity.table_entry
    made.table_id, made.priority = table_id, priority
    for name, value in match.items():
        part = made.match.add(field_id=int(name[-1]))
        if name.startswith("exact"):
            part.exact.value = value
        elif name.startswith("lpm"):
            part.lpm.value, part.lpm.prefix_len = value
        elif name.startswith("ternary"):
            part.ternary.value, part.ternary.mask = value
        else:
            part.range.low, part.range.high = value
    if action is not None:
        made.action.action.action_id = action
        for at, value in enumerate(parameters, 1):
            made.action.action.params.add(param_id=at, value=value.to_bytes(2, "big").lstrip(b"\0") or b"\0")
    return update


# --- p4runtime-shell ---


def test_the_shell_loads_the_pipeline_and_reads_and_writes_everything(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "p4info.txt").write_text(P4INFO)
    (tmp_path / "router.json").write_text(document())
    config = shell.FwdPipeConfig(str(tmp_path / "p4info.txt"), str(tmp_path / "router.json"))
    shell.setup(device_id=7, grpc_addr=bench.address, election_id=(0, 1), config=config, verbose=False)
    try:
        made = shell.TableEntry("t")(action="send")
        made.match["x.a"], made.match["x.b"] = "0x10&&&0xf0", "5..9"
        made.action["port"], made.priority = "3", 10
        made.insert()
        assert bench.packet(1, b"\x1f\x07") == [(3, b"\x1f\x07")]
        assert bench.packet(1, b"\x2f\x07") == []
        (read,) = list(shell.TableEntry("t").read())
        assert (read.priority, read.action["port"].value) == (10, b"\x03")
        made.action["port"] = "4"
        made.modify()
        assert bench.packet(1, b"\x1f\x07") == [(4, b"\x1f\x07")]

        group = shell.MulticastGroupEntry(5)
        group.add(3, 1).add(4, 2).insert()
        flood = shell.TableEntry("t")(action="flood")
        flood.match["x.a"], flood.action["group"], flood.priority = "0x20&&&0xff", "5", 1
        flood.insert()
        assert bench.packet(1, b"\x20\x00") == [(3, b"\x20\x00"), (4, b"\x20\x00")]
        (read_group,) = list(shell.MulticastGroupEntry(5).read())
        assert [(each.egress_port, each.instance) for each in read_group.replicas] == [(3, 1), (4, 2)]
        group.delete()
        assert bench.packet(1, b"\x20\x00") == []

        marked = shell.TableEntry("exact")(action="mark")
        marked.match["x.a"], marked.action["value"] = "0x1f", "6"
        marked.insert()
        bench.packet(1, b"\x1f\x00")
        counted = shell.CounterEntry("c")
        counted.index = 2
        (cell,) = list(counted.read())
        assert (cell.packet_count, cell.byte_count) == (1, 2)
        (direct,) = list(shell.DirectCounterEntry("hits").read())
        assert (direct.packet_count, direct.byte_count) == (1, 2)
        default = shell.TableEntry("t")(action="lose", is_default=True)
        default.modify()

        with pytest.raises(Exception, match="ALREADY_EXISTS"):
            flood.insert()
        made.delete()
        assert [each.priority for each in shell.TableEntry("t").read()] == [1]
        sent = shell.PacketOut(b"\x01\x02", port="9")
        sent.send()
        list(shell.TableEntry("t").read())  # a call behind it: the stream has been read by then, or soon
        assert shell.client.get_p4info().tables[0].preamble.name == "exact"
    finally:
        shell.teardown()


# --- arbitration ---


def test_the_highest_election_id_is_primary_and_all_are_told(bench: Bench) -> None:
    first = Controller(bench, 5)
    assert first.told() == (Code.OK, 5)
    second = Controller(bench, 3)
    assert second.told() == (Code.ALREADY_EXISTS, 5)
    second.advertise(8)
    assert first.told() == (Code.ALREADY_EXISTS, 8)
    assert second.told() == (Code.OK, 8)
    second.advertise(4)
    assert second.told() == (Code.ALREADY_EXISTS, 5)
    assert first.told() == (Code.OK, 5)
    first.end()
    assert second.told() == (Code.OK, 4)
    second.advertise(0)
    assert second.told() == (Code.NOT_FOUND, 0)
    second.end()


def test_the_next_highest_election_id_becomes_primary_when_the_primary_leaves(programmed: Bench) -> None:
    # `programmed` itself is primary with id 1.
    first = Controller(programmed, 9)
    assert first.told() == (Code.OK, 9)
    second = Controller(programmed, 7)
    assert second.told() == (Code.ALREADY_EXISTS, 9)
    first.end()
    assert second.told() == (Code.OK, 7)
    assert programmed.write(7, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.OK]
    second.end()


def test_an_id_in_use_and_an_unknown_device_end_the_stream(bench: Bench) -> None:
    first = Controller(bench, 5)
    first.told()
    for election_id, device_id, code in ((5, 7, Code.INVALID_ARGUMENT), (6, 8, Code.NOT_FOUND)):
        other = Controller(bench, election_id, device_id)
        assert code_of(other.told) is code
        other.end()
    first.end()


def test_only_the_primary_writes(programmed: Bench) -> None:
    update = entry("INSERT", EXACT, MARK, 1, exact1=b"\1")
    assert programmed.write(2, update) == [Code.PERMISSION_DENIED]
    assert programmed.write(1, update) == [Code.OK]


# --- the pipeline ---


def test_nothing_can_be_read_or_written_before_there_is_a_pipeline(bench: Bench) -> None:
    controller = Controller(bench, 1)
    controller.told()
    assert bench.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.FAILED_PRECONDITION]
    request = p4runtime_pb2.ReadRequest(device_id=7)
    request.entities.add().table_entry.table_id = 0
    assert code_of(lambda: list(bench.stub.Read(request))) is Code.FAILED_PRECONDITION
    empty = bench.stub.GetForwardingPipelineConfig(p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=7))
    assert not empty.HasField("config")
    controller.end()


@pytest.mark.parametrize(
    ("text", "info", "code"),
    [
        ("{", P4INFO, Code.INVALID_ARGUMENT),
        (None, P4INFO.replace('"exact" alias', '"other" alias'), Code.INVALID_ARGUMENT),
        (None, P4INFO.replace("bitwidth: 9 } }", "bitwidth: 8 } }"), Code.INVALID_ARGUMENT),
        (None, P4INFO.replace("match_type: LPM", "match_type: RANGE"), Code.INVALID_ARGUMENT),
        (None, P4INFO.replace("size: 2", "size: 3"), Code.INVALID_ARGUMENT),
        (None, "", Code.INVALID_ARGUMENT),
        (document(meter_arrays=[{"name": "m"}]), P4INFO, Code.INVALID_ARGUMENT),
        (document(meter_arrays=[THREE_RATES]), P4INFO, Code.UNIMPLEMENTED),
    ],
)
def test_a_pipeline_that_does_not_fit_is_refused_and_the_old_one_stays(
    programmed: Bench, text: str | None, info: str, code: Code
) -> None:
    assert code_of(programmed.stub.SetForwardingPipelineConfig, pipeline(programmed, text, info)) is code
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.OK]


def constant(name: str, *, size: int = 1) -> Any:
    """The table `exact` of the program with one constant entry, of 5, under a name; as p4c makes it of a `switch`."""
    body = json.loads(document())
    table = next(each for each in body["pipelines"][0]["tables"] if each["name"] == "exact")
    table["default_entry"] |= {"action_const": True, "action_entry_const": True}
    key = {"match_type": "exact", "key": "0x05"}
    table["entries"] = [{"match_key": [key], "action_entry": {"action_id": 3, "action_data": ["0x07"]}, "priority": 1}]
    table["max_size"] = size
    return json.dumps(body).replace('"exact"', f'"{name}"').replace(f'_type": "{name}"', '_type": "exact"')


GONE = """
tables {
  preamble { id: 33554440 name: "gone" } match_fields { id: 1 name: "k" bitwidth: 8 match_type: EXACT }
  action_refs { id: 16777223 } size: 9
}
action_profiles { preamble { id: 285212673 name: "gone profile" } with_selector: true size: 1024 }
"""
"""Entries that p4c leaves out of the program, since no packet gets there."""


def test_what_the_compiler_left_out_is_in_the_p4info_alone_and_a_request_that_names_it_is_refused(
    programmed: Bench,
) -> None:
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, info=P4INFO + GONE))
    member = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
    member.entity.action_profile_member.action_profile_id = 285212673
    updates = [entry("INSERT", 33554440, 16777223, exact1=b"\1"), member]
    assert [programmed.write(1, each) for each in updates] == [[Code.UNKNOWN]] * 2
    request = p4runtime_pb2.ReadRequest(device_id=7)
    for kind in ("table_entry", "action_profile_member", "counter_entry"):
        getattr(request.entities.add(), kind).SetInParent()
    read = [entity.WhichOneof("entity") for reply in programmed.stub.Read(request) for entity in reply.entities]
    assert read == ["counter_entry"] * 4, "what is there"
    request.entities[0].table_entry.table_id = 33554440
    assert code_of(lambda: list(programmed.stub.Read(request))) is Code.UNKNOWN


def test_a_p4info_of_which_the_program_has_nothing_is_another_programs(programmed: Bench) -> None:
    """Also where the program has no table that a control plane could write, and so none that the P4Info lacks."""
    body = json.loads(document())
    for each in body["pipelines"]:
        del each["tables"][1:], each["conditionals"][:]
        each["init_table"] = each["tables"][0]["name"]
        each["tables"][0] |= {"next_tables": dict.fromkeys(each["tables"][0]["actions"]), "base_default_next": None}
    text = json.dumps(body)
    info = P4INFO
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, text, info))  # its actions are there
    for name in ("send", "flood", "lose", "mark", "nothing"):
        info = info.replace(f'name: "{name}"', f'name: "other.{name}"')
    assert code_of(programmed.stub.SetForwardingPipelineConfig, pipeline(programmed, text, info)) is (
        Code.INVALID_ARGUMENT
    )


def test_a_table_that_nobody_can_write_need_not_be_in_the_p4info(programmed: Bench) -> None:
    without = P4INFO[: P4INFO.index("tables {")] + P4INFO[P4INFO.index("tables {", P4INFO.index("tables {") + 1) :]
    without = without[: without.index("direct_counters {")] + without[without.index("registers {") :]
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, constant("switch_0_table"), without))
    assert programmed.packet(1, b"\5\1") == [], "no entry of `t` sends it"
    unlike = pipeline(programmed, document(), without)
    assert code_of(programmed.stub.SetForwardingPipelineConfig, unlike) is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("said", "code"), [("is_const_table: true", Code.PERMISSION_DENIED), ("has_initial_entries: true", Code.UNKNOWN)]
)
def test_of_a_constant_entry_only_what_counts_can_be_changed(programmed: Bench, said: str, code: Code) -> None:
    resource = "direct_resource_ids: 318767105"
    info = P4INFO.replace(f"{resource}\n  size: 64", f"{resource} {said} size: 9")
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, constant("exact"), info))
    for kind in ("INSERT", "MODIFY"):
        assert programmed.write(1, entry(kind, EXACT, MARK, 1, exact1=b"\5")) == [code]
    assert programmed.write(1, entry("DELETE", EXACT, None, exact1=b"\5")) == [code]
    counted = entry("MODIFY", EXACT, None, exact1=b"\5")
    counted.entity.table_entry.counter_data.packet_count = 40
    other = entry("MODIFY", EXACT, None, exact1=b"\6")
    assert programmed.write(1, counted, other) == [Code.OK, Code.NOT_FOUND]
    programmed.packet(1, b"\5\1")
    request = p4runtime_pb2.ReadRequest(device_id=7)
    request.entities.add().table_entry.table_id = EXACT
    request.entities[0].table_entry.counter_data.SetInParent()
    (found,) = [entity.table_entry for reply in programmed.stub.Read(request) for entity in reply.entities]
    assert (found.counter_data.packet_count, found.action.action.params[0].value) == (41, b"\7")


def translated() -> str:
    """The P4Info with `exact`'s key and mark's parameter of a type that a controller sees otherwise."""
    info = P4INFO
    for name, kind in (("x.a", "match_type: EXACT"), ("value", "")):
        written = f'name: "{name}" bitwidth: 8 {kind}'.rstrip()
        assert written in info
        info = info.replace(written, f'name: "{name}" bitwidth: 32 {kind} type_name {{ name: "W" }}')
    return info + 'type_info { new_types { key: "W" value { translated_type { uri: "w" sdn_bitwidth: 32 } } } }'


def test_a_translated_type_has_the_programs_width(programmed: Bench) -> None:
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, info=translated()))
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\5")) == [Code.OK]
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1\5")) == [Code.OUT_OF_RANGE]
    read = programmed.stub.GetForwardingPipelineConfig(p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=7))
    assert read.config.p4info.tables[0].match_fields[0].bitwidth == 32, "the P4Info as it came"


def test_digests_that_are_named_otherwise_in_both_files_are_told_apart_by_their_order(programmed: Bench) -> None:
    lists = [{"id": 1, "name": "tuple_0", "elements": [field("x", "a")]}]
    digest = 'digests { preamble { id: 385875969 name: "%s" } type_spec { bitstring { bit { bitwidth: 8 } } } }'
    document_with = document(learn_lists=lists)
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, document_with, P4INFO + digest % "digest_0"))
    two = P4INFO + digest % "digest_0" + (digest % "digest_1").replace("969", "970")
    refused = pipeline(programmed, document_with, two)
    assert code_of(lambda: programmed.stub.SetForwardingPipelineConfig(refused)) is Code.INVALID_ARGUMENT


def test_a_key_that_is_a_parsers_error_is_matched_by_its_name(programmed: Bench) -> None:
    """p4c describes it as without a width, and compiles it to 32 bits."""
    body = json.loads(document())
    table = next(each for each in body["pipelines"][0]["tables"] if each["name"] == "exact")
    table["key"][0]["target"] = ["standard_metadata", "parser_error"]
    info = P4INFO.replace('"x.a" bitwidth: 8 match_type: EXACT', '"standard_metadata.parser_error" match_type: EXACT')
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, json.dumps(body), info))
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 9, exact1=b"no error")) == [Code.INVALID_ARGUMENT]
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 9, exact1=b"NoError")) == [Code.OK]
    assert programmed.write(1, entry("INSERT", TERNARY, SEND, 3, range2=(b"\x09", b"\x09"), priority=1)) == [Code.OK]
    assert programmed.packet(1, b"\5\1") == [(3, b"\5\x09")]
    request = p4runtime_pb2.ReadRequest(device_id=7)
    request.entities.add().table_entry.table_id = EXACT
    (found,) = [entity.table_entry for reply in programmed.stub.Read(request) for entity in reply.entities]
    assert found.match[0].exact.value == b"NoError"


def test_the_pipeline_comes_back_as_it_was_set_and_can_be_saved_first(programmed: Bench) -> None:
    kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
    whole = programmed.stub.GetForwardingPipelineConfig(kinds(device_id=7))
    assert whole.config == pipeline(programmed).config
    cookie = programmed.stub.GetForwardingPipelineConfig(kinds(device_id=7, response_type=kinds.COOKIE_ONLY))
    assert (cookie.config.cookie.cookie, cookie.config.p4_device_config) == (99, b"")
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.OK]
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, action="RECONCILE_AND_COMMIT"))
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.ALREADY_EXISTS]
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, action="VERIFY_AND_SAVE"))
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.ALREADY_EXISTS]
    programmed.stub.SetForwardingPipelineConfig(pipeline(programmed, action="COMMIT"))
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.OK]


def test_state_is_kept_only_with_the_p4info_of_the_program(programmed: Bench) -> None:
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.OK]
    before = programmed.stub.GetForwardingPipelineConfig(
        p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=7)
    ).config
    empty, other, packaged = (pipeline(programmed, action="RECONCILE_AND_COMMIT") for _ in range(3))
    empty.config.p4info.Clear()
    other.config.p4info.tables[0].preamble.id += 100
    other.config.p4info.direct_counters[0].direct_table_id += 100
    packaged.config.p4info.pkg_info.name = "router"
    for request, code in ((empty, grpc.StatusCode.INVALID_ARGUMENT), (other, grpc.StatusCode.UNIMPLEMENTED)):
        with pytest.raises(grpc.RpcError) as caught:
            programmed.stub.SetForwardingPipelineConfig(request)
        assert caught.value.code() is code
        after = programmed.stub.GetForwardingPipelineConfig(
            p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=7)
        )
        assert after.config == before
    programmed.stub.SetForwardingPipelineConfig(packaged)
    assert programmed.write(1, entry("INSERT", EXACT, MARK, 1, exact1=b"\1")) == [Code.ALREADY_EXISTS]


# --- entries ---


@pytest.mark.parametrize(
    ("code", "update"),
    [
        (Code.INVALID_ARGUMENT, entry("INSERT", 12345, MARK, 1, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("UNSPECIFIED", EXACT, MARK, 1, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, MARK, 1)),
        (Code.OUT_OF_RANGE, entry("INSERT", EXACT, MARK, 1, exact1=b"")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, MARK, 1, exact1=b"\1", exact2=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, MARK, 1, lpm1=(b"\1", 8))),
        (Code.OUT_OF_RANGE, entry("INSERT", EXACT, MARK, 1, exact1=b"\1\1")),
        (Code.OUT_OF_RANGE, entry("INSERT", EXACT, MARK, 256, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, SEND, 1, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, MARK, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, MARK, 1, 2, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, None, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", EXACT, MARK, 1, exact1=b"\1", priority=1)),
        (Code.NOT_FOUND, entry("MODIFY", EXACT, MARK, 1, exact1=b"\1")),
        (Code.NOT_FOUND, entry("DELETE", EXACT, None, exact1=b"\1")),
        (Code.INVALID_ARGUMENT, entry("INSERT", LPM, MARK, 1, lpm1=(b"\1", 9))),
        (Code.INVALID_ARGUMENT, entry("INSERT", LPM, MARK, 1, lpm1=(b"\1", 0))),
        (Code.INVALID_ARGUMENT, entry("INSERT", LPM, MARK, 1, lpm1=(b"\1", 4))),
        (Code.INVALID_ARGUMENT, entry("INSERT", TERNARY, SEND, 1, ternary1=(b"\1", b"\1"))),
        (Code.INVALID_ARGUMENT, entry("INSERT", TERNARY, SEND, 1, ternary1=(b"\1", b"\0"), priority=1)),
        (Code.INVALID_ARGUMENT, entry("INSERT", TERNARY, SEND, 1, ternary1=(b"\3", b"\1"), priority=1)),
        (Code.INVALID_ARGUMENT, entry("INSERT", TERNARY, SEND, 1, range2=(b"\3", b"\1"), priority=1)),
        (Code.PERMISSION_DENIED, entry("INSERT", TERNARY, LOSE, priority=1)),
    ],
)
def test_an_update_that_breaks_the_specification_gets_its_code(programmed: Bench, code: Code, update: Any) -> None:
    assert programmed.write(1, update) == [code]


def test_each_update_of_a_batch_has_its_own_code_and_the_good_ones_count(programmed: Bench) -> None:
    good = [entry("INSERT", LPM, MARK, at, lpm1=(bytes([at]), 8)) for at in (1, 2, 3)]
    assert programmed.write(1, good[0], good[0], good[1], good[2]) == [
        Code.OK,
        Code.ALREADY_EXISTS,
        Code.OK,
        Code.RESOURCE_EXHAUSTED,
    ]
    request = p4runtime_pb2.ReadRequest(device_id=7)
    request.entities.add().table_entry.table_id = LPM
    entries = [entity.table_entry for reply in programmed.stub.Read(request) for entity in reply.entities]
    assert entries == [good[0].entity.table_entry, good[1].entity.table_entry]


def test_registers_are_read_and_written(programmed: Bench) -> None:
    update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.MODIFY)
    update.entity.register_entry.register_id = 369098753
    update.entity.register_entry.data.bitstring = b"\5"
    assert programmed.write(1, update) == [Code.OK]
    update.entity.register_entry.index.index = 3
    update.entity.register_entry.data.bitstring = b"\xff"
    assert programmed.write(1, update) == [Code.OK]
    update.entity.register_entry.index.index = 4
    assert programmed.write(1, update) == [Code.OUT_OF_RANGE]
    request = p4runtime_pb2.ReadRequest(device_id=7)
    request.entities.add().register_entry.register_id = 369098753
    cells = [entity.register_entry for reply in programmed.stub.Read(request) for entity in reply.entities]
    assert [cell.data.bitstring for cell in cells] == [b"\5", b"\5", b"\5", b"\xff"]


def test_packets_and_writes_go_on_between_the_messages_of_a_long_read() -> None:
    cells = 4 * ENTITIES_PER_RESPONSE
    switch = json.loads(document())
    next(each for each in switch["register_arrays"])["size"] = cells
    info = read_p4info(P4INFO)
    info.registers[0].size = cells
    bench = Bench()
    try:
        controller = Controller(bench, 1)
        controller.told()
        request = pipeline(bench, json.dumps(switch))
        request.config.p4info.CopyFrom(info)
        bench.stub.SetForwardingPipelineConfig(request)
        wanted = p4runtime_pb2.ReadRequest(device_id=7)
        wanted.entities.add().register_entry.register_id = info.registers[0].preamble.id
        messages = bench.service.Read(wanted, context=None)
        found = list(next(messages).entities)
        assert len(found) == ENTITIES_PER_RESPONSE
        assert not bench.service.lock.locked()
        update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.MODIFY)
        update.entity.register_entry.register_id = info.registers[0].preamble.id
        update.entity.register_entry.index.index = cells - 1
        update.entity.register_entry.data.bitstring = b"\7"
        assert bench.write(1, update) == [Code.OK]
        found += [entity for message in messages for entity in message.entities]
        assert [entity.register_entry.index.index for entity in found] == list(range(cells))
        assert found[-1].register_entry.data.bitstring == b"\7", "a cell is read when its message is made"
        controller.end()
    finally:
        bench.close()


@pytest.mark.parametrize("kind", ["action_profile_member", "action_profile_group", "meter_entry", "digest_entry"])
def test_a_wildcard_read_of_what_the_program_does_not_have_is_empty(programmed: Bench, kind: str) -> None:
    request = p4runtime_pb2.ReadRequest(device_id=7)
    getattr(request.entities.add(), kind).SetInParent()
    assert not [entity for reply in programmed.stub.Read(request) for entity in reply.entities]


def test_what_is_not_implemented_says_so(programmed: Bench) -> None:
    update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
    update.entity.extern_entry.extern_id = 1
    assert programmed.write(1, update) == [Code.UNIMPLEMENTED]
    request = p4runtime_pb2.ReadRequest(device_id=7)
    request.entities.add().extern_entry.extern_id = 1
    assert code_of(lambda: list(programmed.stub.Read(request))) is Code.UNIMPLEMENTED


# --- packets ---


def test_packets_go_to_the_primary_and_come_from_it(bench: Bench) -> None:
    controller = Controller(bench, 1)
    controller.told()
    bench.stub.SetForwardingPipelineConfig(pipeline(bench))
    default = entry("MODIFY", TERNARY, SEND, CPU_PORT)
    default.entity.table_entry.is_default_action = True
    assert bench.write(1, default) == [Code.OK]
    assert bench.packet(3, b"\x55\x66rest") == []
    packet = next(controller.replies).packet
    assert packet.payload == b"\x55\x66rest"
    assert [(each.metadata_id, each.value) for each in packet.metadata] == [(1, b"\3"), (2, b"\0")]

    request = p4runtime_pb2.StreamMessageRequest()
    request.packet.payload = b"\x01\x02out"
    request.packet.metadata.add(metadata_id=1, value=b"\x09")
    controller.requests.put(request)
    request = p4runtime_pb2.StreamMessageRequest()
    request.packet.metadata.add(metadata_id=7, value=b"\1")
    controller.requests.put(request)
    error = next(controller.replies).error  # of the second: by then the first is through
    assert Code(error.canonical_code) is Code.INVALID_ARGUMENT
    assert bench.sent == [(9, b"\x01\x02out")]
    controller.end()


def test_a_backup_may_not_send_packets(programmed: Bench) -> None:
    backup = Controller(programmed, 0)
    assert backup.told() == (Code.ALREADY_EXISTS, 1)
    request = p4runtime_pb2.StreamMessageRequest()
    request.packet.payload = b"x"
    backup.requests.put(request)
    assert Code(next(backup.replies).error.canonical_code) is Code.PERMISSION_DENIED
    backup.end()


def test_capabilities_name_the_version(bench: Bench) -> None:
    assert bench.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()).p4runtime_api_version == "1.4.1"
