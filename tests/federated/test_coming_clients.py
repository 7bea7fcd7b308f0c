"""Federated clients come and go while rounds are made (on_worker_loss="continue")."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.processes import a_switch
from tests.support.ranks import running

pytestmark = [pytest.mark.processes, pytest.mark.slow]
TIMEOUT_S = 150.0
"""Far more than it takes; only a test that fails waits for it."""


def test_rounds_go_on_without_a_client_that_died_and_another_one_takes_its_place() -> None:
    with a_switch("native-udp") as switch:
        shared = {"FANIN_SWITCH": str(switch.address), "FANIN_ON_WORKER_LOSS": "continue"}
        with running(["tests.federated.coming_client"], 3, shared) as job:
            assert job.wait(TIMEOUT_S, [2]) == [-signal.SIGKILL], job.output(2)
            job.replace(2, {})
            assert job.wait(TIMEOUT_S, [0, 1, 2]) == [0, 0, 0], [job.output(rank) for rank in range(3)]
            told = [json.loads(job.output(rank).splitlines()[-1]) for rank in range(3)]
    assert len({each["replica"] for each in told}) == 1, "replicas differ"
    assert [each["ranks"] for each in told] == [[0, 1, 2]] * 3
    assert told[2]["began"] > 0
    assert told[2]["contributions"][2] > 0
    contributors = told[0]["contributors"]
    assert contributors[0] == 3
    assert 2 in contributors, "rounds went on without it"
