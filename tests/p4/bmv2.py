"""Programs in BMv2's JSON format, written by hand as a compiler would: what the emulator's tests load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fanin.switch.p4 import V1Switch
from tests.p4.lockstep import LockstepSwitch

Json = dict[str, Any]
STANDARD_METADATA = [
    ["ingress_port", 9], ["egress_spec", 9], ["egress_port", 9], ["instance_type", 32], ["packet_length", 32],
    ["mcast_grp", 16], ["egress_rid", 16], ["parser_error", 32], ["checksum_error", 1], ["_padding", 3],
]  # fmt: skip
ALIASES = [
    ["intrinsic_metadata.mcast_grp", ["standard_metadata", "mcast_grp"]],
    ["intrinsic_metadata.egress_rid", ["standard_metadata", "egress_rid"]],
]
ERRORS = ["NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout"]


def field(header: str, name: str) -> Json:
    return {"type": "field", "value": [header, name]}


def number(value: int) -> Json:
    return {"type": "hexstr", "value": hex(value)}


def data(index: int) -> Json:
    return {"type": "runtime_data", "value": index}


def named(kind: str, name: str) -> Json:
    return {"type": kind, "value": name}


def operation(op: str, left: Json | None, right: Json | None, **more: Json) -> Json:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right, **more}}


def call(op: str, *parameters: Json) -> Json:
    return {"op": op, "parameters": list(parameters)}


def to_port(port: int) -> Json:
    return call("assign", field("standard_metadata", "egress_spec"), number(port))


def extract(header: str, kind: str = "regular") -> Json:
    return call("extract", {"type": kind, "value": header})


def state(name: str, operations: Sequence[Json], key: Sequence[Json] = (), transitions: Sequence[Json] = ()) -> Json:
    default = {"type": "default", "value": None, "mask": None, "next_state": None}
    return {
        "name": name,
        "parser_ops": list(operations),
        "transition_key": list(key),
        "transitions": list(transitions) or [default],
    }


def go(value: int | None, to: str | None, mask: int | None = None) -> Json:
    kind = "default" if value is None else "hexstr"
    shown = [None if each is None else hex(each) for each in (value, mask)]
    return {"type": kind, "value": shown[0], "mask": shown[1], "next_state": to}


def action(name: str, *primitives: Json, widths: Sequence[int] = (), names: str = "x0 x1 x2 x3") -> Json:
    """An action whose parameters have these widths, and names with blanks between them."""
    known = names.split()
    runtime = [{"name": known[at % len(known)], "bitwidth": bits} for at, bits in enumerate(widths)]
    return {"name": name, "runtime_data": runtime, "primitives": list(primitives)}


def table(
    name: str,
    actions: Sequence[str],
    key: Sequence[tuple[str, str, str]] = (),
    *,
    then: str | dict[str, str | None] | None = None,
    default: tuple[int, Sequence[int]] | None = None,
    size: int = 64,
    **more: Any,
) -> Json:
    """`key` holds (match type, header, field); `default` the number of an action and its data."""
    kinds = [kind for kind, _, _ in key]
    overall = next((kind for kind in ("range", "ternary", "lpm") if kind in kinds), "exact")
    body = {
        "name": name,
        "key": [{"match_type": kind, "target": [header, each], "mask": None} for kind, header, each in key],
        "match_type": overall,
        "type": "simple",
        "max_size": size,
        "with_counters": False,
        "support_timeout": False,
        "direct_meters": None,
        "actions": list(actions),
        "next_tables": then if isinstance(then, dict) else dict.fromkeys(actions, then),
        "base_default_next": None if isinstance(then, dict) else then,
    }
    if default is not None:
        body["default_entry"] = {
            "action_id": default[0],
            "action_const": False,
            "action_data": [hex(value) for value in default[1]],
            "action_entry_const": False,
        }
    return body | more


def program(
    *,
    types: dict[str, Sequence[Any]],
    headers: dict[str, str],
    states: Sequence[Json],
    actions: Sequence[Json] = (),
    ingress: Sequence[Json] = (),
    egress: Sequence[Json] = (),
    conditionals: Sequence[Json] = (),
    emitted: Sequence[str] | None = None,
    metadata: Sequence[str] = (),
    stacks: dict[str, tuple[str, Sequence[str]]] | None = None,
    **more: Any,
) -> Json:
    """A whole document. `types` and `headers` leave standard_metadata out; the first table is where ingress starts."""
    all_types = {"standard_metadata": STANDARD_METADATA, **types}
    all_headers = {"standard_metadata": "standard_metadata", **headers}
    numbers = {name: at for at, name in enumerate(all_headers)}
    document: Json = {
        "__meta__": {"version": [2, 23], "compiler": "by hand"},
        "header_types": [
            {"name": name, "id": at, "fields": list(fields), "max_length": 64}
            for at, (name, fields) in enumerate(all_types.items())
        ],
        "headers": [
            {
                "name": name,
                "id": numbers[name],
                "header_type": kind,
                "metadata": name == "standard_metadata" or name in metadata,
            }
            for name, kind in all_headers.items()
        ],
        "header_stacks": [
            {"name": name, "id": at, "header_type": kind, "header_ids": [numbers[each] for each in members]}
            for at, (name, (kind, members)) in enumerate((stacks or {}).items())
        ],
        "errors": [[name, at] for at, name in enumerate(ERRORS)],
        "parsers": [
            {
                "name": "parser",
                "id": 0,
                "init_state": states[0]["name"],
                "parse_states": [{**each, "id": at} for at, each in enumerate(states)],
            }
        ],
        "deparsers": [{"name": "deparser", "id": 0, "order": list(headers if emitted is None else emitted)}],
        "actions": [{**each, "id": at} for at, each in enumerate(actions)],
        "pipelines": [
            {
                "name": name,
                "id": at,
                "init_table": first,
                "tables": [{**each, "id": number} for number, each in enumerate(tables)],
                "conditionals": [{**each, "id": n} for n, each in enumerate(conditionals)] if name == "ingress" else [],
            }
            for at, (name, tables) in enumerate((("ingress", ingress), ("egress", egress)))
            for first in [tables[0]["name"] if tables else None]
        ],
        "field_aliases": ALIASES,
    }
    document["deparsers"][0]["order"] = [
        name for name in document["deparsers"][0]["order"] if name not in metadata and name != "standard_metadata"
    ]
    return document | more


def start(document: Json) -> V1Switch:
    return LockstepSwitch.from_json(json.dumps(document))


def computing(
    expression: Json,
    inputs: Sequence[tuple[int, bool]] = ((32, False), (32, False)),
    output: tuple[int, bool] = (32, False),
) -> V1Switch:
    """A switch that reads `a`, `b`, ... of the given widths and signs from a packet and answers `expression` alone."""
    names = "abcdefgh"
    fields = [[names[at], bits, signed] for at, (bits, signed) in enumerate(inputs)]
    spare = -sum(bits for bits, _ in inputs) % 8
    out_spare = -output[0] % 8
    return start(
        program(
            types={
                "in_t": [*fields, *([["pad", spare]] if spare else [])],
                "out_t": [*([["pad", out_spare]] if out_spare else []), ["r", *output]],
            },
            headers={"given": "in_t", "result": "out_t"},
            states=[state("start", [extract("given")])],
            actions=[
                action(
                    "compute",
                    call("add_header", named("header", "result")),
                    call("assign", field("result", "r"), expression),
                    call("remove_header", named("header", "given")),
                    to_port(1),
                )
            ],
            ingress=[table("t", ["compute"], default=(0, ()))],
        )
    )


def compute(switch: V1Switch, inputs: Sequence[tuple[int, int]], output_bits: int = 32) -> int:
    """Send (value, bits) pairs to a `computing` switch; its answer as the bits that came back."""
    whole, total = 0, 0
    for value, bits in inputs:
        whole, total = whole << bits | value & ((1 << bits) - 1), total + bits
    spare = -total % 8
    ((_, answer),) = switch.process(0, (whole << spare).to_bytes((total + spare) // 8, "big"), 0.0)
    assert len(answer) == (output_bits + 7) // 8
    return int.from_bytes(answer, "big")
