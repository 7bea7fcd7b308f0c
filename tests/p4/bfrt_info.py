"""A BfRt device's description of its tables: those of a program, as an SDE's compiler would write them, and its own."""

from __future__ import annotations

import json
from typing import Any

PROGRAM = "fanin"
FRONT_PANEL = {"1/0": 128, "2/0": 136, "3/0": 144, "31/0": 400}
"""Device ports of the front panel's."""


def field(number: int, name: str, kind: str, width: int = 0, **more: Any) -> dict[str, Any]:
    described = {"type": kind, "width": width} if kind == "bytes" else {"type": kind}
    return {"id": number, "name": name, "type": described, "repeated": False, **more}


def data(*fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"mandatory": False, "read_only": False, "singleton": each} for each in fields]


def program_info(p4info: Any) -> bytes:
    """Describe a program as the SDE's compiler would: other numbers than the P4Info's, the pipe in front of names."""
    actions = {each.preamble.id: each for each in p4info.actions}
    tables: list[dict[str, Any]] = []
    for number, table in enumerate(p4info.tables, 1000):
        specs = [
            {
                "id": 5000 + 100 * number + at,
                "name": actions[reference.id].preamble.name,
                "data": [
                    field(20 + each.id, each.name, "bytes", each.bitwidth) for each in actions[reference.id].params
                ],
            }
            for at, reference in enumerate(table.action_refs)
        ]
        key = [
            field(10 + each.id, each.name, "bytes", each.bitwidth, match_type="Exact") for each in table.match_fields
        ]
        name = f"pipe.{table.preamble.name}"
        kind = "MatchAction_Direct"
        tables.append({"id": number, "name": name, "table_type": kind, "key": key, "action_specs": specs, "data": []})
    for number, counter in enumerate(p4info.counters, 3000):
        key = [field(65556, "$COUNTER_INDEX", "uint32", match_type="Exact")]
        counted = data(field(65554, "$COUNTER_SPEC_PKTS", "uint64"), field(65553, "$COUNTER_SPEC_BYTES", "uint64"))
        name = f"pipe.{counter.preamble.name}"
        tables.append({"id": number, "name": name, "table_type": "Counter", "key": key, "data": counted})
    return json.dumps({"schema_version": "1.0.0", "tables": tables}).encode()


def device_info() -> bytes:
    """Tables that every device has, as far as the controller uses them; numbers and types as the SDE has them."""
    listed = {"repeated": True}
    tables = [
        (
            0xFF013001,
            "$pre.mgid",
            "PreMgid",
            field(1, "$MGID", "uint16"),
            data(
                field(1, "$MULTICAST_NODE_ID", "uint32", **listed),
                field(2, "$MULTICAST_NODE_L1_XID_VALID", "bool", **listed),
                field(3, "$MULTICAST_NODE_L1_XID", "uint16", **listed),
            ),
        ),
        (
            0xFF013002,
            "$pre.node",
            "PreNode",
            field(1, "$MULTICAST_NODE_ID", "uint32"),
            data(
                field(1, "$MULTICAST_RID", "uint16"),
                field(2, "$MULTICAST_LAG_ID", "uint8", **listed),
                field(3, "$DEV_PORT", "uint32", **listed),
            ),
        ),
        (
            0xFF003001,
            "$PORT",
            "PortConfigure",
            field(1, "$DEV_PORT", "uint32"),
            data(
                field(1, "$SPEED", "string"),
                field(2, "$FEC", "string"),
                field(4, "$PORT_ENABLE", "bool"),
                field(5, "$AUTO_NEGOTIATION", "string"),
                field(25, "$PORT_UP", "bool"),
            ),
        ),
        (
            0xFF003005,
            "$PORT_STR_INFO",
            "PortStrInfo",
            field(1, "$PORT_NAME", "string"),
            data(field(1, "$DEV_PORT", "uint32")),
        ),
    ]
    return json.dumps(
        {
            "tables": [
                {"id": number, "name": name, "table_type": kind, "key": [key | {"match_type": "Exact"}], "data": values}
                for number, name, kind, key, values in tables
            ]
        }
    ).encode()
