"""Stale training on four ranks: at one switch, and with a shard on the host of each."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CHECKS = "tests.stale.stale_checks"


SHARDS = {"FANIN_HOST": "host-%r", "FANIN_WORDS_PER_PACKET": "64", "EXPECTED_SHARDS": "4"}
"""Packets so short that the model is worth four shards."""


@pytest.fixture(scope="module", params=[None, SHARDS], ids=["one switch", "shards"])
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 4, request.param)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_stale_training(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)
