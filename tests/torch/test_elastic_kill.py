"""A process is killed between meetings, with the switch that it runs, and another comes: over sockets, with SIGKILL."""

from __future__ import annotations

import json
import signal

import pytest
from torch._C import _distributed_c10d as c10d

from tests.support.processes import DEADLINE_S, until
from tests.support.ranks import running
from tests.support.thorough import thorough

FOUNDERS = 3
TIMEOUT_S = 5 * DEADLINE_S


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("number", [0, thorough(2)], ids=["the one that runs the switch", "another"])
def test_the_others_go_on_a_newcomer_takes_part_and_all_have_the_same_bits(number: int) -> None:
    store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "ROLE": "trains",
        "VICTIM": str(number), "FOUNDERS": str(FOUNDERS),
    }  # fmt: skip
    with running(["tests.torch.elastic_member_rank"], 0, environment) as job:
        for _ in range(FOUNDERS):
            job.add({})
        victim = int(store.get("fanin/members/program/dead"))  # waits for the key
        assert job.wait(TIMEOUT_S, [victim]) == [-signal.SIGKILL], job.output(victim)
        left = [rank for rank in range(FOUNDERS) if rank != victim]
        until(lambda: all("members 2" in job.output(rank) for rank in left))  # or the newcomer takes the place at once
        job.add({"ROLE": "newcomer"})
        left.append(FOUNDERS)
        codes = job.wait(TIMEOUT_S, left)
        assert codes == [0] * FOUNDERS, [job.output(rank) for rank in left]
        told = [json.loads(job.output(rank).splitlines()[-1]) for rank in left]
    assert len({each["replica"] for each in told}) == 1, "replicas differ"
    assert len({each["meetings"] for each in told}) == 1
    assert told[-1]["first"] > 0
    for each in told[:-1]:
        assert each["sizes"] == [3, 2, 3]
        assert each["accuracy"] > 0.6
