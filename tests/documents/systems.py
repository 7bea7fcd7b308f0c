"""docs/systems.md: the systems that this project answers to, what of each works here, and what shows it.

`python -m tests.documents.systems > docs/systems.md` writes the page. tests/documents/test_systems.py fails when the
page is not what this table makes, and when a test or a command that a row names does not exist; tests/conftest.py fails
a test that a row names and that was skipped for anything but a missing optional tool.

A row says `works` only when its evidence shows the system's part on a real run. The row names the missing parts.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Literal

Status = Literal["works", "in part", "not yet"]

MISSING_TOOL = re.compile(
    r"\bon PATH\b|\b(?:is|are) not installed\b|\bpip install\b|\bnot built\b|\bneeds? root\b|\bonly root\b"
    r"|\bneeds the command\b|could not import|this processor has no|\bneeds a CUDA device\b|refuses network namespaces"
)
"""Reasons to skip a test that a row names: a tool, an extra, a privilege or a device that this machine lacks."""


@dataclass(frozen=True, slots=True)
class System:
    """One row of the table."""

    name: str
    part: str
    """The part of the system that has a place here."""
    status: Status
    here: str
    """The part that works here, and the part that does not."""
    evidence: tuple[str, ...] = ()
    """Node ids of pytest, commands that begin with `fanin` or `torchrun`."""

    def tests(self) -> list[str]:
        """Node ids among the evidence."""
        return [text for text in self.evidence if text.startswith("tests/")]

    def commands(self) -> list[str]:
        """Commands among the evidence."""
        return [text for text in self.evidence if not text.startswith("tests/")]


TRAINING = "tests/torch/test_training.py::test_training"
MEETINGS = "tests/torch/test_meetings_training.py::test_meetings"
COLLECTIVE = "tests/torch/test_collectives.py::test_collective"
CODECS = "tests/torch/test_codecs.py::test_codecs"
SHARDED = "tests/torch/test_shard_codecs.py::test_shard_codecs"
PARALLELISM_CHECKS = "tests/torch/test_parallelism.py::test_parallelism"
FEDERATED = "tests/federated/test_training.py::test_federated_training"
EXAMPLES = "tests/torch/test_examples.py::test_example"
GALLERY = "tests/torch/test_gallery_examples.py::test_gallery"
STALE = "tests/stale/test_training.py::test_stale_training"

IN_NETWORK = (
    System(
        "iSwitch",
        "aggregation in the switch for synchronous and asynchronous training: staleness bound, threshold, joining and "
        "leaving, forced close, hierarchy",
        "works",
        "PPO on Gymnasium's CartPole trains on four workers, synchronous and with S = 2, and every replica is "
        "bit-identical after the run. Late gradients are kept (`wait`, `fold`) or dropped and counted (`skip`). "
        "Staleness and quorums stop at one level of switches: trees are synchronous.",
        (
            "tests/stale/test_cartpole.py::test_four_workers_learn_and_end_bit_identical",
            f"{STALE}[check_asynchronous_skip_goes_on_past_a_slow_worker]",
            "tests/switch/test_rounds.py::test_a_quorum_closes_a_round_and_the_late_one_joins_the_next",
            "tests/control/test_survivors.py::test_a_job_goes_on_without_a_rank_and_a_new_process_takes_its_place",
            "torchrun --nproc-per-node 4 -m fanin.examples.cartpole --staleness 2",
        ),
    ),
    System(
        "SwitchML",
        "a pool of slots, exponents one window ahead, loss recovery",
        "works",
        "A float32 all-reduce over 32-bit lanes is within one float32 epsilon of the chunk's maximum of the float64 "
        "sum for up to 8 workers in the worst case, and loss, duplication and reordering change no bit.",
        (
            "tests/numerics/test_properties.py::test_float32_over_32_bit_lanes_is_within_one_epsilon_of_a_float64_sum",
            "tests/worker/test_item_stream.py::test_codes_travel_one_pool_ahead_of_words",
            "tests/worker/test_faults.py::test_a_hostile_network_does_not_change_a_bit",
            "fanin bench allreduce --loss 0,1,5",
        ),
    ),
    System(
        "ATP, A2TP",
        "several jobs on one switch, a fallback when it is full, congestion control",
        "works",
        "Two jobs that train at one switch at once reach the weights that each reaches alone, bit for bit "
        "([gallery.md](gallery.md)). A job that finds no memory is refused with the bytes needed and free; with "
        '`fallback="gloo"` it warns once and trains over gloo to the same accuracy. Pools are fixed: '
        "slots are not shared by jobs as in ATP. "
        "Each flow has a congestion window and pacing; losses are its signal, and ECN's marks where there are any.",
        (
            "tests/torch/test_jobs_beside.py::test_two_jobs_train_beside_each_other_as_alone_and_one_without_memory_over_gloo",
            "tests/switch/test_admission.py::test_jobs_do_not_see_each_other",
            "tests/control/test_joining.py::test_a_job_too_large_for_the_pool_is_refused_with_needed_and_free",
            "tests/torch/test_failures.py::test_at_a_switch_that_is_full_the_fallback_starts_on_gloo_and_says_so",
            "tests/simulator/test_shared_links.py::test_eight_workers_behind_one_link_use_nine_tenths_of_it",
            "tests/worker/test_congestion.py::test_a_loss_cuts_the_window_once_per_round_trip",
            "fanin bench fairness --rate 100mbit",
            "fanin gallery --only jobs_beside",
        ),
    ),
    System(
        "THC",
        "sums of quantization indices, Hadamard rotation, error feedback",
        "works",
        "Buckets are rotated, clipped and summed in lanes of 4 to 16 bits, with error feedback in the rotated domain; "
        "wide sums (4 bits up, 8 or 4 down) need no head room at any number of workers. The tables that THC's "
        "authors released have the errors on normal values that its construction gives here, within 2.6 %; and 8-bit "
        "lanes reach float32's accuracy ([codecs.md](codecs.md)).",
        (
            "tests/benchmarks/test_bench.py::test_thc_tables_have_the_errors_that_the_page_on_codecs_has",
            "tests/benchmarks/test_bench.py::"
            "test_no_table_of_ours_has_a_larger_error_than_the_one_that_thcs_authors_released",
            "tests/codecs/test_each_codec.py::test_rotated_lanes_are_within_the_figures_that_the_page_has",
            f"{CODECS}[check_codecs_train_as_well_as_float32_does]",
            "fanin bench codecs --train --task text --rates none --codecs lanes:8/8,rotated:4/8",
        ),
    ),
    System(
        "SHARP",
        "aggregation trees, quotas, a manager that admits jobs",
        "works",
        "A tree of two levels gives the bits of one switch. The controller admits jobs and bounds what one address "
        "may hold. A fallback is logged, never silent. A leaf below a leaf is refused by design "
        "([control.md](control.md)).",
        (
            "tests/switch/test_tree.py::test_a_tree_computes_what_one_switch_computes_to_the_bit",
            "tests/control/test_tree.py::test_a_tree_gives_every_rank_the_bits_that_one_switch_gives",
            "tests/hostile/test_strangers.py::test_one_address_holds_no_more_than_its_share_of_the_memory",
        ),
    ),
    System(
        "NetReduce, Flare",
        "reduction of unmodified collectives, reproducible sums",
        "works",
        "Sums are integers that wrap around, so that neither the order of arrival nor the shape of the tree changes a "
        "bit. Flare's sparse sums are not built.",
        (
            "tests/numerics/test_properties.py::test_the_order_of_contributions_changes_no_bit",
            f"{COLLECTIVE}[check_results_do_not_depend_on_the_run]",
            "tests/switch/test_tree.py::test_a_tree_computes_what_one_switch_computes_to_the_bit",
        ),
    ),
    System(
        "Trio-ML",
        "partial results when a worker straggles",
        "works",
        "A round closes at its quorum, or when a lost worker is evicted, and its result says how many contributions "
        "it holds; a mean divides by that number.",
        (
            "tests/switch/test_rounds.py::test_a_quorum_closes_a_round_and_the_late_one_joins_the_next",
            "tests/worker/test_survivors.py::test_a_mean_divides_by_who_was_there",
        ),
    ),
    System(
        "Canary",
        "trees that form themselves around congestion",
        "not yet",
        "Trees are configured (`--parent`) or follow the hosts of a job. No path is chosen by load.",
    ),
)

ENGINES = (
    System(
        "PyTorch DDP",
        "buckets, overlap, `no_sync`, uneven inputs, communication hooks",
        "works",
        'Unmodified scripts run with the backend "fanin". Of the 110 tests of PyTorch\'s own distributed suite '
        "that do not skip themselves on three CPU ranks, 99 passed; [torch.md](torch.md) has the causes of the other "
        "11. The tests here run 24 of them every time, and 74 more in the thorough run.",
        (
            f"{TRAINING}[check_ddp_trains_like_one_process]",
            f"{TRAINING}[check_ddp_no_sync_accumulates]",
            f"{TRAINING}[check_ddp_join_with_uneven_inputs]",
            "tests/torch/test_torchrun.py::test_a_script_that_names_only_the_backend_runs_with_a_switch_of_its_own",
            "tests/torch/test_torch_suite.py::test_of_pytorch",
            "tests/torch/test_torch_suite.py::test_further_of_pytorch",
            "torchrun --nproc-per-node 4 -m fanin.examples.train --backend fanin --task digits",
        ),
    ),
    System(
        "PyTorch FSDP (1 and 2)",
        "reduce-scatter and all-gather",
        "works",
        "Both train to the parameters of one process within 1e-5, hybrid sharding included. Reduce-scatter and "
        "all-gather are rounds of the switch: a rank keeps its part of the sum, or adds what it alone owns. Over 8 "
        "hosts with links of 100 Mbit/s a step takes gloo's time divided by 1.35, and by 4.4 with both moves in 8 bits "
        "([torch.md](torch.md)).",
        (
            f"{TRAINING}[check_fsdp1]",
            f"{TRAINING}[check_fsdp2]",
            f"{TRAINING}[check_fsdp2_with_hybrid_sharding]",
            "tests/torch/test_fsdp.py::test_fsdp2_trains_while_a_timeline_watches",
            "fanin bench sharded --workers 8 --rate 100mbit",
        ),
    ),
    System(
        "QSDP, ZeRO++",
        "quantized weights in all-gather, quantized gradients in reduce-scatter, hierarchical partition",
        "works",
        "`shard_codecs` on FSDP2: weights on QSDP's shifted grids in 8, 6 or 4 bits, gradients in lanes with error "
        "feedback, HSDP and the secondary partition (`reshard_after_forward=int`). ZeRO++'s quantized all-to-all has "
        "no counterpart: a switch adds, so gradients are quantized once.",
        (
            f"{SHARDED}[check_8_and_4_bits_train_nearly_as_float32_and_all_ranks_alike]",
            f"{SHARDED}[check_8_bits_take_at_most_27_percent_of_float32s_bytes]",
            f"{SHARDED}[check_hybrid_shards_narrow_the_sum_over_replicas_as_well]",
            f"{SHARDED}[check_a_secondary_partition_is_gathered_exactly]",
        ),
    ),
    System(
        "PatrickStar",
        "optimizer states sharded over ranks",
        "works",
        "PyTorch's ZeroRedundancyOptimizer trains as one process does. Memory management itself is the framework's.",
        (f"{TRAINING}[check_zero_redundancy_optimizer]",),
    ),
    System(
        "Colossal-AI",
        "device meshes, states and weights in shards",
        "works",
        "Optimizer states sharded beside DDP, and FSDP2's shards of everything, train to the weights of one process "
        "([gallery.md](gallery.md)). Offloading to host memory beside a GPU is in the example, and has not run.",
        (
            f"{GALLERY}[check_states_in_shards_train_like_one_process]",
            f"{TRAINING}[check_device_mesh_of_two_dimensions]",
            "fanin gallery --only sharded_states",
        ),
    ),
    System(
        "OneFlow",
        "transitions among split, broadcast and partial-sum layouts",
        "works",
        "All nine transitions of DTensor among Shard, Replicate and Partial are exact; those from Partial go through "
        "the switch ([gallery.md](gallery.md)). Partial sums of whole tensors and of shards are made by the example, "
        "since torch keeps these for itself.",
        (
            f"{EXAMPLES}[check_every_transition_of_layouts_is_exact]",
            f"{TRAINING}[check_dtensor]",
            "fanin gallery --only layouts",
        ),
    ),
    System(
        "Pathways",
        "dispatch that runs ahead of the data",
        "in part",
        "Collectives are submitted without waiting and finish in any order. There is no single controller for "
        "programs.",
        (f"{COLLECTIVE}[check_many_unawaited_collectives_finish_in_any_order_of_waiting]",),
    ),
    System(
        "MegaScale",
        "diagnosis at scale: who is slow, where packets die",
        "in part",
        "A failed wait names the rank and the address; `fanin stats` counts drops by reason; an emulated run ends with "
        "a table of who waited for whom. Nothing was run with more ranks than one machine holds.",
        (
            "tests/torch/test_failures.py::test_every_survivor_of_a_killed_rank_raises_in_time_and_names_it",
            "tests/network/test_emulate.py::test_workers_sum_over_their_links_and_all_of_it_is_recorded",
            "tests/control/test_diagnosis.py::test_ranks_that_are_missing_are_named",
            "fanin doctor udp://host:port",
            "fanin stats udp://host:port",
        ),
    ),
    System(
        "Frontier",
        "weak scaling",
        "in part",
        "The simulator's model takes 22.58 ms for 25 MiB on 10,000 workers in three levels, and 22.56 ms on 8 "
        "([simulation.md](simulation.md)): links bound it, 14 slots and 41 KiB per switch suffice, and 17 bits of a "
        "lane are left for one worker's value. It is arithmetic, held to the real machines on up to 27 workers in "
        "three levels. Jobs take 1,024 workers in two levels, and none was run on as many.",
        (
            "tests/simulator/test_scale.py::test_the_model_of_three_levels_ends_when_root_middle_and_leaf_machines_do",
            "tests/simulator/test_scale.py::test_the_model_of_ten_thousand_workers_is_within_a_hundredth_of_the_floor",
            "tests/simulator/test_scale.py::test_the_slots_that_a_tree_needs_fill_the_links_and_half_as_many_do_not",
            "fanin simulate --scale",
        ),
    ),
)

COMPRESSION = (
    System(
        "TernGrad",
        "three levels, a scale per layer, clipping, 4-bit lanes",
        "in part",
        "Three levels with a scale per layer, clipped and rounded without bias, in 4-bit lanes up to 7 workers and "
        "8-bit lanes beyond. The last layer is exempted by a rule of `by_layer`. Digits, 5 seeds: 1.2 points below "
        "float32, 0.6 to 0.8 with the last layer exempt; text, 5 seeds: a loss 5.2 % above, 3.8 % with the last layer "
        "exempt ([codecs.md](codecs.md)). Missing: the paper's 16 times fewer bytes up; it is 8.0 times fewer both "
        "ways up to 7 workers, 4 beyond.",
        (
            "tests/codecs/test_each_codec.py::"
            "test_the_mean_of_10_000_draws_of_three_levels_is_within_5_standard_errors",
            "fanin bench codecs --train --task digits --repeats 5 --rates none --codecs ternary:4",
            "tests/codecs/test_each_codec.py::test_ternary_sends_three_levels_and_clips_at_its_bound",
        ),
    ),
    System(
        "PowerSGD",
        "low-rank factors, summed in the switch",
        "in part",
        "The codec `low_rank` sums both factors in two stages, with error feedback and warm start. PyTorch's hook runs "
        "over the backend, too, with several buckets if `ordered_futures=True`. From one subspace both are the same "
        "computation up to rounding; digits, rank 4, 5 seeds: 0.7 points below float32 with either, in 30 (ours) and "
        "20 times fewer bytes than gloo ([codecs.md](codecs.md)). Missing: on text a loss within 2 % of float32's; it "
        "is 14 to 16 % above after 64 steps.",
        (
            f"{CODECS}[check_low_rank_is_torchs_power_sgd_from_the_same_subspace]",
            "fanin bench codecs --train --task digits --rates none --codecs low_rank:32:rank=4,power_sgd:fanin:rank=4",
            "tests/codecs/test_each_codec.py::test_low_rank_converges_on_what_does_not_change",
            f"{CODECS}[check_every_codec_keeps_the_replicas_alike_and_accounts_for_what_it_does]",
            f"{TRAINING}[check_power_sgd]",
            f"{TRAINING}[check_power_sgd_with_several_buckets_in_program_order]",
        ),
    ),
    System(
        "L-GreCo",
        "bits per layer, chosen under an error budget",
        "works",
        "The codec `adaptive` chooses each layer's lanes by L-GreCo's dynamic program, per bucket, from the gradients "
        "of the last steps; a guard widens, with a warning, the lanes of a layer that loses too much. On gradients of "
        "digits it sends 35 % fewer bytes than uniform lanes at step 50 and 0.5 % fewer at steps 1 and 300, at 0.35 to "
        "0.7 times the error ([codecs.md](codecs.md)).",
        (
            "tests/codecs/test_by_layer.py::test_the_budget_is_as_cheap_as_the_best_within_a_unit_for_each_layer",
            "tests/codecs/test_by_layer.py::"
            "test_at_the_error_it_is_allowed_the_budget_sends_at_least_15_percent_fewer_bits",
            "fanin bench codecs --workers 4 --values digits@50 --steps 12",
            f"{CODECS}[check_every_codec_keeps_the_replicas_alike_and_accounts_for_what_it_does]",
        ),
    ),
    System(
        "TAGC",
        "transformer-aware sparsification; sums of compressed sketches under sharding",
        "in part",
        "The codec `sketched` sums count sketches of each rank's largest elements, which every rank peels without "
        "error, under DDP and under FSDP2. Rules by name (`by_layer`) make it aware of a transformer's layers, under "
        "DDP alone. At TAGC's share of 20 % it sends more than 8-bit lanes do, and at 1 % more than 4-bit lanes "
        "([codecs.md](codecs.md)). Missing: a setting in which it is worth its bytes.",
        (
            f"{SHARDED}[check_sketches_under_shards_are_those_of_whole_gradients]",
            f"{SHARDED}[check_sketches_of_a_fifth_send_more_bytes_than_8_bit_lanes]",
            "fanin bench codecs --values digits@50 --codecs sketched:4:share=0.2,lanes:8/8",
            "tests/codecs/test_sketched.py::test_every_sketch_at_a_load_of_77_percent_peels_in_a_thousand_seeds",
            f"{CODECS}[check_every_codec_keeps_the_replicas_alike_and_accounts_for_what_it_does]",
        ),
    ),
    System(
        "MASHA",
        "Rand-k and Top-k in both directions, for variational inequalities",
        "in part",
        "Rand-k with coordinates that all ranks draw alike, unbiased or with error feedback. An example solves a "
        "bilinear saddle point by extragradient steps over them to 1e-6, in 1.6 times fewer words than without "
        "compression at its best step, and 2.3 times fewer than at 0.7 / L. At the theorem's step, with the constants "
        "as remembered, the error falls twice as fast as the theorem has it, over 5 seeds ([gallery.md](gallery.md)). "
        "Missing: twice fewer words at each method's best step, and Top-k in both directions.",
        (
            "tests/codecs/test_each_codec.py::test_without_feedback_the_mean_of_many_draws_is_the_input",
            f"{GALLERY}[check_a_saddle_point_over_shared_random_coordinates]",
            "fanin gallery --only saddle_point",
        ),
    ),
    System(
        "LSH-MoE",
        "compressed all-to-all",
        "in part",
        "A mixture of experts with top-2 gating learns text from centroids of buckets, in 24 % of the bytes of plain "
        "all-to-all and within 2 % of its loss. Missing: that compensation by the rest of a token is visibly better, "
        "as in the paper; here it gained next to nothing ([gallery.md](gallery.md)). The switch has no part in it.",
        (
            f"{GALLERY}[check_a_mixture_is_sent_a_quarter_of_the_bytes_by_buckets]",
            "fanin gallery --only lsh_mixture",
        ),
    ),
)

STALENESS = (
    System(
        "SSP",
        "a bound S on how far workers are apart",
        "works",
        "A DDP hook trains with bound S; replicas are bit-identical after the flush and every gradient is accounted "
        "for. With steps that vary at random it reached 90 % accuracy 1.2 to 1.6 times as fast as synchronous "
        "training; with one worker that is always slow it gains little or nothing ([staleness.md](staleness.md), "
        "*Measured*).",
        (
            f"{STALE}[check_stale_synchronous_replicas_are_identical_after_the_flush]",
            f"{STALE}[check_staleness_zero_is_synchronous_training]",
            "fanin bench staleness --conditions random",
        ),
    ),
    System(
        "DSSP",
        "S adapted at run time",
        "works",
        "Rank 0 chooses S from the ranks' paces. It beat no best fixed bound: in 12 conditions of virtual time, speeds "
        "that change among them, it took 1.00 to 1.39 times as long as the best of S = 0..3 (5 seeds, "
        "[staleness.md](staleness.md)), though less than S = 0 in eight; with real processes it was no better than "
        "SSP with S = 2.",
        (
            "tests/stale/test_bounds_in_virtual_time.py::test_bounds_beat_synchronous_steps_where_ranks_are_slow_in_turn_"
            "and_the_chosen_one_lies_between",
            "tests/stale/test_choices.py::test_the_fastest_goes_on_until_the_slowest_is_about_to_contribute",
            f"{STALE}[check_the_bound_and_the_quorum_are_chosen_at_run_time]",
            "fanin bench staleness --modes synchronous,ssp-2,dssp",
        ),
    ),
    System(
        "Staleness-aware async SGD",
        "learning rate divided by staleness",
        "works",
        "One option (`staleness_rate=True`), and the row `rate-by-age` of `fanin bench staleness`. Over 5 seeds it "
        "reaches 90 % 1.7 times as fast as synchronous training where steps vary at random, and 2.4 times where a "
        "worker is slow; without the division by age it is 1.9 and 2.9 times ([staleness.md](staleness.md)).",
        (
            "fanin bench staleness --modes synchronous,skip,rate-by-age",
            "tests/stale/test_rounds.py::test_the_rate_is_divided_by_the_staleness",
            f"{STALE}[check_rates_by_staleness_and_by_predicted_loss]",
        ),
    ),
    System(
        "Loss-prediction async SGD (LC-ASGD)",
        "gradients compensated by a predicted loss",
        "works",
        "One option (`predict_loss=True`), with a trend of each worker's own losses in place of the paper's LSTM at a "
        "parameter server, and the row `predicted-loss` of `fanin bench staleness`. Over 5 seeds it reaches 90 % 1.8 "
        "and 2.6 times as fast as synchronous training (random steps, a slow worker); without it it is 1.9 and 2.9 "
        "times, so it gains nothing there ([staleness.md](staleness.md)).",
        (
            "fanin bench staleness --modes synchronous,skip,predicted-loss",
            "tests/stale/test_prediction.py::test_an_exponential_decay_is_predicted_exactly",
            f"{STALE}[check_rates_by_staleness_and_by_predicted_loss]",
        ),
    ),
    System(
        "Local SGD",
        "several local steps between two averages",
        "works",
        "`LocalSteps` with any optimizer, outer step and codec; PyTorch's PostLocalSGDOptimizer and its hook, and "
        "torchft's LocalSGD, run over the backend. One table has time, bytes and accuracy on a slow link.",
        (
            "tests/torch/test_meetings.py::test_plain_local_steps_are_averaging",
            f"{MEETINGS}[check_torchs_averager_over_fanin_has_the_weights_of_plain_local_steps]",
            f"{TRAINING}[check_post_local_sgd]",
            "fanin bench meetings --task digits --rate 4mbit",
        ),
    ),
    System(
        "DiLoCo, Streaming DiLoCo",
        "rare meetings of deltas with an outer optimizer; fragments that meet one by one and travel meanwhile",
        "works",
        "Outer Nesterov momentum, fragments, overlap, mixing, deltas in 4 or 8 bits with residual; torchft's DiLoCo "
        "over the backend comes to the same weights. Text over 100 Mbit/s, 4 workers: 12 times as fast as DDP in "
        "32-bit lanes, 1.1 points below it after 48 steps; with steps of 0.5 s 5 % (4/8) and 4 % (8/8) slower than "
        "without communication, with steps of 0.17 s, too short to hide a meeting, 31 and 34 %.",
        (
            "tests/torch/test_meetings_rules.py::test_the_outer_step_is_the_oracles",
            "tests/torch/test_meetings.py::test_replicas_have_the_same_bits_after_a_flush",
            "tests/torch/test_meetings_torchft.py::test_diloco_has_the_weights_of_local_steps_with_its_outer_optimizer",
            "fanin bench meetings --task text --rate 100mbit --modes ddp-gloo,diloco,streaming-8/8,streaming-4/8",
        ),
    ),
    System(
        "CO2",
        "local steps with one step of delay and full overlap, staleness-gap penalty, outer momentum clipping",
        "works",
        "An overlap of a whole period, the gap as a number or measured (a rule of ours, since the paper's could not be "
        "read), clipped outer momentum. On digits it is within 1 point of DDP after 480 steps, and 2.7 points below "
        "after 160; the measured gap costs accuracy. Text over 100 Mbit/s: 6.1 times as fast as DDP in 32-bit lanes, "
        "11.6 times in 8/8, and 4 points below it after 48 steps. By the ranks' time lines, 96 to 99 % of an exchange "
        "that is shorter than its local steps is hidden, where 90 % are wanted.",
        (
            "tests/torch/test_meetings.py::test_an_overlapped_result_is_applied_one_period_late_and_nothing_is_lost",
            "tests/torch/test_meetings_rules.py::test_the_outer_step_is_the_oracles",
            "tests/torch/test_meetings_rules.py::test_the_measured_gap_grows_with_what_the_weights_moved_meanwhile",
            "fanin bench meetings --task digits --rate 4mbit --modes ddp-gloo,co2,co2-8/8,co2-gap,alone",
            "fanin bench meetings --task text --rate 100mbit --conditions even --modes co2,co2-8/8,alone",
        ),
    ),
    System(
        "QSR",
        "a synchronization period that grows as the learning rate falls",
        "works",
        "One option of `LocalSteps`. In the table it has local SGD's accuracy in fewer meetings than its least period "
        "would hold; the paper's gain on ImageNet does not show at this size.",
        (
            "tests/torch/test_meetings_rules.py::test_the_quadratic_rule_is_the_papers",
            "tests/torch/test_meetings.py::test_unlike_learning_rates_are_noticed_at_the_meeting_that_they_move",
            "fanin bench meetings --task digits --rate 4mbit --modes ddp-gloo,local-sgd,qsr,alone",
        ),
    ),
    System(
        "AMPNet",
        "asynchronous model-parallel updates",
        "works",
        "Stages of a pipeline, two replicas each, apply their gradients through stale rounds of their own, without a "
        "flush, and reach 90 % on digits, at 1.23 to 1.33 times the throughput of 1F1B with 4 microbatches per step, "
        "one in ten of which is slow (twelve runs on two quiet cores; 1.18 times with 8, 1.12 with 16: "
        "[federated.md](federated.md)).",
        (
            "tests/benchmarks/test_ampnet_virtual.py::test_ratios_are_those_of_the_page",
            f"{EXAMPLES}[check_ampnet_stages_learn_without_a_flush]",
            "torchrun --nproc-per-node 4 -m fanin.examples.ampnet --check",
        ),
    ),
    System(
        "FedSA",
        "a quorum K from observed speeds",
        "works",
        "K is chosen at run time, and 90 % accuracy came 2.4 times as fast as synchronously with steps that vary at "
        "random. Federated clients have it as a policy: 64 simulated ones reach 85 % 2.9 +-0.3 times as fast as FedAvg "
        "at its better rate, and 2.6 +-0.5 times on unlike data, where 1.5 is wanted (5 seeds, rate 0.1; at 0.3 they "
        "diverge: [federated.md](federated.md)); 8 real ones 2.4 +-0.3 times on even data. "
        "The paper's formula for K could not be read; ours is the smallest "
        "that keeps the slowest within the bound.",
        (
            f"{FEDERATED}[check_every_policy_trains_to_identical_replicas_and_a_balance]",
            "fanin bench federated --policies fedavg,fedsa",
            "tests/stale/test_choices.py::test_the_quorum_is_the_smallest_that_keeps_the_slowest_within_the_bound",
            f"{STALE}[check_the_bound_and_the_quorum_are_chosen_at_run_time]",
            "fanin bench staleness --modes synchronous,quorum",
        ),
    ),
    System(
        "Adaptive asynchronous federated learning",
        "a quorum from measured gains",
        "in part",
        "`AdaptiveQuorum` climbs on the fall of log(loss) per second, where the paper has a learned agent; federated "
        "clients have it as a policy: 64 simulated ones reach 85 % 5.5 +-1.5 times as fast as FedAvg on even data and "
        "8.7 +-1.8 times on unlike data, where two runs of five diverge later ([federated.md](federated.md)). "
        "Missing: the learned agent.",
        (
            "tests/stale/test_choices.py::test_the_adaptive_quorum_climbs_to_where_most_is_gained",
            f"{FEDERATED}[check_every_policy_trains_to_identical_replicas_and_a_balance]",
        ),
    ),
    System(
        "FedLesScan",
        "clusters of stragglers",
        "works",
        "A policy of federated training selects newcomers, clusters of like speed, and last those in back-off. "
        "64 simulated clients reach 85 % 2.4 +-0.4 times as fast as FedAvg on even and 2.4 +-0.9 times on unlike data, "
        "where 1.08 is wanted (5 seeds; one of them diverged later: [federated.md](federated.md)); 8 real ones 1.7 "
        "+-0.8 and 1.25 +-0.37 times.",
        (
            "tests/federated/test_policies.py::test_fedlesscan_takes_clients_of_like_speed_and_moves_on_to_slower_ones",
            f"{FEDERATED}[check_every_policy_trains_to_identical_replicas_and_a_balance]",
            "fanin bench federated --policies fedavg,fedlesscan",
        ),
    ),
    System(
        "Layer-wise asynchronous FL with temporally weighted aggregation",
        "shallow and deep layers at different rates, weights by age",
        "works",
        "A policy of federated training: deep layers have rounds of their own, one in three, and weights fall with "
        "age. To equal accuracy 64 simulated clients send 34 +-3 % fewer bytes on even data, where 30 % are wanted, "
        "and 28 +-6 % on unlike data (5 seeds); 8 real ones 42 +-5 and 30 +-8 % ([federated.md](federated.md)).",
        (
            f"{FEDERATED}[check_deep_layers_travel_every_few_rounds]",
            "fanin bench federated --policies fedavg,layerwise",
        ),
    ),
    System(
        "DAEF",
        "sums of Gram matrices, in one pass",
        "works",
        "An autoencoder in one pass has the weights of the central one within 1e-9, for any split over 1, 2 and 4 "
        "workers, and its AUC on digits is that of one trained by Adam ([federated.md](federated.md)).",
        (
            f"{EXAMPLES}[check_daef_has_the_central_weights_for_any_split_over_1_2_and_4_workers]",
            f"{TRAINING}[check_least_squares_from_sums_of_gram_matrices]",
            "torchrun --nproc-per-node 4 -m fanin.examples.daef --check",
        ),
    ),
)

PARALLELISM = (
    System(
        "Megatron-LM",
        "tensor and pipeline parallelism",
        "works",
        "A transformer on data x pipeline x tensor groups of 2 x 2 x 2 ranks has the gradients of one process within "
        "1e-5. Sums of tensor and data groups go through the switch, messages between stages through gloo, by their "
        "counters ([gallery.md](gallery.md)).",
        (
            f"{PARALLELISM_CHECKS}[check_a_transformer_by_four_schedules_on_a_mesh_of_three_dimensions]",
            f"{TRAINING}[check_tensor_parallelism]",
            "fanin gallery --only transformer",
        ),
    ),
    System(
        "GPipe",
        "pipelines of micro-batches",
        "works",
        "The same transformer by GPipe's schedule, 1F1B, interleaved stages and zero bubble, each against one process.",
        (
            f"{PARALLELISM_CHECKS}[check_a_transformer_by_four_schedules_on_a_mesh_of_three_dimensions]",
            f"{TRAINING}[check_pipeline_gpipe]",
            f"{TRAINING}[check_pipeline_1f1b]",
            "fanin gallery --only transformer",
        ),
    ),
    System(
        "SkipPipe",
        "skipped and reordered stages",
        "in part",
        "Microbatches on paths of their own skip a third of six stages and swap neighbours, over a runner of the "
        "example's: gradients are those of one process, and an iteration takes 0.58 of the full pipeline's planned "
        "time. Leaving out half of the layers afterwards costs less than after full training. Missing: a loss within "
        "5 % of full training's at equal steps ([gallery.md](gallery.md)).",
        (
            f"{PARALLELISM_CHECKS}[check_a_pipeline_whose_microbatches_skip_stages]",
            "tests/examples/test_gallery.py::test_planned_paths_are_near_the_best_of_all",
            "fanin gallery --only skipped_stages",
        ),
    ),
    System(
        "YUAN 2.0",
        "localized filtering attention; pipelines of uneven stages beside a sharded optimizer",
        "works",
        "Queries and keys from filtered states, values from the others, in stages of 2 and 1 layers whose replicas "
        "shard their optimizer: gradients are those of one process. At equal parameters the loss of text is 2.65 with "
        "the filter and 2.69 without, over 3 seeds ([gallery.md](gallery.md)).",
        (
            f"{GALLERY}[check_local_filters_in_stages_of_unlike_depth]",
            f"{TRAINING}[check_pipeline_1f1b]",
            "fanin gallery --only local_filters",
        ),
    ),
    System(
        "DeepSpeed-TED",
        "groups of three dimensions at once: tensor, expert, data; duplicate tokens that are not sent",
        "works",
        "A mixture of experts on a mesh of 2 x 2 x 2 ranks has the outputs and gradients of one process. Each tensor "
        "rank sends its part of the tokens, which are gathered inside the group: half of the all-to-all's bytes, by "
        "counter ([gallery.md](gallery.md)). Every group is a job of its own.",
        (
            f"{PARALLELISM_CHECKS}[check_a_mixture_of_experts_on_a_mesh_of_three_dimensions]",
            f"{COLLECTIVE}[check_subgroups_are_jobs_of_their_own]",
            "fanin gallery --only mixture",
        ),
    ),
    System(
        "DeepSpeed-MoE, SE-MoE",
        "all-to-all",
        "works",
        "In the same example two experts per rank have a capacity, and a loss of balance. Tokens are routed to them "
        "and back by uneven all-to-all, through gloo, forward and backward.",
        (
            f"{PARALLELISM_CHECKS}[check_a_mixture_of_experts_on_a_mesh_of_three_dimensions]",
            f"{COLLECTIVE}[check_all_to_all_even_and_uneven]",
            "fanin gallery --only mixture",
        ),
    ),
    System(
        "LASP",
        "linear attention over a sequence in parts: messages from rank to rank, or a gather of states",
        "works",
        "Causal linear attention with a decay, over unequal parts, has the outputs and gradients of the whole within "
        "1e-5, in either form; the bytes do not grow with the length ([gallery.md](gallery.md)). Messages go through "
        "gloo, LASP-2's gather through the switch.",
        (
            f"{EXAMPLES}[check_linear_attention_over_unequal_parts_by_messages_and_by_a_gather]",
            f"{COLLECTIVE}[check_point_to_point_with_tags_any_source_and_batches]",
            "fanin gallery --only linear_attention",
        ),
    ),
    System(
        "Heterogeneity-adaptive sequence parallelism",
        "several degrees of sequence parallelism per batch, from the lengths of its sequences (FlexSP)",
        "works",
        "A mixed-integer program groups 8 ranks by 1, 2 and 4 for each batch, as well as brute force on small ones, "
        "and the batch runs in these groups with the gradients of one process. By its model of time the makespan is "
        "0.72 of that of groups of 4, over 5 log-normal batches ([gallery.md](gallery.md)). No wall-clock was "
        "measured.",
        (
            f"{PARALLELISM_CHECKS}[check_sequences_in_groups_chosen_from_their_lengths]",
            "fanin gallery --only sequence_groups",
        ),
    ),
    System(
        "Holmes",
        "groups across unlike networks",
        "in part",
        "`fanin plan` chooses pipeline stages and data-parallel groups from the rates of links and uplinks that `fanin "
        "advise` measured, and deals layers in proportion to speed ([advise.md](advise.md)). Over emulated links the "
        "traffic of a step is quickest in the layout that it chooses, with large gradients and with large activations. "
        "Missing: a model that trains in the chosen groups, and hosts with several kinds of networks each.",
        (
            "tests/layouts/test_layouts_over_links.py::test_of_all_layouts_in_two_stages_the_planned_one_is_the_quickest",
            "tests/layouts/test_layouts.py::test_large_gradients_are_summed_within_racks_and_pipelines_cross_their_uplinks",
            "tests/torch/test_layout_lines.py::test_printed_lines_make_the_groups_of_the_layout",
            "tests/advice/test_advice.py::test_racks_of_namespaces_are_found_and_advised",
            "fanin plan",
        ),
    ),
    System(
        "CaRL",
        "PPO with large batches over data parallelism",
        "in part",
        "A PPO agent trains on 1 to 8 workers, whose minibatches add up. From 1 to 4 workers the simple reward takes "
        "1.5 times fewer iterations, the shaped one 1.3 times (5 seeds, intervals overlap). Missing: fewer iterations "
        "at 8 workers with the simple reward ([staleness.md](staleness.md#more-workers-larger-batches)).",
        (
            "tests/stale/test_cartpole.py::test_four_workers_learn_and_end_bit_identical",
            "tests/benchmarks/test_ppo_scaling.py::test_rewards_are_rows_and_numbers_of_workers_columns",
        ),
    ),
    System(
        "HD-PiSSA",
        "different adapters per worker, their deltas aggregated",
        "works",
        "An example trains adapters of unlike singular directions on 4 workers; their changes meet by a gather or a "
        "sum, whichever is smaller, and equal those of one process. The change has 8 times LoRA's rank at least.",
        (
            f"{EXAMPLES}[check_hd_pissa_is_one_process_by_gather_and_by_sum]",
            "torchrun --nproc-per-node 4 -m fanin.examples.hd_pissa --check",
        ),
    ),
    System(
        "Photonic direct feedback alignment",
        "training without backpropagation",
        "works",
        "Hidden layers learn from a ternary error through fixed random matrices, and one sum through the switch "
        "carries all of their gradients. Digits: 96.4 %, by backpropagation 97.2 % ([gallery.md](gallery.md)).",
        (
            f"{GALLERY}[check_feedback_alignment_learns_with_one_sum_per_step]",
            "fanin gallery --only feedback_alignment",
        ),
    ),
    System(
        "Multi-task learning (survey)",
        "several losses",
        "works",
        "Two tasks share a trunk; their gradients are summed apart and projected after the sum (PCGrad). Replicas are "
        "identical, and both tasks are within a point of training alone ([gallery.md](gallery.md)).",
        (f"{GALLERY}[check_two_tasks_share_a_trunk]", "fanin gallery --only several_tasks"),
    ),
)

MANY_JOBS = (
    System(
        "Stragglers",
        "a slow worker must not hold up the others",
        "works",
        "Quorums, passes and staleness; see the rows of SSP and iSwitch.",
        (f"{STALE}[check_asynchronous_skip_goes_on_past_a_slow_worker]",),
    ),
    System(
        "GPU scheduling, resource fragmentation",
        "slots as memory that several jobs want: admission, queues, quotas, priorities, compaction",
        "in part",
        "The controller admits, refuses with the bytes, bounds each address and reclaims at once. There are no queue, "
        "no priorities and no compaction, and no trace of jobs was simulated.",
        (
            "tests/control/test_controller.py::test_memory_of_an_ended_job_is_there_for_the_next_one_at_once",
            "tests/switch/test_admission.py::test_a_pool_is_refused_when_memory_is_out_and_fits_again_after_a_removal",
            "tests/hostile/test_strangers.py::test_one_address_holds_no_more_than_its_share_of_the_memory",
        ),
    ),
)

SECTIONS: dict[str, tuple[System, ...]] = {
    "In-network aggregation": IN_NETWORK,
    "Data-parallel engines": ENGINES,
    "Compression": COMPRESSION,
    "Staleness and less synchronization": STALENESS,
    "Other parallelism, and workloads": PARALLELISM,
    "Running many jobs": MANY_JOBS,
}

HEAD = """# Systems

Each row is a system of the literature: its part that has a place here, whether that part works, and what shows it.
`works` means that a test or command shows it on a real run; the rows `in part` and `not yet` say what is missing.
The page is generated by `python -m tests.documents.systems`; `tests/documents/test_systems.py` checks every name on it.
"""


def systems() -> list[System]:
    """Every row of every section."""
    return [system for section in SECTIONS.values() for system in section]


def evidence_tests() -> frozenset[str]:
    """Node ids of all rows."""
    return frozenset(node for system in systems() for node in system.tests())


def refused_skip(node: str, reason: str) -> str | None:
    """Why a row may not rest on this test that was skipped; None if it may, or if no row does."""
    names = evidence_tests()
    if not {node, node.split("[")[0]} & names or MISSING_TOOL.search(reason):
        return None
    return f"docs/systems.md rests on {node}, which was skipped for another reason than a missing tool: {reason}"


def markdown() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for title, section in SECTIONS.items():
        lines += [f"## {title}", "", "| system | part | status | here | shown by |", "|---|---|---|---|---|"]
        lines += [_row(system) for system in section]
        lines.append("")
    return "\n".join(lines)


def _row(system: System) -> str:
    shown = "; ".join(f"`{text}`" for text in system.evidence)
    return f"| {system.name} | {system.part} | {system.status} | {system.here} | {shown} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
