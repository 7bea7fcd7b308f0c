"""Examples of the gallery for four ranks, each with its own check. Run by rank_main.py: test_gallery_examples.py."""

from __future__ import annotations

from fanin.examples.parallel import (
    feedback_alignment,
    local_filters,
    lsh_mixture,
    saddle_point,
    several_tasks,
    sharded_states,
)
from fanin.examples.parallel.launcher import Asked

QUICK = Asked(quick=True)


def check_a_mixture_is_sent_a_quarter_of_the_bytes_by_buckets(rank: int, size: int) -> None:
    assert lsh_mixture.play(QUICK)["bytes_of_plain"] <= lsh_mixture.LARGEST_BYTES


def check_feedback_alignment_learns_with_one_sum_per_step(rank: int, size: int) -> None:
    assert feedback_alignment.play(QUICK)["sums_per_step"] == 1


def check_two_tasks_share_a_trunk(rank: int, size: int) -> None:
    assert several_tasks.play(QUICK)["contradicting"] > 0


def check_states_in_shards_train_like_one_process(rank: int, size: int) -> None:
    figures = sharded_states.play(QUICK)
    assert figures["states_per_rank"] < figures["states"]


def check_local_filters_in_stages_of_unlike_depth(rank: int, size: int) -> None:
    assert local_filters.play(QUICK)["seeds"] == 1


def check_a_saddle_point_over_shared_random_coordinates(rank: int, size: int) -> None:
    assert saddle_point.play(QUICK)["error_of_control"] > 0
