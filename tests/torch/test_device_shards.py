"""FSDP2's prefetching and GradScaler with shard_codecs, on two ranks whose host memory stands for a device."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks

pytestmark = pytest.mark.processes
CHECKS = "tests.torch.device_shard_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 2)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_shard_codecs_on_a_device(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)
