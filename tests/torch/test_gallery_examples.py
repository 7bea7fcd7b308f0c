"""Examples of the gallery for four ranks, in one launch."""

from __future__ import annotations

import pytest

from tests.support.packages import require_package
from tests.torch.rank_checks import Outcomes, checks_of, run_checks

require_package("scipy", "scipy is not installed: pip install 'fanin[demo]'")
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.thorough]
CHECKS = "tests.torch.gallery_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 4)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_gallery(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)
