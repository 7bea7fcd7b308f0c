"""Match-action tables: who matches, who wins, what the control plane may do."""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.switch.p4 import V1Switch
from fanin.switch.p4.actions import TableError, TableProblem
from fanin.switch.p4.tables import Match
from tests.p4.bmv2 import action, call, data, extract, field, program, start, state, table, to_port

SEND, LOSE = 0, 1


def matching(kinds: tuple[str, ...], **more: Any) -> V1Switch:
    """One table over 8-bit fields `a`, `b`, ...; action `send` goes to a port, a miss to port 500."""
    names = "abcd"[: len(kinds)]
    key = [(kind, "given", name) for kind, name in zip(kinds, names, strict=True)]
    egress = field("standard_metadata", "egress_spec")
    return start(
        program(
            types={"in_t": [[name, 8] for name in names]},
            headers={"given": "in_t"},
            states=[state("start", [extract("given")])],
            actions=[
                action("send", call("assign", egress, data(0)), widths=(9,)),
                action("lose", to_port(500)),
            ],
            ingress=[table("t", ["send", "lose"], key, default=(LOSE, ()), **more)],
        )
    )


def port_of(switch: V1Switch, *key: int) -> int:
    ((port, _),) = switch.process(0, bytes(key), 0.0)
    return port


def test_exact_entries_match_all_fields() -> None:
    switch = matching(("exact", "exact"))
    switch.program.tables["t"].insert((Match(1), Match(2)), 0, "send", (7,))
    assert [port_of(switch, 1, 2), port_of(switch, 1, 3), port_of(switch, 2, 1)] == [7, 500, 500]


@given(st.lists(st.integers(0, 95), max_size=200))
def test_exact_entries_that_come_and_go_are_found_exactly_while_they_are_there(keys: list[int]) -> None:
    switch = matching(("exact",))
    assert switch.runs_natively
    entries, there = switch.program.tables["t"], set[int]()
    for key in keys:  # in, and when it comes again, out
        if key in there:
            entries.delete((Match(key),), 0)
        else:
            entries.insert((Match(key),), 0, "send", (key + 1,))
        there ^= {key}
    assert [port_of(switch, key) for key in range(96)] == [key + 1 if key in there else 500 for key in range(96)]


def test_the_longest_prefix_wins_whatever_the_order() -> None:
    switch = matching(("lpm",))
    for length, port in ((4, 4), (0, 9), (8, 8), (6, 6)):
        mask = (0xFF << (8 - length)) & 0xFF
        switch.program.tables["t"].insert((Match(0b10110110 & mask, mask),), 0, "send", (port,))
    assert [port_of(switch, key) for key in (0b10110110, 0b10110101, 0b10111111, 0)] == [8, 6, 4, 9]


def test_the_highest_priority_wins_and_its_removal_uncovers_the_next() -> None:
    table_of = matching(("ternary", "range"))
    entries = table_of.program.tables["t"]
    entries.insert((Match(0, 0), Match(low=0, high=255)), 1, "send", (1,))
    entries.insert((Match(0x10, 0xF0), Match(low=5, high=9)), 7, "send", (2,))
    assert [port_of(table_of, 0x1F, 5), port_of(table_of, 0x1F, 10), port_of(table_of, 0x2F, 5)] == [2, 1, 1]
    entries.delete((Match(0x10, 0xF0), Match(low=5, high=9)), 7)
    assert port_of(table_of, 0x1F, 5) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 15), st.integers(0, 15)),
        max_size=12,
        unique_by=lambda each: each,
    ),
    st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), min_size=1, max_size=12),
)
def test_ternary_and_range_agree_with_a_linear_search(
    entries: list[tuple[int, int, int, int]], keys: list[tuple[int, int]]
) -> None:
    switch = matching(("ternary", "range"))
    rows = []
    for priority, (value, mask, low, high) in enumerate(entries, 1):
        bounds = min(low, high) * 16, max(low, high) * 16
        switch.program.tables["t"].insert(
            (Match(value, mask), Match(low=bounds[0], high=bounds[1])), priority, "send", (priority,)
        )
        rows.append((priority, value & mask, mask, *bounds))
    for first, second in keys + keys:  # the second time from memory
        hits = [p for p, value, mask, low, high in rows if first & mask == value and low <= second <= high]
        assert port_of(switch, first, second) == max(hits, default=500)


Row = tuple[int, int, int, int, int]
"""Priority, value, mask, and the bounds of a range."""


def winner(rows: list[Row], first: int, second: int) -> int:
    """The priority of the row that a linear search finds; of equal ones, rows are in the order of their insertion."""
    hits = [row for row in rows if first & row[2] == row[1] and row[3] <= second <= row[4]]
    return max(hits, key=lambda row: row[0], default=(500,))[0]


@pytest.mark.parametrize("masks", [(0xF0,), (0xFF, 0xFE, 0xF0, 0x0F, 0x00)], ids=["one mask", "five masks"])
@pytest.mark.parametrize("seed", range(3))
def test_entries_that_come_and_go_are_found_as_by_a_linear_search(masks: tuple[int, ...], seed: int) -> None:
    draw = random.Random(f"{masks} {seed}")
    switch = matching(("ternary", "range"), size=1000)
    entries, rows = switch.program.tables["t"], list[Row]()

    def matches(row: Row) -> tuple[Match, Match]:
        return Match(row[1], row[2]), Match(low=row[3], high=row[4])

    for step in range(300):
        if rows and draw.random() < 0.4:
            gone = rows.pop(draw.randrange(len(rows)))
            entries.delete(matches(gone), gone[0])
        else:
            mask, low = draw.choice(masks), draw.choice((0, 0, draw.randrange(200)))
            row = draw.randrange(1, 400), draw.randrange(256) & mask, mask, low, draw.choice((255, low + 50))
            if row[0] not in {each[0] for each in rows}:
                rows.append(row)
                entries.insert(matches(row), row[0], "send", (row[0],))
        if step % 3 == 0:
            key = draw.randrange(256), draw.randrange(256)
            assert port_of(switch, *key) == winner(rows, *key)
    assert len(rows) > 20
    assert [-entry.rank for entry in entries] == sorted((row[0] for row in rows), reverse=True)


def test_of_entries_with_the_same_priority_the_first_wins_in_both_interpreters() -> None:
    switch = matching(("ternary",))
    entries = switch.program.tables["t"]
    for port, mask in enumerate((0x0F, 0xF0, 0xFF, 0x3C), 1):
        entries.insert((Match(0, mask),), 5, "send", (port,))
    assert port_of(switch, 0) == 1
    entries.modify((Match(0, 0x0F),), 5, "send", (9,))
    assert port_of(switch, 0) == 2, "an entry that is modified goes behind the others"
    assert [entry.data for entry in entries.matching((Match(0, 0x0F),))] == [(9,)]


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, steps of generators included."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # a collection would count, with the callbacks that hypothesis has for it
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("kind", ["lpm", "ternary", "range"])
@pytest.mark.parametrize("native", [True, False])
def test_an_insertion_costs_as_much_in_a_large_table_as_in_a_small_one(kind: str, native: bool) -> None:
    document = json.loads(matching((kind,), size=5000).program.document)
    next(each for each in document["header_types"] if each["name"] == "in_t")["fields"] = [["a", 32]]
    entries = V1Switch.from_json(json.dumps(document), native=native).program.tables["t"]

    def insert(at: int) -> None:
        one = Match(low=at << 16, high=at << 16 | 0xFFFF) if kind == "range" else Match(at << 16, 0xFFFF_0000)
        entries.insert((one,), 0 if kind == "lpm" else 7, "send", (1,))

    costs = {}
    for at in range(3000):
        if at in (10, 2999):
            costs[at] = calls_of(lambda at=at: insert(at))  # type: ignore[misc]
        else:
            insert(at)
    assert costs[2999] <= costs[10] + 5
    assert len(entries) == 3000


def test_what_a_table_refuses() -> None:
    entries = matching(("exact",), size=1).program.tables["t"]

    def refused(call_: Any, *arguments: Any) -> TableProblem:
        with pytest.raises(TableError) as caught:
            call_(*arguments)
        return caught.value.problem

    assert refused(entries.modify, (Match(1),), 0, "send", (1,)) is TableProblem.NOT_FOUND
    assert refused(entries.delete, (Match(1),), 0) is TableProblem.NOT_FOUND
    assert refused(entries.insert, (Match(1), Match(1)), 0, "send", (1,)) is TableProblem.INVALID
    assert refused(entries.insert, (Match(1),), 0, "nothing", ()) is TableProblem.INVALID
    assert refused(entries.insert, (Match(1),), 0, "send", (512,)) is TableProblem.INVALID
    entries.insert((Match(1),), 0, "send", (1,))
    assert refused(entries.insert, (Match(1),), 0, "send", (2,)) is TableProblem.EXISTS
    assert refused(entries.insert, (Match(2),), 0, "send", (2,)) is TableProblem.FULL


def test_entries_and_a_default_of_the_program_itself_cannot_be_changed() -> None:
    entry = {
        "match_key": [{"match_type": "exact", "key": "0x05"}],
        "action_entry": {"action_id": SEND, "action_data": ["0x7"]},
        "priority": 1,
    }
    switch = matching(("exact",), entries=[entry])
    assert [port_of(switch, 5), port_of(switch, 6)] == [7, 500]
    with pytest.raises(TableError, match="constant"):
        switch.program.tables["t"].insert((Match(1),), 0, "send", (1,))


def test_the_default_action_changes_and_goes_back() -> None:
    switch = matching(("ternary",))
    assert port_of(switch, 3) == 500
    switch.program.tables["t"].set_default("send", (9,))
    assert port_of(switch, 3) == 9
    switch.program.tables["t"].set_default(None)
    assert port_of(switch, 3) == 500


def test_direct_counters_count_hits_with_the_bytes_that_came_in() -> None:
    switch = matching(("exact",), with_counters=True)
    entry = switch.program.tables["t"].insert((Match(1),), 0, "send", (7,))
    for packet in (b"\1abc", b"\1", b"\2xx"):
        switch.process(0, packet, 0.0)
    assert (entry.packets, entry.bytes) == (2, 5)
    changed = switch.program.tables["t"].modify((Match(1),), 0, "send", (8,))
    assert (changed.packets, port_of(switch, 1)) == (2, 8)
