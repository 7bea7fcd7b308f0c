"""A client dies while rounds close, and the same program started again takes its place, over sockets."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.processes import a_switch
from tests.support.ranks import running
from tests.support.thorough import thorough

pytestmark = [pytest.mark.processes, pytest.mark.slow]
SIZE = 3
TIMEOUT_S = 150.0


@pytest.mark.parametrize("policy", ["fedbuff", thorough("fedavg")])
def test_a_new_client_gets_the_weights_of_a_peer_and_its_deltas_are_in_the_account(policy: str) -> None:
    with a_switch("native-udp") as switch:
        environment = {
            "FANIN_SWITCH": str(switch.address), "FANIN_ON_WORKER_LOSS": "continue", "TEST_POLICY": policy,
        }  # fmt: skip
        with running(["tests.federated.newcomer_rank"], SIZE, environment) as job:
            assert job.wait(TIMEOUT_S, [SIZE - 1]) == [-signal.SIGKILL], job.output(SIZE - 1)
            job.replace(SIZE - 1, {})
            assert job.wait(TIMEOUT_S) == [0] * SIZE, [job.output(rank) for rank in range(SIZE)]
            told = [json.loads(job.output(rank).splitlines()[-1]) for rank in range(SIZE)]
    assert [each.get("error") for each in told] == [None] * SIZE, told
    assert len({each["replica"] for each in told}) == 1, "replicas differ"
    newcomer = told[-1]
    assert newcomer["began"] > 0
    assert newcomer["contributed"] >= 1
    for each in told:
        assert each["ranks"] == list(range(SIZE))
        assert each["handed_in"] == each["contributed"] + sum(each["dropped"].values())
        assert set(each["dropped"]) <= {"at the end"}
