"""Operators of compiled programs: unlimited precision inside, the destination's width outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import PacketError
from tests.p4.bmv2 import compute, computing, field, number, operation

A, B = field("given", "a"), field("given", "b")
TOP = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("+", TOP, 2, 1),
        ("-", 1, 2, TOP),
        ("*", 0x10000, 0x10000, 0),
        ("*", 0xFFFF, 0xFFFF, 0xFFFE0001),
        ("/", 7, 2, 3),
        ("%", 7, 4, 3),
        ("&", 0xF0F0, 0xFF00, 0xF000),
        ("|", 0xF0F0, 0x0F00, 0xFFF0),
        ("^", 0xF0F0, 0xFF00, 0x0FF0),
        ("<<", 1, 31, 0x80000000),
        ("<<", 3, 31, 0x80000000),
        ("<<", 1, TOP, 0),
        (">>", 0x80000000, 31, 1),
        (">>", TOP, TOP, 0),
    ],
)
def test_arithmetic_wraps_at_the_destination(op: str, a: int, b: int, expected: int) -> None:
    assert compute(computing(operation(op, A, B)), [(a, 32), (b, 32)]) == expected


def test_what_lies_between_is_not_cut_off() -> None:
    carry = operation(">>", operation("+", A, B), number(1))
    assert compute(computing(carry), [(TOP, 32), (TOP, 32)]) == TOP


@pytest.mark.parametrize(("op", "expected"), [("==", 0), ("!=", 1), (">", 0), (">=", 0), ("<", 1), ("<=", 1)])
def test_comparisons_are_of_unsigned_values(op: str, expected: int) -> None:
    switch = computing(operation("b2d", None, operation(op, A, B)))
    assert compute(switch, [(1, 32), (TOP, 32)]) == expected


@pytest.mark.parametrize(("op", "expected"), [(">", 1), ("<", 0)])
def test_comparisons_of_signed_fields_are_signed(op: str, expected: int) -> None:
    switch = computing(operation("b2d", None, operation(op, A, B)), ((32, True), (32, True)))
    assert compute(switch, [(1, 32), (TOP, 32)]) == expected


def test_signed_fields_wrap_to_their_range() -> None:
    switch = computing(operation("+", A, B), ((8, True), (8, True)), (8, True))
    assert compute(switch, [(127, 8), (1, 8)], 8) == 0x80


def test_a_negative_value_widens_with_its_sign() -> None:
    assert compute(computing(A, ((8, True), (8, False)), (16, True)), [(-2, 8), (0, 8)], 16) == 0xFFFE


def test_right_shifts_of_signed_values_keep_the_sign() -> None:
    switch = computing(operation(">>", A, B), ((16, True), (8, False)), (16, True))
    assert compute(switch, [(-256, 16), (4, 8)], 16) == 0xFFF0


@pytest.mark.parametrize(
    ("op", "width", "value", "expected"),
    [
        ("two_comp_mod", 8, 257, 1),
        ("two_comp_mod", 8, -129, 127),
        ("two_comp_mod", 8, 128, 0xFFFFFF80),
        ("usat_cast", 8, 300, 255),
        ("usat_cast", 8, -1, 0),
        ("usat_cast", 8, 7, 7),
        ("sat_cast", 8, 300, 127),
        ("sat_cast", 8, -300, 0xFFFFFF80),
    ],
)
def test_casts(op: str, width: int, value: int, expected: int) -> None:
    switch = computing(operation(op, A, number(width)), ((32, True), (32, False)))
    assert compute(switch, [(value, 32), (0, 32)]) == expected


def test_not_and_or_and_choice() -> None:
    yes = operation("==", A, number(1))
    no = operation("not", None, yes)
    both = operation("or", operation("and", yes, no), operation("d2b", None, B))
    switch = computing(operation("?", number(7), operation("~", None, number(0)), cond=both))
    assert compute(switch, [(1, 32), (0, 32)]) == TOP
    assert compute(switch, [(1, 32), (9, 32)]) == 7


def test_dividing_by_zero_loses_the_packet_and_says_so() -> None:
    switch = computing(operation("/", A, B))
    with pytest.raises(PacketError, match="undefined"):
        compute(switch, [(1, 32), (0, 32)])
    assert switch.tally.failed == 1
    assert compute(switch, [(8, 32), (2, 32)]) == 4


@given(
    st.lists(st.tuples(st.integers(1, 70), st.booleans()), min_size=1, max_size=8).map(
        lambda each: [(max(bits, 2), signed) for bits, signed in each]
    ),
    st.integers(min_value=0),
    st.integers(0, 7),
    st.integers(2, 80),
)
def test_any_layout_of_fields_is_read_as_it_was_written(
    layout: list[tuple[int, bool]], seed: int, chosen: int, bits: int
) -> None:
    chosen %= len(layout)
    switch = computing(field("given", "abcdefgh"[chosen]), layout, (bits, False))
    values = [(seed >> 7 * at & ((1 << width) - 1), width) for at, (width, _) in enumerate(layout)]
    value, width = values[chosen]
    if layout[chosen][1] and value >> (width - 1):
        value -= 1 << width
    assert compute(switch, values, bits) == value & ((1 << bits) - 1)
