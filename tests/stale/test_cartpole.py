"""The reinforcement learning example, a short version: four workers learn, and their replicas agree."""

from __future__ import annotations

import pytest

from fanin.emulation.processes import LocalJob, Report
from tests.support.forks import fork_jobs

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'fanin[rl]'")
pytestmark = [pytest.mark.processes, pytest.mark.slow]
LEARNED = 45
"""Steps that a cart balances, on the mean; one that is not learned does for about 20."""


def play(*arguments: str, workers: int = 4) -> list[Report]:
    with LocalJob("fanin.examples.cartpole", arguments, workers, {}) as job:
        return list(job.reports())


def returns_of(reports: list[Report]) -> list[float]:
    return [report.record["mean_return"] for report in reports if report.record["event"] == "returns"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [(), ("--staleness", "2"), ("--reward", "shaped")],
    ids=["synchronous", "stale", "shaped"],
)
def test_four_workers_learn_and_end_bit_identical(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """They end as soon as they have learned."""
    fork_jobs(monkeypatch)
    reports = play("--iterations", "15", "--target", str(LEARNED + 0.1), *options)
    replicas = [report.record["replica"] for report in reports if report.record["event"] == "end"]
    assert len(replicas) == 4
    assert len(set(replicas)) == 1
    assert max(returns_of(reports)) > LEARNED
