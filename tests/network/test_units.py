"""Quantities on the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fanin.emulation.network import units
from fanin.errors import ConfigurationError


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.rate_bit_s, "1gbit", 1e9),
        (units.rate_bit_s, "100 Mbit", 1e8),
        (units.rate_bit_s, "none", None),
        (units.duration_s, "50us", 50e-6),
        (units.duration_s, "1.5s", 1.5),
        (units.size_bytes, "512kib", 512 << 10),
        (units.probability, "0.1%", 0.001),
        (units.probability, "0.25", 0.25),
        (units.factor, "2x", 2.0),
        (units.factor, "1.5", 1.5),
    ],
)
def test_a_quantity_is_read_in_its_unit(read: Callable[[str], float], text: str, value: float) -> None:
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0us"), (50e-6, "50us"), (0.05, "50ms"), (1.5, "1.5s")])
def test_a_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text
    assert units.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (units.rate_bit_s, "1"),
        (units.rate_bit_s, "fast"),
        (units.rate_bit_s, "-1gbit"),
        (units.duration_s, "50"),
        (units.duration_s, "5 minutes"),
        (units.size_bytes, "1gbit"),
        (units.probability, "101%"),
        (units.probability, "1ms"),
        (units.factor, "0.5x"),
        (units.factor, "x"),
    ],
)
def test_what_is_no_such_quantity_is_refused(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        read(text)
