"""The table of lanes in docs/numerics.md says what the code does."""

import re
from pathlib import Path

import pytest

from fanin.errors import ConfigurationError
from fanin.numerics.fixed_point import Codec
from fanin.numerics.lanes import largest_step
from fanin.numerics.reduction import LANES, Element

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| ±2\^(\d+) \| (\S+).*? \| (\S+).*? \| (\S+).*? \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"M={row[0]}")
def test_the_table_of_lanes_is_right(row: tuple[str, ...]) -> None:
    contributions = int(row[0])
    assert Codec(Element.FLOAT32, 32, contributions).exponent == int(row[1])
    for lanes, cell in zip(LANES[1:], row[2:], strict=True):
        if cell == "refused":
            with pytest.raises(ConfigurationError):
                largest_step(lanes, contributions)
        else:
            assert cell == f"±{largest_step(lanes, contributions)}"


def test_the_table_is_found() -> None:
    assert len(ROWS) >= 10
