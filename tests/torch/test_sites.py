"""HSDP inside two sites and local steps between them, on eight ranks; with four: test_meetings_training.py."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.thorough]
CHECKS = "tests.torch.site_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 8)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_sites(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)
