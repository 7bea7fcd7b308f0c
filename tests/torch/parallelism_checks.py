"""Examples of the gallery for eight ranks, each with its own check. Run by rank_main.py; see test_parallelism.py."""

from __future__ import annotations

from fanin.examples.parallel import mixture, sequence_groups, skipped_stages, transformer
from fanin.examples.parallel.launcher import Asked

QUICK = Asked(quick=True)


def check_a_mixture_of_experts_on_a_mesh_of_three_dimensions(rank: int, size: int) -> None:
    figures = mixture.play(QUICK)
    assert figures["with_dropping"] < figures["all_to_all_bytes"]


def check_a_transformer_by_four_schedules_on_a_mesh_of_three_dimensions(rank: int, size: int) -> None:
    figures = transformer.play(QUICK)
    assert set(transformer.SCHEDULES) < set(figures)


def check_sequences_in_groups_chosen_from_their_lengths(rank: int, size: int) -> None:
    assert sequence_groups.play(QUICK)["worst"] < 1.0


def check_a_pipeline_whose_microbatches_skip_stages(rank: int, size: int) -> None:
    assert skipped_stages.play(QUICK)["planned_time_ratio"] < skipped_stages.LARGEST_TIME
