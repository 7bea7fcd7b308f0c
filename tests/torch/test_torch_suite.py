"""PyTorch's own distributed test suite on three ranks: 24 tests, and, thorough, the 74 others that pass.

docs/torch.md says how all of it went.

The whole suite: start suite_rank.py with no test names, with torch's usual environment set per rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

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
FURTHER = (
    "test_Backend_enum_class", "test_DistributedDataParallel_requires_grad",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view", "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_full_group", "test_all_gather_coalesced_simple", "test_all_gather_complex",
    "test_all_gather_full_group", "test_all_gather_object_subgroup", "test_all_reduce_coalesced_full_group_max",
    "test_all_reduce_coalesced_full_group_min", "test_all_reduce_coalesced_full_group_product",
    "test_all_reduce_coalesced_full_group_sum", "test_all_reduce_coalesced_max",
    "test_all_reduce_coalesced_max_complex_unsupported", "test_all_reduce_coalesced_min",
    "test_all_reduce_coalesced_product", "test_all_reduce_full_group_max", "test_all_reduce_full_group_min",
    "test_all_reduce_full_group_product", "test_all_reduce_min", "test_all_reduce_product",
    "test_all_reduce_sum_async", "test_all_to_all_complex", "test_all_to_all_full_group",
    "test_all_to_all_single_equal_split", "test_all_to_all_single_equal_split_complex",
    "test_all_to_all_single_equal_split_full_group", "test_all_to_all_single_unequal_split_complex",
    "test_all_to_all_single_unequal_split_full_group", "test_barrier_full_group",
    "test_barrier_timeout_full_group", "test_batch_isend_irecv_gloo", "test_batch_isend_irecv_gloo_tags",
    "test_batch_isend_irecv_op_list_err", "test_broadcast_full_group", "test_ddp_create_graph",
    "test_ddp_logging_data_cpu", "test_destroy_full_group", "test_destroy_group",
    "test_dump_DDP_relevant_env_vars", "test_gather_checks", "test_gather_full_group", "test_gather_object",
    "test_gather_object_subgroup", "test_get_future", "test_get_rank", "test_get_rank_size_full_group",
    "test_get_rank_size_group", "test_grads_same_across_ranks_with_no_sync", "test_isend_autograd_profiler",
    "test_isend_torch_profiler", "test_reduce_full_group_max", "test_reduce_full_group_min",
    "test_reduce_full_group_product", "test_reduce_full_group_sum", "test_reduce_max", "test_reduce_min",
    "test_reduce_product", "test_reduce_sum_twice", "test_scatter_checks", "test_scatter_complex",
    "test_scatter_full_group", "test_scatter_object_list", "test_send_recv_any_source_autograd_profiler",
    "test_send_recv_any_source_torch_profiler", "test_send_recv_autograd_profiler",
    "test_send_recv_torch_profiler", "test_send_recv_with_tag_autograd_profiler",
    "test_send_recv_with_tag_torch_profiler", "test_sparse_all_reduce_sum", "test_static_graph_api_cpu",
)  # fmt: skip
"""The others that pass, but for `test_barrier_timeout_global`, whose timeout of 1 s depends on the machine's load."""


def outcomes_of(names: Sequence[str], timeout_s: float) -> list[dict[str, str]]:
    """Per rank: what became of each test."""
    with running(["tests.torch.suite_rank", "out%r.jsonl", *names], 3) as job:
        codes = job.wait(timeout_s)
        assert codes == [0, 0, 0], job.output(0)[-3000:]
        files = [(job.folder / f"out{rank}.jsonl").read_text().splitlines() for rank in range(3)]
        return [{name: outcome for name, outcome, _ in map(json.loads, lines)} for lines in files]


def expect_ok(outcomes: list[dict[str, str]], name: str) -> None:
    """Assert that the test passed on every rank, without having skipped itself."""
    for rank, of_rank in enumerate(outcomes):
        assert of_rank[name] == "ok", f"rank {rank}: {of_rank[name]}"


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    """The chosen tests, in one launch."""
    return outcomes_of(CHOSEN, 240.0)


@pytest.fixture(scope="module")
def further_outcomes() -> list[dict[str, str]]:
    """The further tests, in one launch."""
    return outcomes_of(FURTHER, 280.0)


@pytest.mark.parametrize("name", CHOSEN)
def test_of_pytorch(outcomes: list[dict[str, str]], name: str) -> None:
    expect_ok(outcomes, name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FURTHER)
def test_further_of_pytorch(further_outcomes: list[dict[str, str]], name: str) -> None:
    expect_ok(further_outcomes, name)
