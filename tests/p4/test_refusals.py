"""The emulator refuses a program that it does not run when it loads it: by name, with the place in the document."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from fanin.errors import FaninError, ProgramError, UnsupportedError
from fanin.switch.p4 import V1Switch
from tests.p4.bmv2 import action, call, extract, field, named, number, operation, program, start, state, table, to_port
from tests.p4.damaged import paths


def whole(*primitives: dict[str, Any], **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "types": {"byte_t": [["v", 8]]},
        "headers": {"x": "byte_t", "y": "byte_t"},
        "states": [state("start", [extract("x")], [field("x", "v")], [])],
        "actions": [action("a", *primitives, to_port(1))],
        "ingress": [table("t", ["a"], [("exact", "x", "v")], default=(0, ()))],
        "register_arrays": [{"name": "r", "id": 0, "size": 3, "bitwidth": 8}],
        "calculations": [{"name": "c", "id": 0, "algo": "crc32", "input": [field("x", "v")]}],
        "checksums": [{"name": "k", "id": 0, "type": "generic", "target": ["x", "v"], "calculation": "c"}],
    }
    return program(**(body | more))


@pytest.mark.parametrize(
    ("named_as", "document"),
    [
        ("extern instances", whole(extern_instances=[{"name": "e"}])),
        ("tables of type 'odd'", whole(ingress=[table("t", ["a"], type="odd")])),
        (
            "meters of 3 rates",
            whole(meter_arrays=[{"name": "m", "type": "bytes", "rate_count": 3, "is_direct": False, "size": 1}]),
        ),
        ("toeplitz", whole(calculations=[{"name": "c", "id": 0, "algo": "toeplitz", "input": []}])),
        ("'whatever'", whole(call("assign", field("x", "v"), operation("whatever", number(1), number(2))))),
        ("'odd'", whole(call("assign", field("x", "v"), {"type": "odd", "value": 1}))),
        ("a jump", whole(to_port(1), call("_jump", number(99)))),
        ("'fetch'", whole(states=[state("start", [call("fetch", number(1))])])),
        ("'fuzzy'", whole(ingress=[table("t", ["a"], [("fuzzy", "x", "v")])])),
    ],
)
def test_a_construct_that_is_not_implemented_is_named(named_as: str, document: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=named_as):
        start(document)


def test_a_name_is_never_run_as_code() -> None:
    document = whole()
    for pipeline in document["pipelines"]:
        pipeline["name"] += "_start = __import__('os')\ningress"
    with pytest.raises(UnsupportedError, match="no pipeline"):
        start(document)
    odd = "x'); raise SystemExit('"
    renamed = json.dumps(whole(call("log_msg", named("string", odd), {"type": "parameters_vector", "value": []})))
    switch = V1Switch.from_json(renamed.replace('"t"', json.dumps(odd)).replace('"start"', json.dumps(odd)))
    assert switch.process(0, b"\1", 0.0)


@pytest.mark.parametrize(
    ("says", "document"),
    [
        ("no header 'z'", whole(call("assign", field("z", "v"), number(1)))),
        ("no field 'w'", whole(call("assign", field("x", "w"), number(1)))),
        (
            "no register array 'q'",
            whole(call("register_read", field("x", "v"), named("register_array", "q"), number(0))),
        ),
        (
            "no indirect meter array 'm'",
            whole(call("execute_meter", named("meter_array", "m"), number(0), field("x", "v"))),
        ),
        ("no such learn list", whole(call("generate_digest", number(1), number(2)))),
        ("no header union type 'u'", whole(header_union_stacks=[{"name": "s", "union_type": "u"}])),
        ("no meters 'm'", whole(ingress=[table("t", ["a"], direct_meters="m")])),
        ("no action profile 'p'", whole(ingress=[table("t", ["a"], type="indirect", action_profile="p")])),
        ("2 parameters, not 1", whole(call("assign", field("x", "v")))),
        (
            "no parse state",
            whole(states=[state("start", [], [], [{"type": "default", "value": None, "next_state": "s"}])]),
        ),
        ("no table or condition", whole(ingress=[table("t", ["a"], then="u")])),
        ("no action", whole(ingress=[table("t", ["nothing"])])),
        ("format version 3", whole(__meta__={"version": [3, 0]})),
        ("another architecture", whole(types={"byte_t": [["v", 8]], "standard_metadata": [["egress_spec", 16]]})),
        ("v1model has one", whole(deparsers=[])),
    ],
)
def test_a_document_that_contradicts_itself_is_refused_with_the_place(says: str, document: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match=says):
        start(document)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"a": 1}', '{"header_types": 3}', "\ud800", '{"header_types": [{}]}']
)
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(ProgramError):
        V1Switch.from_json(text)


def test_any_damage_to_a_document_is_refused_or_harmless() -> None:
    """Every value of a program, replaced in turn by others and left out: no other error may escape."""
    original = whole(
        call("register_write", named("register_array", "r"), number(1), operation("+", field("x", "v"), number(1)))
    )
    draw = random.Random(11)
    refused = 0
    for path in paths(original)[1:]:
        others: list[Any] = [None, -1, 2, "", "0x", [], {}, True, 1.5, "x", ["x"]]
        for change in ("drop", draw.choice(others)):
            damaged: Any = copy.deepcopy(original)
            parent = damaged
            for key in path[:-1]:
                parent = parent[key]
            if change == "drop":
                del parent[path[-1]]
            else:
                parent[path[-1]] = change
            try:
                switch = V1Switch.from_json(json.dumps(damaged))
                switch.process(0, b"\1\2", 0.0)
            except FaninError:
                refused += 1
    assert refused > 100


def test_what_the_native_interpreter_does_not_do_runs_in_python_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    text = json.dumps(whole(call("log_msg", named("string", "seen"))))
    switch = V1Switch.from_json(text)
    assert switch.engine == "Python interpreter: the native one does not do log messages"
    assert switch.engine in caplog.text
    with pytest.raises(UnsupportedError, match="log messages"):
        V1Switch.from_json(text, native=True)
    assert V1Switch.from_json(text, native=False).engine.startswith("Python interpreter")
