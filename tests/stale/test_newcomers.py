"""A new process takes the place of a rank that died, while asynchronous training runs (on_worker_loss="continue")."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes import a_switch
from tests.support.ranks import Job, running

pytestmark = [pytest.mark.processes, pytest.mark.slow]
TIMEOUT_S = 150.0
"""Far more than anything here takes; only a test that fails waits for it."""
PROMISED_S = 60.0
"""A newcomer that cannot come in says so: 5 s per peer, and some for a place that is still its predecessor's, and for
making its group, on a machine that is busy with other tests. Without an end it would wait until it is killed."""


@contextmanager
def a_job(size: int, quorum: int, **environment: str) -> Iterator[Job]:
    """Founders, of whom the last has died."""
    with a_switch("native-udp") as switch:
        everyones = {
            "FANIN_SWITCH": str(switch.address),
            "FANIN_ON_WORKER_LOSS": "continue",
            "QUORUM": str(quorum),
            "DIES": "1",
            **environment,
        }
        with running(["tests.stale.newcomer_rank"], size, everyones) as job:
            assert job.wait(TIMEOUT_S, [size - 1]) == [-signal.SIGKILL], job.output(size - 1)
            yield job


def ends(job: Job, ranks: list[int]) -> list[dict[str, Any]]:
    """Last reports of the processes."""
    assert job.wait(TIMEOUT_S, ranks) == [0] * len(ranks), [job.output(rank) for rank in range(len(job.processes))]
    return [json.loads(job.output(rank).splitlines()[-1]) for rank in ranks]


def expect_alike(told: list[dict[str, Any]], ranks: list[int]) -> None:
    assert [each.get("error") for each in told] == [None] * len(told), told
    assert len({each["replica"] for each in told}) == 1, "replicas differ"
    assert [each["ranks"] for each in told] == [ranks] * len(told)


def test_a_process_that_is_started_again_gets_the_weights_and_the_group_is_whole_again() -> None:
    with a_job(4, quorum=4) as job:
        job.replace(3, {})
        told = ends(job, [0, 1, 2, 3])
    expect_alike(told, [0, 1, 2, 3])
    newcomer = told[3]
    assert newcomer["began"] > 0
    assert newcomer["contributions"][3] > 0
    assert "flush()" in newcomer["barrier"]
    contributors = newcomer["contributors"]
    assert contributors[0] == 4
    assert 3 in contributors, "rounds went on without it"
    assert contributors[-1] == 4, "and in the end with it"
    for each in told:
        assert not each["outside"]
        assert each["gathered"] == [0.0, 1.0, 2.0, 3.0]
        assert each["total"] == 6.0


def test_who_does_not_fit_or_comes_too_late_is_told_so_and_disturbs_nobody() -> None:
    """With a quorum below the number of workers, so that a newcomer without weights passes late."""
    with a_job(3, quorum=2, LINGERS="1") as job:
        job.replace(2, {"SHAPE": "50"})
        (misfit,) = ends(job, [2])
        assert misfit["error"] == "ConfigurationError"
        assert "'0.weight', float32 of (50, 24)" in misfit["text"]
        assert misfit["seconds"] < PROMISED_S
        job.replace(2, {})
        (newcomer,) = ends(job, [2])
        job.replace(2, {"LAST": "1"})
        (late,) = ends(job, [2])
        assert late["error"] == "AdmissionError"
        assert "is over" in late["text"]
        assert late["seconds"] < PROMISED_S
        told = [*ends(job, [0, 1]), newcomer]
    expect_alike(told, [0, 1, 2])
    assert newcomer["contributions"][2] > 0


def test_when_the_giver_dies_in_the_middle_another_one_gives() -> None:
    with a_job(4, quorum=4, DIES_GIVING="1") as job:
        job.replace(3, {})
        assert job.wait(TIMEOUT_S, [2]) == [-signal.SIGKILL], "rank 2 is asked first"
        told = ends(job, [0, 1, 3])
    expect_alike(told, [0, 1, 3])
    assert told[2]["contributions"][2] > 0
    assert told[2]["outside"], "with a place empty the group cannot be made whole"


def test_a_newcomer_that_nobody_gives_to_goes_and_the_others_go_on() -> None:
    with a_job(3, quorum=3, GIVES_NOTHING="1") as job:
        job.replace(2, {"LAST": "1"})
        (alone,) = ends(job, [2])
        told = ends(job, [0, 1])
    assert alone["error"] == "HandoverError"
    for rank in (0, 1):
        assert f"rank {rank}: " in alone["text"]
    assert alone["seconds"] < PROMISED_S
    expect_alike(told, [0, 1])
