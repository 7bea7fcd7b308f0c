"""Shorter ways through the native interpreter's instructions lead to the same, and are shorter."""

from __future__ import annotations

from random import Random

from fanin.switch.p4.native_passes import Code, shortened
from tests.p4.instructions import CONSTANTS, FRAME, random_code, run


def test_the_shorter_way_leads_to_the_same() -> None:
    random = Random(15)
    before = after = 0
    for _ in range(1000):
        code, labels, entries = random_code(random)
        short, moved = shortened(code, labels, entries, CONSTANTS)
        for entry in entries:
            if (found := run(code, labels, entry, FRAME)) is None:
                continue
            again = run(short, moved, entry, FRAME)
            assert again is not None, code
            assert again[0] == found[0], code
            assert again[1] <= found[1], code
            before, after = before + found[1], after + again[1]
    assert after < before


def test_one_condition_that_is_asked_for_every_field_is_asked_once() -> None:
    code: list[Code] = []
    labels = [0]
    for at in range(10):
        labels.append(2 * at + 2)
        code += [("JUMP_ZERO", 0, at + 1, 3, 0), ("HASH_PUT", 8, 0, at, 0)]
    code.append(("HALT", 0, 0, 0, 0))
    short, moved = shortened(code, labels, [0], CONSTANTS)
    assert [each[0] for each in short] == ["JUMP_ZERO", *["HASH_PUT"] * 10, "HALT"]
    assert short[moved[short[0][2]]][0] == "HALT"


def test_what_a_condition_reads_may_change_between_two_of_them() -> None:
    condition: Code = ("JUMP_NE_WIDE", 2, 1, 1, 3)
    for written, left in ((0, 1), (1, 2), (2, 2), (4, 2), (5, 1)):
        code: list[Code] = [condition, ("COPY", 64, written, 9, 0), condition, ("HALT", 0, 0, 0, 0)]
        short, _ = shortened(code, [0, 3], [0], CONSTANTS)
        assert sum(each == condition for each in short) == left
