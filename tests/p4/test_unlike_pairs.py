"""A program and a P4Info of two builds: refused, with the first thing in which they differ."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from fanin import cli
from fanin.errors import ConfigurationError, ProgramError
from fanin.p4_ports import DROP_PORT
from fanin.switch.p4.program import Program, load
from fanin.switch.p4.program_file import read_program
from fanin.switch.p4runtime.opening import BUILD, Artefacts, emulated_device
from fanin.switch.p4runtime.server.derived_info import derive
from fanin.switch.p4runtime.server.p4info import Described, read_p4info
from tests.p4.bmv2 import action, extract, field, program, state, table, to_port
from tests.p4.router import P4INFO, document

COMPILED = sorted(path.name.removesuffix(".json.gz") for path in BUILD.glob("*.json.gz"))
DESCRIBED = sorted(path.name.removesuffix(".p4info.txtpb") for path in BUILD.glob("*.p4info.txtpb"))
WIDER = "register 'FaninIngress.slot_machine.sums.fourth64.sums', and the"


def loaded(name: str) -> Program:
    return load(read_program(BUILD / f"{name}.json.gz"), drop_port=DROP_PORT)


def test_of_all_builds_only_a_program_and_its_own_p4info_are_a_pair() -> None:
    programs = {name: loaded(name) for name in COMPILED}
    infos = {name: read_p4info((BUILD / f"{name}.p4info.txtpb").read_text(encoding="utf-8")) for name in DESCRIBED}
    pairs = set()
    for one, other in itertools.product(COMPILED, DESCRIBED):
        try:
            Described.match(programs[one], infos[other])
        except ProgramError:
            continue
        pairs.add((one, other))
    assert pairs == {(name, name) for name in COMPILED}


@pytest.mark.parametrize(("one", "other", "lacks"), [(64, 256, "program"), (256, 64, "P4Info")])
def test_builds_for_other_numbers_of_words_are_told_by_their_files_and_the_register_that_one_lacks(
    one: int, other: int, lacks: str
) -> None:
    artefacts = Artefacts.read(BUILD / f"v1model-{one}.json.gz", BUILD / f"v1model-{other}.p4info.txtpb")
    for take in (emulated_device, Artefacts.message):
        with pytest.raises(ConfigurationError) as caught:
            take(artefacts)
        said = str(caught.value)
        assert f"v1model-{one}.json.gz with --p4info" in said
        assert f"{WIDER} {lacks} has none. Remedy: " in said


@pytest.mark.parametrize("command", [["switch", "--target", "p4", "--bind", "127.0.0.1:0"], ["controller"]])
def test_commands_refuse_such_a_pair_before_they_open_anything(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if command == ["controller"]:
        command = [
            *command,
            "--p4runtime",
            "127.0.0.1:1",
            "--switch-address",
            "127.0.0.1:4920",
            "--bind",
            "127.0.0.1:0",
        ]
    files = ["--program", str(BUILD / "v1model-64.json.gz"), "--p4info", str(BUILD / "v1model-256.p4info.txtpb")]
    assert cli.run([*command, *files]) == 2
    assert WIDER in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'name: "x.a" bitwidth: 8 match_type: EXACT',
            'name: "x.b" bitwidth: 8 match_type: EXACT',
            "exact: key field 1",
        ),
        ("size: 64\n}\nactions", "size: 65\n}\nactions", "table t: size is 65"),
        ("action_refs { id: 16777223 }\n  direct", "direct", "table exact: the P4Info has no action 'nothing'"),
        ("action_refs { id: 16777220 }", "action_refs { id: 16777217 }", "the program has no action 'send'"),
        ('"value" bitwidth: 8', '"value" bitwidth: 9', "action mark: widths of parameters"),
        ('"value" bitwidth', '"worth" bitwidth', "action mark: parameter 1 is worth"),
        ("bitwidth: 8 } } } size: 4", "bitwidth: 16 } } } size: 4", "register r: width is 16"),
        ("bitwidth: 8 } } } size: 4", "bitwidth: 8 } } } size: 5", "register r: size is 5"),
        ('name: "r"', 'name: "q"', "register 'q', and the program has none"),
        ("unit: BOTH } size: 4", "unit: BOTH } size: 8", "counter c: size is 8"),
        ('name: "c"', 'name: "d"', "counter 'd', and the program has none"),
        ("direct_table_id: 33554433", "direct_table_id: 33554434", "direct counter hits: its table is lpm"),
        ('name: "hits"', 'name: "misses"', "direct counter 'misses', and the program has none"),
        ('1 name: "port" bitwidth: 9 } metadata', '1 name: "port" bitwidth: 8 } metadata', "packet_in has fields port"),
        ('2 name: "pad" bitwidth: 7', '2 name: "poke" bitwidth: 7', "packet_in has fields port of 9, poke"),
    ],
)
def test_what_both_declare_must_agree(old: str, new: str, said: str) -> None:
    assert old in P4INFO
    made = load(document(), drop_port=DROP_PORT)
    with pytest.raises(ProgramError, match=said) as caught:
        Described.match(made, read_p4info(P4INFO.replace(old, new, 1)))
    assert "Remedy: " in str(caught.value)


def test_what_the_program_alone_has_is_refused_where_compilers_describe_it() -> None:
    more = {"name": "more", "id": 2, "size": 4, "is_direct": False}
    arrays = [*json.loads(document())["counter_arrays"], more]
    with pytest.raises(ProgramError, match="counter 'more', and the P4Info has none"):
        Described.match(load(document(counter_arrays=arrays), drop_port=DROP_PORT), read_p4info(P4INFO))
    old = P4INFO[: P4INFO.index("registers {")] + P4INFO[P4INFO.index("controller_packet_metadata") :]
    described = Described.match(load(document(), drop_port=DROP_PORT), read_p4info(old))
    assert not described.registers, "a compiler before 2019 describes no registers at all"


def test_value_sets_and_digests_have_the_widths_of_the_program() -> None:
    body = program(
        types={"h_t": [["a", 8]]},
        headers={"h": "h_t"},
        states=[state("start", [extract("h")])],
        actions=[action("send", to_port(4))],
        ingress=[table("t", ["send"], [("exact", "h", "a")])],
        parse_vsets=[{"name": "v", "id": 0, "compressed_bitwidth": 16, "max_size": 4}],
        learn_lists=[{"name": "d", "id": 1, "elements": [field("h", "a")]}],
    )
    made = load(json.dumps(body), drop_port=DROP_PORT)
    info = derive(made)
    Described.match(made, info)
    for change, said in (
        ("value_sets { match { bitwidth: 8 } }", "value set v: width is 24"),
        (
            "digests { type_spec { tuple { members { bitstring { bit { bitwidth: 8 } } } } } }",
            "d: number of fields is 2",
        ),
    ):
        changed, more = p4info_pb2.P4Info(), text_format.Parse(change, p4info_pb2.P4Info())
        changed.CopyFrom(info)
        changed.value_sets[0].match.extend(more.value_sets[0].match if more.value_sets else ())
        if more.digests:
            changed.digests[0].type_spec.tuple.members.extend(more.digests[0].type_spec.tuple.members)
        with pytest.raises(ProgramError, match=said):
            Described.match(made, changed)


@pytest.mark.parametrize("content", [b"root:x:0:0\n", b"", b"\xff\xfe\x00", b"tables {" * 5000])
@pytest.mark.parametrize(
    "command",
    [
        ["p4", "run", "PROGRAM", "--p4runtime", "127.0.0.1:0"],
        ["p4", "trace", "00", "--program", "PROGRAM"],
        ["switch", "--target", "p4", "--bind", "127.0.0.1:0", "--program", "PROGRAM"],
        ["p4", "deploy", "CONF", "--switch-address", "10.0.0.1:4919"],
    ],
    ids=" ".join,
)
def test_a_p4info_that_is_none_is_named_with_a_remedy(
    command: list[str], content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, conf = tmp_path / "other.txt", tmp_path / "fanin.conf"
    file.write_bytes(content)
    (tmp_path / "bf-rt.json").write_text("{}")
    described = {"program-name": "fanin", "bfrt-config": "bf-rt.json", "p4_pipelines": []}
    conf.write_text(json.dumps({"p4_devices": [{"p4_programs": [described]}]}))
    places = {"PROGRAM": str(BUILD / "v1model-64.json.gz"), "CONF": str(conf)}
    assert cli.run([*(places.get(word, word) for word in command), "--p4info", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"--p4info {file}" in said
    assert "Remedy: name the file that p4c writes" in said


@pytest.mark.parametrize("content", [b"root:x:0:0\n", b"", b"\xff\xfe\x00", b"[1]"])
def test_a_program_that_is_none_is_named_with_a_remedy(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content)
    for more in ([], ["--p4info", str(BUILD / "v1model-64.p4info.txtpb")]):
        assert cli.run(["p4", "run", str(file), "--p4runtime", "127.0.0.1:0", *more]) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert "Remedy: name the JSON that p4c-bm2-ss writes" in said
