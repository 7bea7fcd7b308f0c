"""Federated training on four ranks through one switch."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CHECKS = "tests.federated.federated_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 4)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_federated_training(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)
