"""Ranks that fork: what a child inherits is its parent's, and the child's end changes nothing for the job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.processes import a_switch
from tests.torch.rank_checks import running

pytestmark = [pytest.mark.processes, pytest.mark.slow]
RANKS = 2


@contextlib.contextmanager
def carrier(name: str) -> Iterator[dict[str, str]]:
    """The environment that makes ranks use it."""
    environment = {"FANIN_NATIVE": "0"} if name == "twin-udp" else {}
    if name == "native-zmq":
        with a_switch("native-zmq") as switch:
            yield environment | {"FANIN_SWITCH": str(switch.address)}
    else:
        yield environment


@pytest.mark.parametrize("name", ["native-shared-memory", "twin-udp", "native-zmq"])
def test_children_end_and_the_ranks_go_on_reducing(name: str) -> None:
    """With the switch that rank 0 has started, zmq aside."""
    with carrier(name) as environment, running(["tests.torch.forking_rank"], RANKS, environment) as job:
        codes = job.wait(240.0)
        for rank in range(RANKS):
            assert codes[rank] == 0, job.output(rank)[-3000:]
            assert f"rank {rank} reduced" in job.output(rank)
