"""The way of a packet: parsing, stacks, registers, copies, checksums, and the output."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fanin.errors import PacketError
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.replication import MirrorSession, Replica
from fanin.switch.p4.tables import Match
from tests.p4.bmv2 import (
    action,
    call,
    data,
    extract,
    field,
    go,
    named,
    number,
    operation,
    program,
    start,
    state,
    table,
    to_port,
)

BYTE = [["v", 8]]
INSTANCE = field("standard_metadata", "instance_type")


def acting(*primitives: dict[str, Any], egress: tuple[dict[str, Any], ...] = (), **more: Any) -> V1Switch:
    """Reads two bytes `x.v` and `y.v`, does `primitives` in ingress and `egress` in egress, emits both."""
    body: dict[str, Any] = {
        "types": {"byte_t": BYTE},
        "headers": {"x": "byte_t", "y": "byte_t"},
        "states": [state("start", [extract("x"), extract("y")])],
        "actions": [action("a", *primitives), action("b", *egress)],
        "ingress": [table("t", ["a"], default=(0, ()))],
        "egress": [table("u", ["b"], default=(1, ()))],
    }
    return start(program(**(body | more)))


# --- parsing ---


def test_a_short_packet_stops_the_parser_with_the_error_that_the_program_sees() -> None:
    switch = acting(call("assign", field("x", "v"), field("standard_metadata", "parser_error")), to_port(1))
    assert switch.process(0, b"\7\7", 0.0) == [(1, b"\0\7")]
    assert switch.process(0, b"\7", 0.0) == [(1, b"\1")]
    assert switch.process(0, b"", 0.0) == [(1, b"")]


def test_what_the_parser_does_not_read_is_carried_along() -> None:
    assert acting(to_port(3)).process(0, bytes(range(9)), 0.0) == [(3, bytes(range(9)))]


def test_states_are_chosen_by_value_mask_and_lookahead() -> None:
    key = [field("x", "v"), {"type": "lookahead", "value": [4, 4]}]
    states = [
        state("start", [extract("x")], key, [go(0x0107, "more"), go(0x8000, "more", 0x8000), go(None, None)]),
        state("more", [extract("y")]),
    ]
    valid = operation("b2d", None, operation("valid", None, named("header", "y")))
    switch = acting(call("assign", field("x", "v"), valid), to_port(1), states=states)
    for given, expected in ((b"\x01\x17", 1), (b"\x01\x18", 0), (b"\x91\x00", 1), (b"\x02\x07", 0)):
        assert switch.process(0, given, 0.0)[0][1][0] == expected


def test_value_sets_take_part_in_the_choice() -> None:
    member = {"type": "parse_vset", "value": "pv", "mask": None, "next_state": "more"}
    states = [
        state("start", [extract("x")], [field("x", "v")], [member, go(None, None)]),
        state("more", [extract("y"), call("set", field("y", "v"), number(9))]),
    ]
    switch = acting(to_port(1), states=states, parse_vsets=[{"name": "pv", "id": 0, "compressed_bitwidth": 8}])
    assert switch.process(0, b"\x05\x06", 0.0) == [(1, b"\x05\x06")]
    switch.program.value_sets["pv"].values.add(5)
    assert switch.process(0, b"\x05\x06", 0.0) == [(1, b"\x05\x09")]


def test_a_failed_verify_stops_with_the_programs_own_error() -> None:
    states = [
        state(
            "start",
            [extract("x"), call("verify", operation("==", field("x", "v"), number(1)), number(4)), extract("y")],
        )
    ]
    switch = acting(
        call("assign", field("x", "v"), field("standard_metadata", "parser_error")), to_port(1), states=states
    )
    assert switch.process(0, b"\x01\x02", 0.0) == [(1, b"\0\2")]
    assert switch.process(0, b"\x02\x02", 0.0) == [(1, b"\4\2")]


def test_a_parser_that_reads_nothing_for_ever_loses_the_packet() -> None:
    switch = acting(to_port(1), states=[state("start", [], [field("x", "v")], [go(0, "start"), go(None, None)])])
    with pytest.raises(PacketError, match="states"):
        switch.process(0, b"", 0.0)


def test_headers_of_variable_length_come_and_go_with_their_length() -> None:
    switch = acting(
        to_port(1),
        types={"byte_t": BYTE, "options_t": [["kind", 4], ["more", 4], ["bytes", "*"], ["end", 8]]},
        headers={"x": "byte_t", "y": "byte_t", "o": "options_t"},
        states=[
            state(
                "start",
                [
                    extract("x"),
                    call("extract_VL", named("regular", "o"), operation("*", field("x", "v"), number(8))),
                    extract("y"),
                ],
            )
        ],
        emitted=["x", "y", "o"],
    )
    packet = b"\x03\x5aabcE" + b"yrest"
    assert switch.process(0, packet, 0.0) == [(1, b"\x03y\x5aabcErest")]
    assert switch.process(0, b"\x00\x5aEy", 0.0) == [(1, b"\x00y\x5aE")]


# --- stacks ---


def stacked(*primitives: dict[str, Any]) -> V1Switch:
    """Reads bytes onto a stack of three until one is below 0x80."""
    again = [go(0x80, "start", 0x80), go(None, None)]
    return start(
        program(
            types={"byte_t": BYTE},
            headers={"s0": "byte_t", "s1": "byte_t", "s2": "byte_t"},
            stacks={"s": ("byte_t", ["s0", "s1", "s2"])},
            states=[state("start", [extract("s", "stack")], [{"type": "stack_field", "value": ["s", "v"]}], again)],
            actions=[action("a", *primitives, to_port(1))],
            ingress=[table("t", ["a"], default=(0, ()))],
        )
    )


@pytest.mark.parametrize(
    ("op", "count", "given", "expected"),
    [
        ("pop", 1, b"\x81\x82\x03.", b"\x82\x03."),
        ("pop", 5, b"\x81\x82\x03.", b"."),
        ("push", 1, b"\x81\x02.", b"\x81\x02."),
        ("push", 2, b"\x81\x82\x03.", b"\x81."),
    ],
)
def test_push_and_pop(op: str, count: int, given: bytes, expected: bytes) -> None:
    assert stacked(call(op, named("header_stack", "s"), number(count))).process(0, given, 0.0) == [(1, expected)]


def test_the_last_element_of_a_stack_can_be_copied_whole_in_the_parser() -> None:
    last = {"type": "stack_field", "value": ["s", "last"]}
    copied = {"op": "primitive", "parameters": [call("assign_header", named("header", "m"), last)]}
    again, key = [go(0x80, "start", 0x80), go(None, None)], {"type": "stack_field", "value": ["s", "v"]}
    switch = start(
        program(
            types={"byte_t": BYTE},
            headers={"s0": "byte_t", "s1": "byte_t", "m": "byte_t"},
            stacks={"s": ("byte_t", ["s0", "s1"])},
            states=[state("start", [extract("s", "stack"), copied], [key], again)],
            actions=[action("a", to_port(1))],
            ingress=[table("t", ["a"], default=(0, ()))],
            emitted=["m"],
        )
    )
    assert switch.process(0, b"\x81\x02.", 0.0) == [(1, b"\x02.")]


def test_a_full_stack_stops_the_parser() -> None:
    assert stacked().process(0, b"\x81\x82\x83\x84.", 0.0) == [(1, b"\x81\x82\x83\x84.")]


def test_elements_are_found_by_an_index_of_the_packets() -> None:
    chosen = operation("dereference_header_stack", named("header_stack", "s"), field("s0", "v"))
    element = {"type": "expression", "value": {"op": "access_field", "left": chosen, "right": 0}}
    switch = stacked(call("assign", {"type": "expression", "value": element}, number(0x55)))
    assert switch.process(0, b"\x00.", 0.0) == [(1, b"\x55.")]
    with pytest.raises(PacketError, match="element"):
        switch.process(0, b"\x07.", 0.0)


def test_the_validity_of_an_element_that_the_packet_chooses_is_a_field_of_it() -> None:
    chosen = operation("dereference_header_stack", named("header_stack", "s"), field("s0", "v"))
    switch = stacked(call("assign", field("s0", "v"), {"type": "field", "value": [chosen["value"], "$valid$"]}))
    assert switch.process(0, b"\x00.", 0.0) == [(1, b"\x01.")]
    assert switch.process(0, b"\x02.", 0.0) == [(1, b"\x00.")]
    with pytest.raises(PacketError, match="element"):
        switch.process(0, b"\x07.", 0.0)


def test_a_key_may_be_a_field_of_an_element_that_the_packet_chooses() -> None:
    chosen = operation(
        "dereference_header_stack", named("header_stack", "s"), operation("&", field("s0", "v"), number(1))
    )
    keyed = table("t", ["one", "none"], [("exact", "s0", "v")], default=(1, ()))
    keyed["key"][0] |= {
        "name": "s[s[0].v].v",
        "target": {"type": "expression", "value": {"op": "access_field", "left": chosen, "right": 0}},
    }
    switch = start(
        program(
            types={"byte_t": BYTE},
            headers={"s0": "byte_t", "s1": "byte_t"},
            stacks={"s": ("byte_t", ["s0", "s1"])},
            states=[state("start", [extract("s", "stack"), extract("s", "stack")])],
            actions=[action("one", to_port(1)), action("none", to_port(2))],
            ingress=[keyed],
        )
    )
    switch.program.tables["t"].insert((Match(0x81),), 0, "one", ())
    assert [switch.process(0, each, 0.0)[0][0] for each in (b"\x81\x05", b"\x80\x81", b"\x85\x81")] == [2, 2, 1]


# --- actions ---


def test_registers_keep_their_value_and_ignore_what_lies_beyond() -> None:
    registers = [{"name": "r", "id": 0, "size": 3, "bitwidth": 8}]
    register = named("register_array", "r")
    switch = acting(
        call("register_read", field("y", "v"), register, field("x", "v")),
        call("register_write", register, field("x", "v"), operation("+", field("y", "v"), number(200))),
        to_port(1),
        register_arrays=registers,
    )
    assert [switch.process(0, bytes([at, 9]), 0.0)[0][1][1] for at in (2, 2, 2, 1, 3, 3)] == [0, 200, 144, 0, 9, 9]
    assert list(switch.program.registers["r"].cells) == [0, 200, (200 * 3) & 0xFF]


def test_conditions_in_an_action_are_jumps() -> None:
    switch = acting(
        call("_jump_if_zero", field("x", "v"), number(3)),
        call("assign", field("y", "v"), number(1)),
        call("_jump", number(4)),
        call("assign", field("y", "v"), number(2)),
        to_port(1),
    )
    assert switch.process(0, b"\0\0", 0.0) == [(1, b"\0\2")]
    assert switch.process(0, b"\5\0", 0.0) == [(1, b"\5\1")]


def compare(op: str, left: Any, right: Any) -> Any:
    return operation("b2d", None, operation(op, left, right))


def test_loops_in_an_action_are_jumps_back() -> None:
    """for (i = 0; i < x; i++) { if (i == 3) continue; if (i == 9) break; for (j = 0; j < i; j++) y++; }"""
    i, j, x, y = field("m", "i"), field("m", "j"), field("x", "v"), field("y", "v")
    switch = acting(
        call("assign", i, number(0)),
        call("_jump_if_zero", compare("<", i, x), number(13)),
        call("_jump_if_zero", compare("==", i, number(3)), number(4)),
        call("_jump", number(11)),
        call("_jump_if_zero", compare("==", i, number(9)), number(6)),
        call("_jump", number(13)),
        call("assign", j, number(0)),
        call("_jump_if_zero", compare("<", j, i), number(11)),
        call("assign", y, operation("+", y, number(1))),
        call("assign", j, operation("+", j, number(1))),
        call("_jump", number(7)),
        call("assign", i, operation("+", i, number(1))),
        call("_jump", number(1)),
        to_port(1),
        types={"byte_t": [["v", 8]], "m_t": [["i", 8], ["j", 8]]},
        headers={"x": "byte_t", "y": "byte_t", "m": "m_t"},
        metadata=["m"],
    )
    assert switch.runs_natively
    for count in (0, 1, 2, 5, 9, 200):
        expected = sum(turn for turn in range(min(count, 9)) if turn != 3)
        assert switch.process(0, bytes([count, 5]), 0.0) == [(1, bytes([count, 5 + expected]))], count


def test_a_loop_without_an_end_loses_its_packet_and_no_other() -> None:
    """The loop is `while (x != 0) {}`."""
    switch = acting(call("_jump_if_zero", field("x", "v"), number(2)), call("_jump", number(0)), to_port(1))
    with pytest.raises(PacketError, match="turns"):
        switch.process(0, b"\1\0", 0.0)
    assert switch.process(0, b"\0\0", 0.0) == [(1, b"\0\0")]


def test_exit_ends_the_pipeline_and_not_the_next_one() -> None:
    last = call("assign", field("y", "v"), number(7))
    switch = acting(
        actions=[action("a", to_port(1), call("exit")), action("b", last), action("c", to_port(2))],
        ingress=[table("t", ["a"], default=(0, ()), then="late"), table("late", ["c"], default=(2, ()))],
    )
    assert switch.process(0, b"\0\0", 0.0) == [(1, b"\0\7")]


def test_conditions_choose_the_next_table() -> None:
    condition = {
        "name": "n",
        "expression": operation("==", field("x", "v"), number(1)),
        "true_next": "late",
        "false_next": None,
    }
    switch = acting(
        actions=[action("a", to_port(1)), action("b"), action("c", to_port(2))],
        ingress=[table("t", ["a"], default=(0, ()), then="n"), table("late", ["c"], default=(2, ()))],
        conditionals=[condition],
    )
    assert [switch.process(0, bytes([at, 0]), 0.0)[0][0] for at in (0, 1)] == [1, 2]


def test_a_header_that_is_added_starts_as_zeros_and_counts_for_the_length() -> None:
    switch = acting(
        call("remove_header", named("header", "x")),
        call("add_header", named("header", "x")),
        call("remove_header", named("header", "y")),
        to_port(1),
        egress=(call("assign", field("x", "v"), field("standard_metadata", "packet_length")),),
    )
    assert switch.process(0, b"\7\7....", 0.0) == [(1, b"\5....")]


def test_members_of_a_union_exclude_each_other() -> None:
    switch = acting(
        call("add_header", named("header", "y")),
        to_port(1),
        header_unions=[{"name": "u", "id": 0, "union_type": "u_t", "header_ids": [1, 2]}],
        states=[state("start", [extract("x")])],
    )
    assert switch.process(0, b"\7", 0.0) == [(1, b"\0")]


def test_a_union_that_is_written_as_a_header_of_its_type_has_its_members() -> None:
    switch = acting(
        call("add_header", named("header", "u.b")),
        call("assign", field("u.b", "v"), number(9)),
        to_port(1),
        headers={"u": "u_t"},
        header_union_types=[{"name": "u_t", "id": 0, "headers": [["a", "byte_t"], ["b", "byte_t"]]}],
        states=[state("start", [extract("u.a")])],
        metadata=["u"],
        emitted=["u.a", "u.b"],
    )
    assert switch.process(0, b"\7!", 0.0) == [(1, b"\x09!")], "u.a is no longer valid"


def test_indirect_counters_count_packets_and_bytes() -> None:
    switch = acting(
        call("count", named("counter_array", "c"), field("x", "v")),
        to_port(1),
        counter_arrays=[{"name": "c", "id": 0, "size": 2, "is_direct": False}],
    )
    for packet in (b"\1\0...", b"\1\0", b"\2\0"):
        switch.process(0, packet, 0.0)
    counter = switch.program.counters["c"]
    assert (list(counter.packets), list(counter.bytes)) == ([0, 2], [0, 7])


# --- copies ---


def test_a_multicast_sends_a_copy_per_replica_with_its_number() -> None:
    group = field("standard_metadata", "mcast_grp")
    switch = acting(
        call("assign", group, field("x", "v")),
        egress=(call("assign", field("y", "v"), field("standard_metadata", "egress_rid")),),
    )
    switch.groups[4] = (Replica(3, 30), Replica(2, 20), Replica(3, 31))
    assert switch.process(0, b"\4\0!", 0.0) == [(3, b"\4\x1e!"), (2, b"\4\x14!"), (3, b"\4\x1f!")]
    assert switch.process(0, b"\5\0!", 0.0) == []


def test_a_dropped_packet_is_no_multicast_either() -> None:
    switch = acting(
        call("assign", field("standard_metadata", "mcast_grp"), number(1)),
        call("mark_to_drop", named("header", "standard_metadata")),
    )
    switch.groups[1] = (Replica(1, 1),)
    assert switch.process(0, b"\0\0", 0.0) == []
    assert switch.tally.dropped == 1


def test_a_copy_of_the_metadata_that_is_marked_to_drop_and_copied_back_drops_the_packet() -> None:
    # p4c's output for `action my_drop(inout standard_metadata_t s) { mark_to_drop(s); }`.
    original, copy = named("header", "standard_metadata"), named("header", "s")
    switch = acting(
        to_port(2),
        call("assign", field("standard_metadata", "mcast_grp"), number(1)),
        call("assign_header", copy, original),
        call("mark_to_drop", copy),
        call("assign_header", original, copy),
        headers={"x": "byte_t", "y": "byte_t", "s": "standard_metadata"},
        metadata=("s",),
    )
    switch.groups[1] = (Replica(1, 1),)
    assert switch.process(0, b"\0\0", 0.0) == []
    assert switch.tally.dropped == 1


def test_a_copy_of_the_metadata_that_is_marked_to_drop_and_forgotten_drops_nothing() -> None:
    original, copy = named("header", "standard_metadata"), named("header", "s")
    switch = acting(
        to_port(2),
        call("assign_header", copy, original),
        call("mark_to_drop", copy),
        headers={"x": "byte_t", "y": "byte_t", "s": "standard_metadata"},
        metadata=("s",),
    )
    assert switch.process(0, b"\0\0", 0.0) == [(2, b"\0\0")]


@pytest.mark.parametrize("more", [(), ({"type": "parameters_vector", "value": {}},)])
def test_a_log_message_may_have_no_values(more: tuple[Any, ...], caplog: pytest.LogCaptureFixture) -> None:
    switch = acting(call("log_msg", named("string", "seen"), *more), to_port(1))
    with caplog.at_level("INFO", logger="fanin.switch.p4"):
        assert switch.process(0, b"\0\0", 0.0) == [(1, b"\0\0")]
    assert "seen" in caplog.text


def test_an_ingress_clone_is_the_packet_that_came_in_with_the_fields_kept() -> None:
    fields = [{"id": 1, "name": "kept", "elements": [field("m", "v")]}]
    switch = acting(
        call("assign", field("m", "v"), number(9)),
        call("clone_ingress_pkt_to_egress", number(5), number(1)),
        call("assign", field("x", "v"), number(0xFF)),
        to_port(1),
        egress=(call("assign", field("y", "v"), operation("+", field("m", "v"), INSTANCE)),),
        headers={"x": "byte_t", "y": "byte_t", "m": "byte_t"},
        metadata=("m",),
        field_lists=fields,
    )
    assert switch.process(0, b"\1\2", 0.0) == [(1, b"\xff\x09")]
    switch.mirrors[5] = MirrorSession((Replica(7, 0),), cut=1)
    assert sorted(switch.process(0, b"\1\2", 0.0)) == [(1, b"\xff\x09"), (7, b"\1")]


def test_resubmit_and_recirculate_start_over_once_each() -> None:
    first = operation("==", INSTANCE, number(0))
    jump = call("_jump_if_zero", operation("b2d", None, first), number(2))
    again = acting(
        jump,
        call("resubmit", number(1)),
        call("assign", field("y", "v"), INSTANCE),
        to_port(1),
        field_lists=[{"id": 1, "name": "none", "elements": []}],
    )
    assert again.process(0, b"\0\0", 0.0) == [(1, b"\0\6")]
    around = acting(
        to_port(1),
        egress=(
            call("assign", field("y", "v"), operation("+", field("y", "v"), number(1))),
            call("_jump_if_zero", operation("b2d", None, operation("<", field("y", "v"), number(3))), number(3)),
            call("recirculate", number(1)),
        ),
        field_lists=[{"id": 1, "name": "none", "elements": []}],
    )
    assert around.process(0, b"\0\0", 0.0) == [(1, b"\0\3")]


def test_a_packet_that_goes_in_circles_is_lost() -> None:
    switch = acting(call("resubmit", number(1)), field_lists=[{"id": 1, "name": "none", "elements": []}])
    with pytest.raises(PacketError, match="circles"):
        switch.process(0, b"\0\0", 0.0)
    assert switch.tally.failed == 1


@pytest.mark.parametrize("native", [True, False])
def test_a_clone_session_or_a_group_that_is_refused_is_not_kept(native: bool) -> None:
    switch = V1Switch.from_json(acting(to_port(1)).program.document, native=native)
    for cut in (-5, 1 << 40):
        with pytest.raises(ValueError, match="a clone of"):
            switch.mirrors[5] = MirrorSession((Replica(7, 0),), cut)
    for items, at, item in ((switch.mirrors, 1 << 15, MirrorSession(())), (switch.groups, 1 << 16, ())):
        with pytest.raises(ValueError, match="is not in 0"):
            items[at] = item  # type: ignore[assignment]
        assert dict(items) == {}


# --- checksums and hashes ---


IPV4 = bytes.fromhex("450000280001000040060000c0a80001c0a80002")


def checksummed() -> V1Switch:
    """Verifies and writes the checksum of an IPv4 header; port 2 when it was wrong."""
    inputs = [field("ip", name) for name in ("a", "b", "c")]
    checksum = {
        "name": "sum",
        "id": 0,
        "target": ["ip", "sum"],
        "type": "generic",
        "calculation": "calc",
        "if_cond": None,
    }
    return start(
        program(
            types={"ip_t": [["a", 64], ["b", 16], ["sum", 16], ["c", 64]]},
            headers={"ip": "ip_t"},
            states=[state("start", [extract("ip")])],
            actions=[
                action(
                    "a",
                    call(
                        "assign",
                        field("standard_metadata", "egress_spec"),
                        operation("+", field("standard_metadata", "checksum_error"), number(1)),
                    ),
                )
            ],
            ingress=[table("t", ["a"], default=(0, ()))],
            calculations=[{"name": "calc", "id": 0, "algo": "csum16", "input": inputs}],
            checksums=[{**checksum, "verify": True, "update": True}],
        )
    )


def test_ip_checksums_are_verified_and_written() -> None:
    correct = IPV4[:10] + b"\xf9\x7b" + IPV4[12:]
    assert sum(struct.unpack("!10H", correct)) % 0xFFFF == 0
    assert checksummed().process(0, IPV4, 0.0) == [(2, correct)]
    assert checksummed().process(0, correct, 0.0) == [(1, correct)]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("crc32", 0xCBF43926),
        ("crc16", 0xBB3D),
        ("crcCCITT", 0x29B1),
        ("identity", 0x3132333435363738),
        ("csum16", 0xFF ^ 0xF6 | 0x2A00),
        ("xor16", 0x3908),
    ],
)
def test_hashes_of_the_digits_one_to_nine(algorithm: str, expected: int) -> None:
    """The check values of the catalogues of CRCs; the others by hand."""
    digits = {"type": "hexstr", "value": "0x313233343536373839", "bitwidth": 72}
    switch = start(
        program(
            types={"out_t": [["v", 64]]},
            headers={"o": "out_t"},
            states=[state("start", [extract("o")])],
            actions=[
                action(
                    "a",
                    call(
                        "modify_field_with_hash_based_offset",
                        field("o", "v"),
                        number(0),
                        named("calculation", "calc"),
                        number(1 << 64),
                    ),
                    to_port(1),
                )
            ],
            ingress=[table("t", ["a"], default=(0, ()))],
            calculations=[{"name": "calc", "id": 0, "algo": algorithm, "input": [digits]}],
        )
    )
    ((_, answer),) = switch.process(0, bytes(8), 0.0)
    if algorithm != "csum16":
        assert int.from_bytes(answer, "big") == expected
    else:
        total = sum(struct.unpack("!5H", b"123456789\0"))
        assert int.from_bytes(answer, "big") == ~(total % 0xFFFF) & 0xFFFF


def test_random_numbers_come_from_whoever_runs_the_switch() -> None:
    switch = acting(call("modify_field_rng_uniform", field("y", "v"), number(10), number(20)), to_port(1))
    with pytest.raises(PacketError, match="random"):
        switch.process(0, b"\0\0", 0.0)
    asked = []

    def draw(limit: int) -> int:
        asked.append(limit)
        return 4

    switch.random = draw
    assert switch.process(0, b"\0\0", 0.0) == [(1, b"\0\x0e")]
    assert asked == [11]


def test_parameters_of_an_entry_reach_the_action() -> None:
    switch = acting(
        actions=[
            action(
                "a",
                call("assign", field("y", "v"), data(1)),
                call("assign", field("standard_metadata", "egress_spec"), data(0)),
                widths=(9, 8),
            ),
            action("b"),
        ],
        ingress=[table("t", ["a"], default=(0, (5, 77)))],
    )
    assert switch.process(0, b"\0\0", 0.0) == [(5, b"\0\x4d")]
