"""Requests that test_beside_pi.py sends to two servers, for router.py's program: name, write or read, text."""

from __future__ import annotations


def table(kind: str, number: int, match: str, action: str = "", more: str = "") -> str:
    """An update of a table entry."""
    done = f"action {{ action {{ {action} }} }}" if action else ""
    return (
        f"updates {{ type: {kind} entity {{ table_entry {{ table_id: {33554432 + number} {match} {done} {more} }} }} }}"
    )


def engine(kind: str, entry: str) -> str:
    """An update of a group or a session."""
    return f"updates {{ type: {kind} entity {{ packet_replication_engine_entry {{ {entry} }} }} }}"


MARK = 'action_id: 16777220 params { param_id: 1 value: "\\x09" }'
SEND = 'action_id: 16777217 params { param_id: 1 value: "\\x03" }'
ONE = 'match { field_id: 1 exact { value: "\\x01" } }'
TWO = 'match { field_id: 1 exact { value: "\\x02" } }'
TERNARY = 'match { field_id: 1 ternary { value: "\\x10" mask: "\\xf0" } }'
GROUP = "multicast_group_entry { multicast_group_id: 3 replicas { egress_port: 1 instance: 1 } }"
SESSION = "clone_session_entry { session_id: 4 replicas { egress_port: 1 instance: 1 } }"


W, R = "write", "read"
REPLICA = "replicas { egress_port: 1 instance: 1 }"
FIRST = "index { index: 1 }"


def changed(entity: str, kind: str) -> str:
    """An update of any entity."""
    return f"updates {{ type: {kind} entity {{ {entity} }} }}"


def counter(kind: str, index: int, data: str) -> str:
    """An update of one cell."""
    return changed(f"counter_entry {{ counter_id: 302055425 index {{ index: {index} }} data {{ {data} }} }}", kind)


def e(kind: str) -> str:
    """A read of one kind."""
    return f"entities {{ {kind} }}"


CASES = [
    ("insert", W, table("INSERT", 1, ONE, MARK)),
    ("insert again", W, table("INSERT", 1, ONE, MARK)),
    ("modify", W, table("MODIFY", 1, ONE, MARK)),
    ("modify absent", W, table("MODIFY", 1, TWO, MARK)),
    ("delete absent", W, table("DELETE", 1, TWO)),
    ("delete with an action", W, table("DELETE", 1, TWO, MARK)),
    ("no such table", W, table("INSERT", 77, ONE, MARK)),
    ("no match", W, table("INSERT", 1, "", MARK)),
    ("field twice", W, table("INSERT", 1, ONE + TWO, MARK)),
    (
        "another kind of match",
        W,
        table("INSERT", 1, 'match { field_id: 1 lpm { value: "\\x01" prefix_len: 8 } }', MARK),
    ),
    ("no such field", W, table("INSERT", 1, 'match { field_id: 7 exact { value: "\\x01" } }', MARK)),
    ("empty value", W, table("INSERT", 1, 'match { field_id: 1 exact { value: "" } }', MARK)),
    ("empty value deleted", W, table("DELETE", 1, 'match { field_id: 1 exact { value: "\\x00" } }')),
    ("wide value", W, table("INSERT", 1, 'match { field_id: 1 exact { value: "\\x01\\x01" } }', MARK)),
    ("leading zero", W, table("INSERT", 1, 'match { field_id: 1 exact { value: "\\x00\\x02" } }', MARK)),
    ("delete it", W, table("DELETE", 1, TWO)),
    ("no action", W, table("INSERT", 1, TWO)),
    ("action of another table", W, table("INSERT", 1, TWO, SEND)),
    ("no such action", W, table("INSERT", 1, TWO, "action_id: 16777999")),
    ("no parameter", W, table("INSERT", 1, TWO, "action_id: 16777220")),
    ("a parameter twice", W, table("INSERT", 1, TWO, MARK + ' params { param_id: 1 value: "\\x09" }')),
    ("a parameter too many", W, table("INSERT", 1, TWO, MARK + ' params { param_id: 2 value: "\\x09" }')),
    ("wide parameter", W, table("INSERT", 1, TWO, 'action_id: 16777220 params { param_id: 1 value: "\\x09\\x09" }')),
    ("priority in an exact table", W, table("INSERT", 1, TWO, MARK, "priority: 1")),
    ("no kind of update", W, table("UNSPECIFIED", 1, TWO, MARK)),
    ("lpm too long", W, table("INSERT", 2, 'match { field_id: 1 lpm { value: "\\x01" prefix_len: 9 } }', MARK)),
    ("lpm of 0", W, table("INSERT", 2, 'match { field_id: 1 lpm { value: "\\x00" prefix_len: 0 } }', MARK)),
    (
        "lpm beyond the prefix",
        W,
        table("INSERT", 2, 'match { field_id: 1 lpm { value: "\\x01" prefix_len: 4 } }', MARK),
    ),
    ("lpm", W, table("INSERT", 2, 'match { field_id: 1 lpm { value: "\\x10" prefix_len: 4 } }', MARK)),
    ("lpm any", W, table("INSERT", 2, "", MARK)),
    ("full", W, table("INSERT", 2, 'match { field_id: 1 lpm { value: "\\x20" prefix_len: 4 } }', MARK)),
    ("ternary without priority", W, table("INSERT", 3, TERNARY, SEND)),
    ("ternary", W, table("INSERT", 3, TERNARY, SEND, "priority: 3")),
    ("ternary of another priority", W, table("INSERT", 3, TERNARY, SEND, "priority: 4")),
    ("negative priority", W, table("INSERT", 3, TERNARY, SEND, "priority: -4")),
    (
        "mask of 0",
        W,
        table("INSERT", 3, 'match { field_id: 1 ternary { value: "\\x00" mask: "\\x00" } }', SEND, "priority: 1"),
    ),
    (
        "value beyond the mask",
        W,
        table("INSERT", 3, 'match { field_id: 1 ternary { value: "\\x03" mask: "\\x01" } }', SEND, "priority: 1"),
    ),
    (
        "range upside down",
        W,
        table("INSERT", 3, 'match { field_id: 2 range { low: "\\x03" high: "\\x01" } }', SEND, "priority: 1"),
    ),
    (
        "range of all",
        W,
        table("INSERT", 3, 'match { field_id: 2 range { low: "\\x00" high: "\\xff" } }', SEND, "priority: 1"),
    ),
    ("range", W, table("INSERT", 3, 'match { field_id: 2 range { low: "\\x03" high: "\\x05" } }', SEND, "priority: 1")),
    ("action of defaults only", W, table("INSERT", 3, "", "action_id: 16777219", "priority: 9")),
    ("default", W, table("MODIFY", 1, "", MARK, "is_default_action: true")),
    ("default inserted", W, table("INSERT", 1, "", MARK, "is_default_action: true")),
    ("default deleted", W, table("DELETE", 1, "", "", "is_default_action: true")),
    ("default with a match", W, table("MODIFY", 1, ONE, MARK, "is_default_action: true")),
    ("default unset", W, table("MODIFY", 1, "", "", "is_default_action: true")),
    ("idle in a table that does not age", W, table("INSERT", 1, TWO, MARK, "idle_timeout_ns: 1000000")),
    ("metadata", W, table("INSERT", 1, TWO, MARK, 'metadata: "m" controller_metadata: 7')),
    ("counter data", W, table("MODIFY", 1, ONE, MARK, "counter_data { packet_count: 7 byte_count: 9 }")),
    (
        "meter where there is none",
        W,
        table("MODIFY", 1, ONE, MARK, "meter_config { cir: 1 cburst: 1 pir: 1 pburst: 1 }"),
    ),
    ("counter data where there is none", W, table("MODIFY", 2, "", MARK, "counter_data { packet_count: 7 }")),
    (
        "direct counter",
        W,
        changed(
            f"direct_counter_entry {{ table_entry {{ table_id: 33554433 {ONE} }} data {{ packet_count: 5 }} }}",
            "MODIFY",
        ),
    ),
    (
        "direct counter inserted",
        W,
        changed(
            f"direct_counter_entry {{ table_entry {{ table_id: 33554433 {ONE} }} data {{ packet_count: 5 }} }}",
            "INSERT",
        ),
    ),
    (
        "counter",
        W,
        counter("MODIFY", 2, "packet_count: 3 byte_count: 4"),
    ),
    (
        "counter inserted",
        W,
        counter("INSERT", 2, "packet_count: 3"),
    ),
    (
        "counter beyond",
        W,
        counter("MODIFY", 9, "packet_count: 3"),
    ),
    (
        "counter negative",
        W,
        counter("MODIFY", -1, "packet_count: 3"),
    ),
    (
        "no such counter",
        W,
        "updates { type: MODIFY entity { counter_entry { counter_id: 302055999 index { index: 1 } } } }",
    ),
    ("no such meter", W, "updates { type: MODIFY entity { meter_entry { meter_id: 335544321 index { index: 1 } } } }"),
    (
        "register",
        W,
        changed(f'register_entry {{ register_id: 369098753 {FIRST} data {{ bitstring: "\\x05" }} }}', "MODIFY"),
    ),
    ("group", W, engine("INSERT", GROUP)),
    ("group again", W, engine("INSERT", GROUP)),
    ("group modified", W, engine("MODIFY", GROUP)),
    ("group 0", W, engine("INSERT", "multicast_group_entry { replicas { egress_port: 1 } }")),
    ("group absent", W, engine("MODIFY", "multicast_group_entry { multicast_group_id: 9 }")),
    ("group deleted absent", W, engine("DELETE", "multicast_group_entry { multicast_group_id: 9 }")),
    (
        "same replica twice",
        W,
        engine(
            "INSERT",
            f"multicast_group_entry {{ multicast_group_id: 8 {REPLICA} {REPLICA} }}",
        ),
    ),
    ("session", W, engine("INSERT", SESSION)),
    ("session again", W, engine("INSERT", SESSION)),
    ("session modified", W, engine("MODIFY", SESSION)),
    ("session 0", W, engine("INSERT", "clone_session_entry { replicas { egress_port: 1 instance: 1 } }")),
    (
        "session absent",
        W,
        engine("MODIFY", "clone_session_entry { session_id: 9 replicas { egress_port: 1 instance: 1 } }"),
    ),
    ("session of no replica", W, engine("INSERT", "clone_session_entry { session_id: 10 }")),
    (
        "session truncated",
        W,
        engine(
            "INSERT",
            "clone_session_entry { session_id: 11 packet_length_bytes: 20 replicas { egress_port: 1 instance: 1 } }",
        ),
    ),
    (
        "session of a large number",
        W,
        engine("INSERT", "clone_session_entry { session_id: 40000 replicas { egress_port: 1 instance: 1 } }"),
    ),
    (
        "member of no profile",
        W,
        "updates { type: INSERT entity { action_profile_member { action_profile_id: 285212673 member_id: 1 } } }",
    ),
    (
        "group of no profile",
        W,
        "updates { type: INSERT entity { action_profile_group { action_profile_id: 285212673 group_id: 1 } } }",
    ),
    ("digest absent", W, "updates { type: INSERT entity { digest_entry { digest_id: 385875969 } } }"),
    ("value set absent", W, "updates { type: MODIFY entity { value_set_entry { value_set_id: 50331649 } } }"),
    ("extern", W, "updates { type: MODIFY entity { extern_entry { extern_type_id: 1 } } }"),
    ("no entity", W, "updates { type: INSERT }"),
    ("nothing", W, ""),
    (
        "two, one bad",
        W,
        table("INSERT", 1, 'match { field_id: 1 exact { value: "\\x20" } }', MARK) + table("INSERT", 1, ONE, MARK),
    ),
    ("read tables", R, e("table_entry { }")),
    ("read table", R, e("table_entry { table_id: 33554433 }")),
    ("read an entry", R, e(f"table_entry {{ table_id: 33554433 {ONE} }}")),
    ("read an absent entry", R, e('table_entry { table_id: 33554433 match { field_id: 1 exact { value: "\\x77" } } }')),
    ("read with counters", R, e(f"table_entry {{ table_id: 33554433 {ONE} counter_data {{ }} }}")),
    ("read by priority", R, e("table_entry { table_id: 33554435 priority: 3 }")),
    ("read ternary", R, e(f"table_entry {{ table_id: 33554435 {TERNARY} priority: 4 }}")),
    ("read by action", R, e("table_entry { table_id: 33554435 action { action { action_id: 16777217 } } }")),
    ("read default", R, e("table_entry { table_id: 33554433 is_default_action: true }")),
    ("read defaults", R, e("table_entry { is_default_action: true }")),
    ("read default of t", R, e("table_entry { table_id: 33554435 is_default_action: true }")),
    ("read no such table", R, e("table_entry { table_id: 33554499 }")),
    ("read counter", R, e("counter_entry { counter_id: 302055425 index { index: 2 } }")),
    ("read counter cells", R, e("counter_entry { counter_id: 302055425 }")),
    ("read counters", R, e("counter_entry { }")),
    ("read counter beyond", R, e("counter_entry { counter_id: 302055425 index { index: 9 } }")),
    ("read direct", R, e(f"direct_counter_entry {{ table_entry {{ table_id: 33554433 {ONE} }} }}")),
    ("read direct of a table", R, e("direct_counter_entry { table_entry { table_id: 33554433 } }")),
    ("read direct of all", R, e("direct_counter_entry { table_entry { } }")),
    ("read direct of none", R, e("direct_counter_entry { }")),
    ("read register", R, e("register_entry { register_id: 369098753 index { index: 1 } }")),
    ("read meters", R, e("meter_entry { }")),
    ("read direct meters", R, e("direct_meter_entry { }")),
    ("read group", R, e("packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 3 } }")),
    ("read groups", R, e("packet_replication_engine_entry { multicast_group_entry { } }")),
    ("read absent group", R, e("packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 99 } }")),
    ("read session", R, e("packet_replication_engine_entry { clone_session_entry { session_id: 4 } }")),
    ("read sessions", R, e("packet_replication_engine_entry { clone_session_entry { } }")),
    ("read engine", R, e("packet_replication_engine_entry { }")),
    ("read members", R, e("action_profile_member { }")),
    ("read groups of members", R, e("action_profile_group { }")),
    ("read digests", R, e("digest_entry { }")),
    ("read value sets", R, e("value_set_entry { }")),
    (
        "counters all",
        W,
        "updates { type: MODIFY entity { counter_entry { counter_id: 302055425 data { packet_count: 0 } } } }",
    ),
    ("read absent session", R, e("packet_replication_engine_entry { clone_session_entry { session_id: 99 } }")),
    ("read no entity", R, "entities { }"),
    ("read nothing", R, ""),
]
