"""Local steps beside PyTorch's engines and averagers on four ranks, in one launch."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import Outcomes, checks_of, run_checks, running

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CHECKS = "tests.torch.meeting_checks"
SITES = "tests.torch.site_checks"
"""Checks of HSDP inside sites, in the same launch."""


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(f"{SITES},{CHECKS}", 4)


@pytest.mark.parametrize("check", [*checks_of(SITES), *checks_of(CHECKS)])
def test_meetings(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)


def test_the_example_comes_to_the_weights_of_one_process() -> None:
    with running(["fanin.examples.local_steps", "--check", "--periods", "4"], 2) as job:
        assert job.wait(240.0) == [0, 0], job.output(0)
        assert "the weights are those of one process" in job.output(0)
