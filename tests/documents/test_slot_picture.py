"""The picture of a slot is drawn from a run of the machines, and says what they did."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.support.repository import ROOT
from tools import slot_picture

PICTURE = ROOT / "docs" / "slot.svg"


def test_the_committed_picture_is_that_of_the_run() -> None:
    drawn = slot_picture.drawn(slot_picture.film())
    assert PICTURE.read_text(encoding="utf-8") == drawn, "run: python -m tools.slot_picture > docs/slot.svg"
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_each_round_of_the_picture_has_as_many_contributions_as_the_quorum() -> None:
    filmed = slot_picture.film()
    arrivals = sorted(each.came_s for each in filmed.arrows if each.up)
    for number, (closed_s, base, _) in enumerate(filmed.closed[: slot_picture.ROUNDS]):
        assert base == number
        assert arrivals[(number + 1) * slot_picture.QUORUM - 1] == closed_s
