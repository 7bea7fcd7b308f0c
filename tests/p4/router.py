"""A small program with one of everything that P4Runtime can touch, and its P4Info: for the server's tests.

A packet is two bytes, `x.a` and `x.b`. Table `t` (ternary) sends it to a port or a group; `exact` and `lpm` change it.
From the control plane's port it carries a packet_out header and leaves through the port named there.
"""

from __future__ import annotations

import json
from typing import Any

from tests.p4.bmv2 import action, call, data, extract, field, go, named, number, program, state, table

CPU_PORT = 510
EGRESS_SPEC = field("standard_metadata", "egress_spec")


def document(**more: Any) -> str:
    """The program as a compiler would write it."""
    states = [
        state("start", [], [field("standard_metadata", "ingress_port")], [go(CPU_PORT, "out"), go(None, "packet")]),
        state(
            "out",
            [extract("packet_out")],
            [],
            [{"type": "default", "value": None, "mask": None, "next_state": "packet"}],
        ),
        state("packet", [extract("x")]),
    ]
    actions = [
        action("send", call("assign", EGRESS_SPEC, data(0)), widths=(9,), names="port"),
        action("flood", call("assign", field("standard_metadata", "mcast_grp"), data(0)), widths=(16,), names="group"),
        action("lose", call("mark_to_drop", named("header", "standard_metadata"))),
        action(
            "mark",
            call("assign", field("x", "b"), data(0)),
            call("register_write", named("register_array", "r"), number(1), data(0)),
            call("count", named("counter_array", "c"), number(2)),
            widths=(8,),
            names="value",
        ),
        action(
            "relay",
            call("assign", EGRESS_SPEC, field("packet_out", "port")),
            call("remove_header", named("header", "packet_out")),
        ),
        action(
            "tell",
            call("add_header", named("header", "packet_in")),
            call("assign", field("packet_in", "port"), field("standard_metadata", "ingress_port")),
        ),
        action("nothing"),
    ]
    condition = {
        "name": "from_cpu",
        "expression": {
            "type": "expression",
            "value": {"op": "valid", "left": None, "right": named("header", "packet_out")},
        },
        "true_next": "relay_t",
        "false_next": "exact",
    }
    to_cpu = {
        "type": "expression",
        "value": {"op": "==", "left": field("standard_metadata", "egress_port"), "right": number(CPU_PORT)},
    }
    body = program(
        types={"x_t": [["a", 8], ["b", 8]], "io_t": [["port", 9], ["pad", 7]]},
        headers={"packet_in": "io_t", "packet_out": "io_t", "x": "x_t"},
        states=states,
        actions=actions,
        ingress=[
            table("first", ["nothing"], default=(6, ()), then="from_cpu"),
            table("relay_t", ["relay"], default=(4, ())),
            table("exact", ["mark", "nothing"], [("exact", "x", "a")], default=(6, ()), then="lpm", with_counters=True),
            table("lpm", ["mark", "nothing"], [("lpm", "x", "b")], default=(6, ()), then="t", size=2),
            table("t", ["send", "flood", "lose"], [("ternary", "x", "a"), ("range", "x", "b")], default=(2, ())),
        ],
        egress=[table("tell_t", ["tell"], default=(5, ()))],
        conditionals=[condition],
        emitted=["packet_in", "packet_out", "x"],
        register_arrays=[{"name": "r", "id": 0, "size": 4, "bitwidth": 8}],
        counter_arrays=[
            {"name": "c", "id": 0, "size": 4, "is_direct": False},
            {"name": "hits", "id": 1, "is_direct": True, "binding": "exact"},
        ],
    )
    egress = body["pipelines"][1]
    egress["conditionals"] = [
        {"name": "to_cpu", "id": 0, "expression": to_cpu, "true_next": "tell_t", "false_next": None}
    ]
    egress["init_table"] = "to_cpu"
    return json.dumps(body | more)


P4INFO = """
pkg_info { arch: "v1model" }
tables {
  preamble { id: 33554433 name: "exact" alias: "exact" }
  match_fields { id: 1 name: "x.a" bitwidth: 8 match_type: EXACT }
  action_refs { id: 16777220 } action_refs { id: 16777223 }
  direct_resource_ids: 318767105
  size: 64
}
tables {
  preamble { id: 33554434 name: "lpm" alias: "lpm" }
  match_fields { id: 1 name: "x.b" bitwidth: 8 match_type: LPM }
  action_refs { id: 16777220 } action_refs { id: 16777223 }
  size: 2
}
tables {
  preamble { id: 33554435 name: "t" alias: "t" }
  match_fields { id: 1 name: "x.a" bitwidth: 8 match_type: TERNARY }
  match_fields { id: 2 name: "x.b" bitwidth: 8 match_type: RANGE }
  action_refs { id: 16777217 } action_refs { id: 16777218 } action_refs { id: 16777219 scope: DEFAULT_ONLY }
  size: 64
}
actions { preamble { id: 16777217 name: "send" alias: "send" } params { id: 1 name: "port" bitwidth: 9 } }
actions { preamble { id: 16777218 name: "flood" alias: "flood" } params { id: 1 name: "group" bitwidth: 16 } }
actions { preamble { id: 16777219 name: "lose" alias: "lose" } }
actions { preamble { id: 16777220 name: "mark" alias: "mark" } params { id: 1 name: "value" bitwidth: 8 } }
actions { preamble { id: 16777223 name: "nothing" alias: "nothing" } }
counters { preamble { id: 302055425 name: "c" alias: "c" } spec { unit: BOTH } size: 4 }
direct_counters {
  preamble { id: 318767105 name: "hits" alias: "hits" } spec { unit: BOTH } direct_table_id: 33554433
}
registers {
  preamble { id: 369098753 name: "r" alias: "r" }
  type_spec { bitstring { bit { bitwidth: 8 } } } size: 4
}
controller_packet_metadata {
  preamble { id: 67108865 name: "packet_in" alias: "packet_in" annotations: "@controller_header(\\"packet_in\\")" }
  metadata { id: 1 name: "port" bitwidth: 9 } metadata { id: 2 name: "pad" bitwidth: 7 }
}
controller_packet_metadata {
  preamble { id: 67108866 name: "packet_out" alias: "packet_out" annotations: "@controller_header(\\"packet_out\\")" }
  metadata { id: 1 name: "port" bitwidth: 9 } metadata { id: 2 name: "pad" bitwidth: 7 }
}
"""

ENTRIES = """
updates { type: INSERT entity { table_entry {
  table_id: 33554433 match { field_id: 1 exact { value: "\\x1f" } }
  action { action { action_id: 16777220 params { param_id: 1 value: "\\x09" } } }
} } }
updates { type: INSERT entity { table_entry {
  table_id: 33554435 priority: 3
  match { field_id: 1 ternary { value: "\\x10" mask: "\\xf0" } }
  action { action { action_id: 16777217 params { param_id: 1 value: "\\x03" } } }
} } }
"""
"""A WriteRequest: 0x1f is marked with 9, and 0x10 to 0x1f leave through port 3."""
