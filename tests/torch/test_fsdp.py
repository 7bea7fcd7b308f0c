"""FSDP2 with a timeline, whose watcher waits for every reduction beside the program."""

from __future__ import annotations

import json

import pytest

from tests.torch.rank_checks import running

pytestmark = [pytest.mark.processes, pytest.mark.slow]
RANKS = 3


def test_fsdp2_trains_while_a_timeline_watches() -> None:
    environment = {"FANIN_TIMELINE": "timeline%r.jsonl"}
    with running(["tests.torch.fsdp_rank"], RANKS, environment) as job:
        codes = job.wait(240.0)
        assert codes == [0] * RANKS, [job.output(rank)[-2000:] for rank in range(RANKS)]
        assert "loss 0." in job.output(0)
        for rank in range(RANKS):
            lines = (job.folder / f"timeline{rank}.jsonl").read_text().splitlines()
            kinds = [json.loads(line)["kind"] for line in lines]
            assert kinds[0] == "start"
            assert kinds[-1] == "end"
            assert kinds.count("step") == 12
            assert kinds.count("reduction") > 12
