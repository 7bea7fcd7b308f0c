"""Programs without a P4Info, tables that no P4Info has, and packets without a header of the control plane's."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from p4.v1 import p4runtime_pb2
from typer.testing import CliRunner

from fanin.cli.p4 import app
from fanin.errors import ConfigurationError, ProgramError
from fanin.p4_ports import DROP_PORT
from fanin.switch.p4.program import load
from fanin.switch.p4.program_file import read_program
from fanin.switch.p4runtime.opening import BUILD, Artefacts
from fanin.switch.p4runtime.server.derived_info import derive, hashed
from fanin.switch.p4runtime.server.device import Actions, Device
from fanin.switch.p4runtime.server.p4info import Described, read_p4info
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.standalone import RunOptions, StandaloneSwitch
from tests.p4.bmv2 import action, call, extract, field, number, program, state, table, to_port
from tests.p4.router import CPU_PORT, P4INFO, document

KINDS = ("tables", "actions", "counters", "direct_counters", "registers", "controller_packet_metadata")
NO_P4INFO = "without --p4info: names and ids are made of the program"


def everything(info: Any) -> dict[tuple[str, str], tuple[int, str]]:
    """Ids and aliases, by kind and name."""
    return {
        (kind, each.preamble.name): (each.preamble.id, each.preamble.alias)
        for kind in KINDS
        for each in getattr(info, kind)
    }


@pytest.mark.parametrize("name", ["v1model-64", "tna-model-pairs"])
def test_ids_and_aliases_are_those_that_the_compiler_gives(name: str) -> None:
    compiled = load(read_program(BUILD / f"{name}.json.gz"), drop_port=DROP_PORT)
    derived = derive(compiled)
    theirs, ours = everything(read_p4info((BUILD / f"{name}.p4info.txtpb").read_text())), everything(derived)
    left_out = {each for each in theirs.keys() - ours.keys() if each[0] == "actions"}
    of_keys = {action for table in compiled.tables.values() if table.key for action in table.actions}
    assert not {action for _, action in left_out} & of_keys
    assert ours == {each: theirs[each] for each in theirs.keys() - left_out}
    Described.match(compiled, derived)


def test_what_is_derived_describes_everything_that_the_written_one_does() -> None:
    ours, theirs = derive(load(document(), drop_port=DROP_PORT)), read_p4info(P4INFO)
    for kind in ("tables", "actions", "controller_packet_metadata"):
        mine = {each.preamble.name: each for each in getattr(ours, kind)}
        for each in getattr(theirs, kind):
            made = mine[each.preamble.name]
            for part in ("match_fields", "params", "metadata"):
                fields = [(field.id, field.bitwidth) for field in getattr(each, part, ())]
                assert [(field.id, field.bitwidth) for field in getattr(made, part, ())] == fields


def test_names_with_one_hash_get_ids_of_their_own() -> None:
    assert hashed("") == 0
    table_of = [table(name, ["a"], [("exact", "h", "v")], default=(0, ())) for name in ("t", "u")]
    table_of[0]["next_tables"] = {"a": "u"}
    body = program(
        types={"h_t": [["v", 8]]},
        headers={"h": "h_t"},
        states=[state("start", [extract("h")])],
        actions=[action("a", to_port(1))],
        ingress=table_of,
    )
    made = derive(load(json.dumps(body), drop_port=DROP_PORT))
    assert len({each.preamble.id for each in made.tables}) == 2


def test_a_switch_of_its_own_starts_without_a_p4info(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text(document())
    artefacts = Artefacts.standalone(tmp_path / "router.json", None)
    options = RunOptions(artefacts=artefacts, ports={}, p4runtime=("127.0.0.1", 0), cpu_port=CPU_PORT)
    with contextlib.closing(StandaloneSwitch(options)) as switch:
        assert NO_P4INFO in switch.describe()[0]
        assert everything(switch.device.config.p4info)


def test_a_packet_is_traced_without_a_p4info(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text(document())
    done = CliRunner().invoke(app, ["trace", "1f07", "--program", str(tmp_path / "router.json")])
    assert done.exit_code == 0, done.output
    assert "table exact" in done.output


@pytest.mark.parametrize("command", [["run", "{}"], ["trace", "00", "--program", "{}"]])
def test_errors_name_only_options_that_there_are(command: list[str], tmp_path: Path) -> None:
    for name, text in (("absent.json", None), ("bad.json", "{")):
        if text is not None:
            (tmp_path / name).write_text(text)
        done = CliRunner().invoke(app, [each.format(tmp_path / name) for each in command])
        assert isinstance(done.exception, ConfigurationError)
        assert "--program" not in str(done.exception)


def hidden(*, constant: bool) -> dict[str, Any]:
    entry = {
        "match_key": [{"match_type": "exact", "key": "0x01"}],
        "action_entry": {"action_id": 1, "action_data": []},
        "priority": 1,
    }
    tables = [
        table("seen", ["send"], [("exact", "h", "a")], then="hidden", default=(0, ())),
        table("hidden", ["mark", "none"], [("exact", "h", "a")], default=(2, ())),
    ]
    if constant:
        tables[1]["entries"] = [entry]
    return program(
        types={"h_t": [["a", 8]]},
        headers={"h": "h_t"},
        states=[state("start", [extract("h")])],
        actions=[
            action("send", to_port(4)),
            action("mark", call("assign", field("h", "a"), number(9))),
            action("none"),
        ],
        ingress=tables,
        emitted=["h"],
    )


SEEN = """
tables {
  preamble { id: 33554433 name: "seen" alias: "seen" }
  match_fields { id: 1 name: "h.a" bitwidth: 8 match_type: EXACT } action_refs { id: 16777217 } size: 64
}
actions { preamble { id: 16777217 name: "send" alias: "send" } }
"""


def device_of(body: dict[str, Any], p4info: str = SEEN) -> Device:
    device = Device(CPU_PORT, random.randrange)
    config = p4runtime_pb2.ForwardingPipelineConfig(
        p4info=read_p4info(p4info), p4_device_config=json.dumps(body).encode()
    )
    device.set_pipeline(Actions.VERIFY_AND_COMMIT, config)
    return device


def test_a_hidden_table_with_constant_entries_needs_no_p4info() -> None:
    device = device_of(hidden(constant=True))
    assert device.switch is not None
    assert device.switch.process(1, b"\1", 0.0) == [(4, b"\x09")]
    with pytest.raises(StatusError, match="'hidden'") as caught:
        device_of(hidden(constant=False))
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_a_program_without_the_header_gets_the_payload_of_a_packet_out_as_it_is() -> None:
    device = device_of(hidden(constant=True))
    assert device.packet_out(p4runtime_pb2.PacketOut(payload=b"\5abc"), 0.0) == [(4, b"\5abc")]
    assert device.packet_in(b"\5abc") == p4runtime_pb2.PacketIn(payload=b"\5abc")
    message = p4runtime_pb2.PacketOut(payload=b"\5")
    message.metadata.add(metadata_id=1, value=b"\1")
    with pytest.raises(StatusError, match="no metadata 1"):
        device.packet_out(message, 0.0)


@pytest.mark.parametrize(
    ("architecture", "names"), [("PSA", ["ingress_parser", "egress_parser"]), ("PNA", ["main_parser"])]
)
def test_a_program_of_another_architecture_is_called_so(architecture: str, names: list[str]) -> None:
    body = hidden(constant=True)
    body["parsers"] = [{**body["parsers"][0], "name": name} for name in names]
    with pytest.raises(ProgramError, match=f"compiled for {architecture}.*p4c-bm2-ss"):
        load(json.dumps(body), drop_port=DROP_PORT)
