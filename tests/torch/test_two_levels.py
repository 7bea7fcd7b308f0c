"""Sums of two levels: gloo inside a host, in NCCL's place, and fanin between hosts, as FANIN_HOST makes of ranks."""

from __future__ import annotations

import signal

import pytest

from tests.torch.rank_checks import PROMISED_S, Outcomes, checks_of, play, run_checks

pytestmark = pytest.mark.processes
CHECKS = "tests.torch.two_level_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 4)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_two_levels(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)


TWO_LEVELS = {"FANIN_INSIDE": "gloo", "FANIN_LIVENESS_TIMEOUT_S": "5"}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_every_survivor_of_a_rank_names_it_in_time_whatever_level_it_waits_at(how: signal.Signals) -> None:
    """The victim's own host waits inside it, its column between hosts, and the other column inside the other host."""
    environment = TWO_LEVELS | {"RANKS_PER_HOST": "2", "SIGNAL": str(int(how))}
    found = play("rank_lost_while_all_sum", 4, silent=(1,), environment=environment)
    for seen in (found[rank] for rank in (0, 2, 3)):
        assert seen["error"] == "WorkerLostError", seen
        assert seen["ranks"] == [1], seen
        assert seen["seconds"] < PROMISED_S


@pytest.mark.slow
def test_hosts_with_unlike_numbers_of_ranks_are_refused_on_every_rank_by_name() -> None:
    for seen in play("unlike_hosts", environment=TWO_LEVELS | {"RANKS_PER_HOST": "2"}):
        assert seen["error"] == "ConfigurationError", seen
        assert "ranks 0, 1; ranks 2 are on one host each" in seen["text"]
