"""docs/protocol.md cannot drift from the code: its tables, its numbers and its worked example are checked."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fanin.protocol import wire
from fanin.protocol.wire import Flag, Kind, Reason
from tests.transports.worked_example import BEGIN, END, FIELDS, PAGE, TENSORS, conversation, render

TEXT = PAGE.read_text()


def _rows(heading: str) -> dict[str, tuple[str, ...]]:
    """The table whose first header cell is `heading`: the other cells by the first one."""
    match = re.search(rf"^\| {heading} \|.*\n\|[-:|]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert match, f"no table that begins with {heading}"
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in match[1].splitlines()]
    return {row[0]: tuple(row[1:]) for row in rows}


def test_the_worked_example_is_what_the_machines_say() -> None:
    shown = TEXT.split(BEGIN)[1].split(END)[0]
    assert shown == render(), "run: python -m tests.transports.worked_example"


def test_the_worked_example_ends_with_the_sum() -> None:
    said, results = conversation()
    for result in results:
        np.testing.assert_array_equal(result, np.sum(TENSORS, axis=0))
    assert {wire.parse(data).kind for _, data in said} >= {Kind.HELLO, Kind.WELCOME, Kind.BYE, Kind.NOTICE}


def test_the_layout_table_has_every_field_at_its_offset() -> None:
    rows = _rows("offset")
    for name, first, end in FIELDS:
        assert rows[str(first)][:2] == (str(end - first), name)
    assert rows[str(wire.HEADER_BYTES)][1] == "codes"


@pytest.mark.parametrize(("heading", "values"), [("kind", Kind), ("flag", Flag), ("reason", Reason)])
def test_the_tables_of_names_are_complete(heading: str, values: type[Kind | Flag | Reason]) -> None:
    assert {number: row[0] for number, row in _rows(heading).items()} == {
        str(member.value): member.name for member in values
    }


def test_the_limits_are_the_codes() -> None:
    rows = _rows("limit")
    assert rows["workers of one switch"][0] == str(wire.MAX_WORKERS)
    assert rows["codes in a packet"][0] == str(wire.MAX_CODES)
    assert rows["datagram"][0] == f"{wire.MAX_DATAGRAM_BYTES:,} bytes"


def test_the_reasons_that_a_switch_tells_are_marked() -> None:
    told = {row[0] for row in _rows("reason").values() if row[1] == "yes"}
    assert told == {reason.name for reason in wire.TOLD_BY_NOTICE}
    *some, last = sorted(map(int, wire.TOLD_BY_NOTICE))
    assert f"A NOTICE with reason {', '.join(map(str, some))} or {last} is final" in TEXT
