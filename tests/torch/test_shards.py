"""A world over several hosts, as FANIN_HOST makes of these ranks: a shard on each, and what goes wrong there."""

from __future__ import annotations

import pytest

from tests.torch.rank_checks import PROMISED_S, Outcomes, checks_of, play, run_checks

pytestmark = pytest.mark.processes
EVERY_RANK_ALONE = {"FANIN_HOST": "host-%r"}
CHECKS = "tests.torch.shard_checks"
COLLECTIVES = "tests.torch.collective_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 4)


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_placement(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)


@pytest.fixture(scope="module")
def over_hosts() -> Outcomes:
    """Every collective, each rank on a host of its own."""
    return run_checks(COLLECTIVES, 4, EVERY_RANK_ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("check", checks_of(COLLECTIVES))
def test_collective_over_hosts(over_hosts: Outcomes, check: str) -> None:
    over_hosts.expect_ok(check)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_every_survivor_of_a_host_that_died_with_its_shard_names_its_rank(victim: int) -> None:
    """Rank 0's host is one like the others: every shard has a controller of its own."""
    found = play("host_killed", silent=(victim,), environment=EVERY_RANK_ALONE | {"VICTIM": str(victim)})
    for seen in (found[rank] for rank in range(3) if rank != victim):
        assert seen["error"] == "WorkerLostError", seen
        assert seen["ranks"] == [victim]
        assert seen["seconds"] < PROMISED_S + 1


@pytest.mark.slow
def test_every_rank_raises_in_time_and_names_the_shard_that_died() -> None:
    found = play("shard_killed", environment=EVERY_RANK_ALONE)
    for seen in found:
        assert seen["error"] == "SwitchLostError", seen
        assert seen["seconds"] < PROMISED_S + 1
        assert found[1]["shard"] in seen["text"], "the address of the shard of rank 1's host"


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "alone"), [(0, False), (1, False), (2, True)], ids=["host 0", "host 1", "a shard"])
def test_sums_go_on_without_a_host_or_a_shard_that_dies(victim: int, alone: bool) -> None:
    """Rank 0's host has torch's store, and the shard that is asked first; the sums need neither."""
    environment = EVERY_RANK_ALONE | {"VICTIM": str(victim), "SHARD_ALONE": "1" * alone}
    environment["FANIN_ON_WORKER_LOSS"] = "continue"
    silent = () if alone else (victim,)
    left = [rank for rank in range(3) if rank not in silent]
    found = play("the_rest_goes_on", silent=silent, environment=environment)
    for seen in (found[rank] for rank in left):
        assert seen["right"], seen
        assert seen["mean"] == [seen["expected"]]
        assert (seen["members"], seen["shards"]) == (left, 2)
        assert seen["seconds"] < PROMISED_S
