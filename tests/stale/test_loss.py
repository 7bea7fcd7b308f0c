"""A rank dies during stale training, and the others go on (on_worker_loss="continue")."""

from __future__ import annotations

import json
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import running

SIZE = 4

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def ends_of(mode: str, recorded: Path) -> list[dict[str, Any]]:
    """Last reports of the survivors, the last rank having died. `recorded`: prefix of the flight recorders' files,
    which the loss alone writes: the ranks do not leave in order."""
    environment = {"FANIN_ON_WORKER_LOSS": "continue", "FANIN_FLIGHT_RECORDER": str(recorded)}
    with running(["tests.stale.loss_rank", mode], SIZE, environment) as job:
        assert job.wait(120, [SIZE - 1]) == [-signal.SIGKILL], job.output(SIZE - 1)
        codes = job.wait(240, range(SIZE - 1))
        assert codes == [0] * (SIZE - 1), [job.output(rank) for rank in range(SIZE - 1)]
        return [json.loads(job.output(rank).splitlines()[-1]) for rank in range(SIZE - 1)]


def written(recorded: Path) -> set[str]:
    """Names of the ranks' files, each of which torch can read."""
    files = list(recorded.parent.glob(f"{recorded.name}?"))
    assert all(pickle.loads(each.read_bytes())["entries"] for each in files)
    return {each.name.removeprefix(recorded.name) for each in files}


def test_training_goes_on_without_a_rank_that_dies_and_the_accounts_balance(tmp_path: Path) -> None:
    """Every round waits for all who are there; so rounds after the death hold one gradient less, and none is stuck."""
    ends = ends_of("asynchronous", tmp_path / "rank_")
    assert len({end["replica"] for end in ends}) == 1
    assert [end["ranks"] for end in ends] == [[0, 1, 2]] * (SIZE - 1)
    contributors = ends[0]["contributors"]
    assert contributors[0] == SIZE
    assert contributors[-1] == SIZE - 1
    assert written(tmp_path / "rank_") == {"0", "1", "2"}


def test_stale_synchronous_training_goes_on_without_a_rank_that_dies(tmp_path: Path) -> None:
    """DDP's iterations go on, every survivor's gradient lands, and what rounds hold beyond them is the lost rank's."""
    ends = ends_of("hook", tmp_path / "rank_")
    assert len({end["replica"] for end in ends}) == 1
    for end in ends:
        assert end["ranks"] == [0, 1, 2]
        assert end["contributed"] == [58] * 3, "two iterations of 60 are the warm-up"
        assert 0 < end["held"] - end["contributions"] <= 10, "the lost rank's, of ten iterations"
        assert end["accuracy"] > 0.6
