"""Refusals of collectives, on two ranks and over both backends, in one launch."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks

pytestmark = pytest.mark.processes
CHECKS = "tests.torch.refusal_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 2)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_refusal(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)
