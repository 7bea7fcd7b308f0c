"""Meters, digests and shared actions in both interpreters: random histories, each packet from the same state."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from fanin.switch.p4 import V1Switch
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.actions import TableError, Watch
from fanin.switch.p4.meters import MeterRates
from fanin.switch.p4.tables import Match, Table
from tests.p4.bmv2 import action, call, data, extract, field, named, number, program, state, table
from tests.p4.lockstep import LockstepSwitch

PORT = field("standard_metadata", "egress_spec")
STEPS = 250


def shared() -> V1Switch:
    """Two tables, `t` (exact) and then `u` (ternary), with one selector; actions `to`, `wide`, `stop` and `count`."""
    actions = [
        action("to", call("assign", PORT, data(0)), widths=(9,)),
        action("wide", call("assign", field("h", "z"), data(0)), call("assign", PORT, data(1)), widths=(96, 9)),
        action("stop", call("assign", PORT, number(5)), call("exit")),
        action("none"),
    ]
    then = {"to": "u", "wide": None, "stop": "u", "none": "u"}
    tables = [
        table("t", ["to", "wide", "stop", "none"], [("exact", "h", "x")], then=then, with_counters=True),
        table("u", ["to", "none"], [("ternary", "h", "y")]),
    ]
    for each in tables:
        each |= {"type": "indirect_ws", "action_profile": "p"}
    body = program(
        types={"h_t": [["x", 8], ["y", 8], ["z", 96]]},
        headers={"h": "h_t"},
        states=[state("start", [extract("h")])],
        actions=actions,
        ingress=tables,
        emitted=["h"],
    )
    selector = {"algo": "crc16", "input": [field("h", "x"), field("h", "z")]}
    body["pipelines"][0]["action_profiles"] = [{"name": "p", "id": 0, "max_size": 64, "selector": selector}]
    return LockstepSwitch.from_json(json.dumps(body))


def some_action(draw: random.Random) -> tuple[str, tuple[int, ...]]:
    return draw.choice(
        [("to", (draw.randrange(500),)), ("wide", (draw.getrandbits(96), 7)), ("stop", ()), ("none", ())]
    )


def change(profile: ActionProfile, tables: list[Table], draw: random.Random) -> None:
    """One thing that a control plane may do, refused or not."""
    chosen, at, member, group = draw.choice(tables), draw.randrange(6), draw.randrange(1, 6), draw.randrange(1, 4)
    matches = (Match(at),) if chosen.name == "t" else (Match(at, draw.choice((0xFF, 0x0F, 0))),)
    priority = 0 if chosen.name == "t" else draw.randrange(1, 9)
    weights = {each: draw.randint(1, 3) for each in profile.members if draw.random() < 0.6}
    watches = {each: Watch(draw.randrange(3)) for each in weights if draw.random() < 0.5}
    used = any(entry.target is not None for each in tables for entry in each)
    match draw.randrange(9):
        case 0:
            profile.insert_member(member, *some_action(draw))
        case 1:
            profile.modify_member(member, *some_action(draw))
        case 2:
            profile.delete_member(member, used)
        case 3:
            profile.insert_group(group, weights, 0, watches)
        case 4:
            profile.modify_group(group, weights, watches)
        case 5:
            chosen.delete(matches, priority)
        case 6:
            profile.down = frozenset(draw.sample(range(3), draw.randrange(3)))
        case _:
            target = profile.member(member) if draw.random() < 0.4 else profile.group(group)
            draw.choice((chosen.insert, chosen.modify))(matches, priority, "", (), target)


@pytest.mark.parametrize("seed", range(4))
def test_members_and_groups_that_change_while_packets_pass_change_for_both(seed: int) -> None:
    draw, switch, done = random.Random(seed), shared(), 0
    assert switch.runs_natively
    profile, tables = switch.program.profiles["p"], [switch.program.tables[name] for name in "tu"]
    for _ in range(STEPS):
        try:
            change(profile, tables, draw)
            done += 1
        except TableError:
            pass
        frame = bytes((draw.randrange(6), draw.randrange(6))) + draw.randbytes(12)
        switch.process(1, frame, 0.0)
    assert done > STEPS // 4
    assert sum(entry.packets for entry in tables[0]) > 0


def metered(kind: str) -> V1Switch:
    """Meter `m` by h.x and the direct meters of table `t`; their colours go to h.y and h.z."""
    target = {"is_direct": True, "size": 8, "binding": "t", "result_target": ["h", "z"]}
    arrays: list[dict[str, Any]] = [
        {"name": "m", "id": 0, "is_direct": False, "size": 5, "rate_count": 2, "type": kind},
        {"name": "d", "id": 1, "rate_count": 2, "type": kind, **target},
    ]
    colour = call("execute_meter", named("meter_array", "m"), field("h", "x"), field("h", "y"))
    body = program(
        types={"h_t": [["x", 8], ["y", 8], ["z", 1], ["pad", 7]]},
        headers={"h": "h_t"},
        states=[state("start", [extract("h")])],
        actions=[action("a", colour, call("assign", PORT, number(1)))],
        ingress=[table("t", ["a"], [("lpm", "h", "x")], default=(0, ()), direct_meters="d")],
        emitted=["h"],
        meter_arrays=arrays,
    )
    return LockstepSwitch.from_json(json.dumps(body))


@pytest.mark.parametrize("kind", ["packets", "bytes"])
@pytest.mark.parametrize("seed", range(3))
def test_meters_have_the_same_colours_in_both_at_any_rate_and_time(kind: str, seed: int) -> None:
    draw, switch, now = random.Random(f"{kind} {seed}"), metered(kind), 0.0
    assert switch.runs_natively
    t, colours = switch.program.tables["t"], set[int]()
    for at in range(4):
        t.insert((Match(at, 0xFF),), 0, "a", ())
    for _ in range(STEPS):
        peak = draw.choice((0, 3, 1000, 1 << 40, (1 << 63) - 1))
        rates = MeterRates(draw.randint(0, peak), draw.choice((0, 2, 1 << 62)), peak, draw.choice((1, 30, 1 << 62)))
        if draw.random() < 0.1:
            switch.program.meters["m"][draw.randrange(5)].set(draw.choice((rates, None)))
        if draw.random() < 0.1:
            entry = t.lookup((Match(draw.randrange(4), 0xFF),), 0)
            assert entry.meter is not None
            entry.meter.set(rates)
        if draw.random() < 0.1:
            t.modify((Match(draw.randrange(4), 0xFF),), 0, "a", ())
        now += draw.choice((0, 1e-6, 0.001, 3.0, 10_000.0))
        ((_, frame),) = switch.process(1, bytes((draw.randrange(7), 9, 0)) + bytes(draw.randrange(9)), now)
        colours.add(frame[1])
    assert colours == {0, 1, 2, 9}, "green, yellow, red, and no meter at all"


def test_digests_have_fields_of_any_width_and_sign() -> None:
    learned = [{"id": 4, "name": "seen", "elements": [field("h", each) for each in ("wide", "signed", "x")]}]
    body = program(
        types={"h_t": [["x", 3], ["signed", 5, True], ["wide", 200]]},
        headers={"h": "h_t"},
        states=[state("start", [extract("h")])],
        actions=[action("a", call("generate_digest", number(1), number(4)), call("assign", PORT, number(1)))],
        ingress=[table("t", ["a"], default=(0, ()))],
        emitted=["h"],
        learn_lists=learned,
    )
    switch = LockstepSwitch.from_json(json.dumps(body))
    assert switch.runs_natively
    switch.process(1, bytes((0b101_11111,)) + bytes(range(25)), 0.0)
    assert list(switch.digests) == [(4, (int.from_bytes(bytes(range(25)), "big"), 31, 5))]
