"""Every collective on four ranks, in one launch."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks

pytestmark = pytest.mark.processes
CHECKS = "tests.torch.collective_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 4)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_collective(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)
