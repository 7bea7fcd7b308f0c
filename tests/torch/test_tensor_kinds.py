"""Every kind of tensor in every collective, on two ranks, over fanin and gloo: a launch for each way of carrying."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks
from tests.torch.tensor_kinds import markdown

CHECKS = "tests.torch.kind_checks"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
BEGIN, END = "<!-- kinds:", "<!-- end of kinds -->"


WAYS = {"by the switch": {}, "with a fallback": {"FANIN_FALLBACK": "gloo"}}
"""With a fallback, gloo does what moves, and sums are copied and logged."""


@pytest.fixture(scope="module", params=WAYS)
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 2, WAYS[request.param])


@pytest.mark.processes
@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_kinds(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)


def test_the_table_in_the_docs_is_the_one_that_is_tried() -> None:
    text = DOCUMENT.read_text()
    written = text[text.index("\n", text.index(BEGIN)) : text.index(END)].strip()
    assert written == markdown().strip()
