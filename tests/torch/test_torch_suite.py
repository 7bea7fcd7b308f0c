"""A part of PyTorch's own distributed test suite on three ranks, in one launch; docs/torch.md says how all of it went.

The whole suite: start suite_rank.py with no test names, with torch's usual environment set per rank.
"""

from __future__ import annotations

import json

import pytest

from tests.support.ranks import running

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CHOSEN = (
    "test_DistributedDataParallelCPU", "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync", "test_all_gather", "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_default_pg", "test_all_reduce_coalesced_sum", "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_sum", "test_all_reduce_max", "test_all_reduce_sum", "test_all_reduce_sum_complex",
    "test_all_to_all", "test_all_to_all_single_unequal_split", "test_barrier",
    "test_broadcast", "test_gather", "test_irecv", "test_isend", "test_reduce_sum",
    "test_scatter", "test_send_recv", "test_send_recv_any_source", "test_send_recv_with_tag",
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    """Per rank: what became of each test."""
    with running(["tests.torch.suite_rank", "out%r.jsonl", *CHOSEN], 3) as job:
        codes = job.wait(240.0)
        assert codes == [0, 0, 0], job.output(0)[-3000:]
        files = [(job.folder / f"out{rank}.jsonl").read_text().splitlines() for rank in range(3)]
        return [{name: outcome for name, outcome, _ in map(json.loads, lines)} for lines in files]


@pytest.mark.parametrize("name", CHOSEN)
def test_of_pytorch(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, of_rank in enumerate(outcomes):
        assert of_rank[name] == "ok", f"rank {rank}: {of_rank[name]}"
