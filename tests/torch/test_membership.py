"""Synchronous training under DDP goes on without a rank that dies, and lets a new process into its place."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.processes import a_switch
from tests.support.ranks import running

SIZE = 3
WAITS_AT = 16
"""Step at which ranks wait, as in membership_rank.py, which runs when it is imported."""
TIMEOUT_S = 150.0


@pytest.mark.processes
@pytest.mark.slow
def test_a_new_process_is_let_in_between_two_steps_with_the_weights_of_the_others() -> None:
    with a_switch("native-udp") as switch:
        environment = {"FANIN_SWITCH": str(switch.address), "FANIN_ON_WORKER_LOSS": "continue"}
        with running(["tests.torch.membership_rank"], SIZE, environment) as job:
            assert job.wait(TIMEOUT_S, [SIZE - 1]) == [-signal.SIGKILL], job.output(SIZE - 1)
            job.replace(SIZE - 1, {})
            codes = job.wait(TIMEOUT_S)
            assert codes == [0] * SIZE, [job.output(rank) for rank in range(SIZE)]
            told = [json.loads(job.output(rank).splitlines()[-1]) for rank in range(SIZE)]
    assert len({each["replica"] for each in told}) == 1, "replicas differ"
    assert [each["began"] for each in told] == [0, 0, WAITS_AT]
    assert [each["newcomer"] for each in told] == [False, False, True]
    for each in told:
        assert each["gathered"] == [0.0, 1.0, 2.0]
        assert each["accuracy"] > 0.6
