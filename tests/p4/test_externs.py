"""Meters, action profiles, digests, ageing and stacks of header unions: what becomes of packets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanin.errors import ProgramError, UnsupportedError
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.actions import TableError, Watch
from fanin.switch.p4.meters import GREEN, RED, YELLOW, Meter, MeterRates
from fanin.switch.p4.tables import Match
from tests.p4.bmv2 import action, call, data, extract, field, go, named, number, operation, program, state, table
from tests.p4.lockstep import LockstepSwitch

BYTE = [["v", 8]]
PORT = field("standard_metadata", "egress_spec")


def started(**more: Any) -> V1Switch:
    body: dict[str, Any] = {
        "types": {"byte_t": BYTE},
        "headers": {"x": "byte_t", "y": "byte_t"},
        "states": [state("start", [extract("x"), extract("y")])],
    }
    return LockstepSwitch.from_json(json.dumps(program(**(body | more))))


def sent(switch: V1Switch, *values: int, now: float = 0.0) -> list[tuple[int, bytes]]:
    return switch.process(1, bytes(values), now)


# --- meters ---


def test_a_meter_is_green_then_yellow_then_red_and_fills_again_with_time() -> None:
    meter = Meter()
    assert meter.colour(1, 0) == GREEN, "without rates"
    meter.set(MeterRates(committed=1, committed_burst=2, peak=2, peak_burst=4))
    assert [meter.colour(1, 1_000_000) for _ in range(5)] == [GREEN, GREEN, YELLOW, YELLOW, RED]
    assert [meter.colour(1, 2_000_000) for _ in range(3)] == [GREEN, YELLOW, RED]
    assert [meter.colour(1, 60_000_000) for _ in range(5)] == [GREEN, GREEN, YELLOW, YELLOW, RED]


def test_a_rate_that_is_no_whole_number_of_microseconds_loses_no_token() -> None:
    meter = Meter()
    meter.set(MeterRates(committed=3, committed_burst=1, peak=3, peak_burst=1))
    assert meter.colour(1, 0) == GREEN
    passed = sum(meter.colour(1, at) == GREEN for at in range(0, 100_000_001, 1000))
    assert passed == 300


METERS = [{"name": "m", "id": 0, "is_direct": False, "size": 4, "rate_count": 2, "type": "bytes"}]


def test_execute_meter_colours_by_the_bytes_that_came_in() -> None:
    colour = call("execute_meter", named("meter_array", "m"), field("x", "v"), field("y", "v"))
    switch = started(
        actions=[action("a", colour, call("assign", PORT, number(2)))],
        ingress=[table("t", ["a"], default=(0, ()))],
        meter_arrays=METERS,
    )
    assert switch.runs_natively
    assert sent(switch, 1, 9) == [(2, b"\1\0")]
    switch.program.meters["m"][1].set(MeterRates(0, 4, 0, 6))
    assert [sent(switch, 1, 9)[0][1][1] for _ in range(4)] == [GREEN, GREEN, YELLOW, RED]
    assert sent(switch, 2, 9) == [(2, b"\2\0")], "another cell"
    assert sent(switch, 4, 9) == [(2, b"\4\x09")], "beyond the end, the field stays as it is"


def direct() -> V1Switch:
    return started(
        actions=[action("a", call("assign", PORT, number(2))), action("n")],
        ingress=[table("t", ["a", "n"], [("exact", "x", "v")], direct_meters="d", default=(1, ()))],
        meter_arrays=[
            {
                "name": "d", "id": 0, "is_direct": True, "size": 4, "rate_count": 2, "type": "packets", "binding": "t",
                "result_target": ["y", "v"],
            }
        ],
    )  # fmt: skip


def test_a_direct_meter_colours_what_finds_its_entry_before_the_action_runs() -> None:
    switch = direct()
    entry = switch.program.tables["t"].insert((Match(5),), 0, "a", ())
    assert entry.meter is not None
    entry.meter.set(MeterRates(0, 1, 0, 2))
    assert [sent(switch, 5, 9) for _ in range(3)] == [[(2, bytes((5, each)))] for each in (GREEN, YELLOW, RED)]
    assert sent(switch, 6, 9) == [(0, b"\6\x09")], "a miss has no meter"


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"type": "frames"}, ProgramError, "'frames'"),
        ({"rate_count": 1}, UnsupportedError, "1 rates"),
        ({"size": 1 << 30}, ProgramError, "at most"),
    ],
)
def test_meters_that_are_none_are_refused(change: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        started(meter_arrays=[METERS[0] | change])


# --- action profiles ---


def indirect(*, selector: bool) -> V1Switch:
    """Table `t` on x through profile `p`; the selector hashes y, identity."""
    profile: dict[str, Any] = {"name": "p", "id": 0, "max_size": 4}
    if selector:
        profile["selector"] = {"algo": "identity", "input": [field("y", "v")]}
    document = program(
        types={"byte_t": BYTE},
        headers={"x": "byte_t", "y": "byte_t"},
        states=[state("start", [extract("x"), extract("y")])],
        actions=[
            action("to", call("assign", PORT, data(0)), widths=(9,)),
            action("on", call("assign", PORT, number(9))),
        ],
        ingress=[
            table(
                "t", ["to"], [("exact", "x", "v")], type="indirect_ws" if selector else "indirect", action_profile="p",
                then={"to": "after"},
            ),
            table("after", ["on"], [("exact", "y", "v")]),
        ],
    )  # fmt: skip
    document["pipelines"][0]["action_profiles"] = [profile]
    return LockstepSwitch.from_json(json.dumps(document))


def test_entries_share_a_members_action_and_follow_its_change() -> None:
    switch = indirect(selector=False)
    profile, t = switch.program.profiles["p"], switch.program.tables["t"]
    profile.insert_member(7, "to", (3,))
    for value in (1, 2):
        t.insert((Match(value),), 0, "", (), profile.member(7))
    assert [sent(switch, value, 0) for value in (1, 2, 3)] == [[(3, b"\1\0")], [(3, b"\2\0")], [(0, b"\3\0")]]
    profile.modify_member(7, "to", (4,))
    assert sent(switch, 2, 0) == [(4, b"\2\0")]
    switch.program.tables["after"].insert((Match(8),), 0, "on", ())
    assert sent(switch, 2, 8) == [(9, b"\2\x08")], "what comes after is the member's action's"
    assert switch.runs_natively
    with pytest.raises(TableError, match="in use"):
        profile.delete_member(7, used=True)
    with pytest.raises(TableError, match="no selector"):
        profile.insert_group(1, {7: 1}, 0)


def test_a_group_spreads_packets_by_the_hash_and_the_weights() -> None:
    switch = indirect(selector=True)
    profile, t = switch.program.profiles["p"], switch.program.tables["t"]
    profile.insert_member(2, "to", (12,))
    profile.insert_member(1, "to", (11,))
    profile.insert_group(5, {2: 1, 1: 2}, 4)
    t.insert((Match(1),), 0, "", (), profile.group(5))
    assert [sent(switch, 1, value)[0][0] for value in range(6)] == [11, 11, 12, 11, 11, 12]
    profile.modify_group(5, {2: 1})
    assert [sent(switch, 1, value)[0][0] for value in range(2)] == [12, 12]
    profile.modify_group(5, {})
    assert sent(switch, 1, 0) == [(0, b"\1\0")]
    for wrong, said in (({1: 5}, "room for weights of 4"), ({3: 1}, "no member 3"), ({1: 0}, "weights are")):
        with pytest.raises(TableError, match=said):
            profile.modify_group(5, wrong)


def test_a_member_is_left_out_while_the_port_that_it_needs_is_down() -> None:
    switch = indirect(selector=True)
    profile, t = switch.program.profiles["p"], switch.program.tables["t"]
    for at in (1, 2, 3):
        profile.insert_member(at, "to", (10 + at,))
    profile.insert_group(5, {1: 1, 2: 2, 3: 1}, 4, {1: Watch(7), 2: Watch(8)})
    t.insert((Match(1),), 0, "", (), profile.group(5))

    def taken() -> list[int]:
        return [sent(switch, 1, value)[0][0] for value in range(4)]

    assert taken() == [11, 12, 12, 13]
    profile.down = frozenset({8, 9})
    assert taken() == [11, 13, 11, 13]
    profile.down = frozenset({7, 8})
    assert taken() == [13] * 4
    profile.modify_group(5, {1: 1, 2: 1}, {1: Watch(7), 2: Watch(8)})
    assert taken() == [0] * 4, "nobody is left: nothing is done"
    profile.down = frozenset()
    assert taken() == [11, 12, 11, 12]


def test_a_profile_has_as_many_members_as_it_says() -> None:
    profile = indirect(selector=True).program.profiles["p"]
    for at in range(4):
        profile.insert_member(at + 1, "to", (at,))
    with pytest.raises(TableError, match="is full"):
        profile.insert_member(9, "to", (1,))
    with pytest.raises(TableError, match="no action 'on'"):
        profile.modify_member(1, "on", ())
    with pytest.raises(TableError, match="takes values of"):
        profile.modify_member(1, "to", (1 << 9,))


# --- digests and ageing ---


def test_a_digest_has_the_fields_as_they_are_at_the_end_of_ingress() -> None:
    learn = [{"id": 3, "name": "seen", "elements": [field("x", "v"), field("standard_metadata", "ingress_port")]}]
    switch = started(
        actions=[
            action("a", call("generate_digest", number(1), number(3)), call("assign", field("x", "v"), number(8))),
        ],
        ingress=[table("t", ["a"], default=(0, ()))],
        learn_lists=learn,
    )
    assert sent(switch, 1, 2)
    assert list(switch.digests) == [(3, (8, 1))]
    assert switch.runs_natively


def test_an_entry_of_a_table_that_ages_notes_when_it_was_found() -> None:
    switch = started(
        actions=[action("a")], ingress=[table("t", ["a"], [("exact", "x", "v")], support_timeout=True)]
    )  # fmt: skip
    entry = switch.program.tables["t"].insert((Match(1),), 0, "a", ())
    sent(switch, 1, 0, now=2.5)
    sent(switch, 2, 0, now=3.5)
    assert entry.used_us == 2_500_000


# --- stacks of header unions ---


def options(*primitives: dict[str, Any]) -> V1Switch:
    """Up to two options, each a byte with the top bit clear (`a`) or set and one more byte (`b`), until a zero."""
    document = program(
        types={"a_t": BYTE, "b_t": [["v", 8], ["w", 8]]},
        headers={"a0": "a_t", "b0": "b_t", "a1": "a_t", "b1": "b_t"},
        states=[
            state(
                "start", [], [{"type": "lookahead", "value": [0, 8]}],
                [go(0, None), go(0x80, "b", 0x80), go(None, "a")],
            ),
            state("a", [call("extract", {"type": "union_stack", "value": ["o", "a"]})], [
                {"type": "union_stack_field", "value": ["o", "a", "v"]}
            ], [go(1, None), go(None, "start")]),
            state("b", [call("extract", {"type": "union_stack", "value": ["o", "b"]})], [], [go(None, "start")]),
        ],
        actions=[action("act", *primitives, call("assign", PORT, number(1)))],
        ingress=[table("t", ["act"], default=(0, ()))],
        header_union_types=[{"name": "u_t", "id": 0, "headers": [["a", "a_t"], ["b", "b_t"]]}],
        header_unions=[
            {"name": f"o{at}", "id": at, "union_type": "u_t", "header_ids": [1 + 2 * at, 2 + 2 * at]} for at in (0, 1)
        ],
        header_union_stacks=[{"name": "o", "id": 0, "union_type": "u_t", "header_union_ids": [0, 1]}],
    )  # fmt: skip
    return V1Switch.from_json(json.dumps(document))


STACK = named("header_union_stack", "o")


def member(index: int, at: int) -> dict[str, Any]:
    union = operation("dereference_union_stack", STACK, number(index))
    return operation("access_union_header", union, at)  # type: ignore[arg-type]


def test_options_come_and_go_in_their_order() -> None:
    switch = options()
    for packet in (b"\x05\x06\x00", b"\x85\x06\x07\x00", b"\x81\x82\x83\x84\x00", b"\x01\x99", b"\x00"):
        assert switch.process(1, packet, 0.0) == [(1, packet)]
    assert switch.process(1, b"\x05\x06\x07\x08", 0.0) == [(1, b"\x05\x06\x07\x08")], "the third does not fit"
    assert switch.engine.endswith("stacks of header unions")


def test_a_member_that_becomes_valid_makes_the_others_invalid() -> None:
    switch = options(call("add_header", member(0, 1)))
    assert switch.process(1, b"\x05\x00", 0.0) == [(1, b"\x00\x00\x00")]
    assert switch.process(1, b"\x85\x06\x00", 0.0) == [(1, b"\x85\x06\x00")], "it is valid already"


def test_a_stack_of_unions_is_pushed_and_popped_with_all_members() -> None:
    assert options(call("pop", STACK, number(1))).process(1, b"\x05\x85\x86\x00", 0.0) == [(1, b"\x85\x86\x00")]
    assert options(call("push", STACK, number(1))).process(1, b"\x05\x00", 0.0) == [(1, b"\x05\x00")]
    size = call("assign", {"type": "expression", "value": operation("access_field", member(0, 0), 0)["value"]},  # type: ignore[arg-type]
                operation("size_stack", None, STACK))  # fmt: skip
    assert options(size).process(1, b"\x05\x06\x00", 0.0) == [(1, b"\x02\x06\x00")]
    both = options(call("push", STACK, number(1)), call("assign_header", member(0, 0), member(1, 0)))
    assert both.process(1, b"\x05\x00", 0.0) == [(1, b"\x05\x05\x00")]
