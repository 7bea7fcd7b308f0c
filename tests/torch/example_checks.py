"""The examples of systems of the literature, on four ranks, against one process or the central result."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fanin.examples import ampnet, daef, hd_pissa
from fanin.examples.parallel import layouts, linear_attention
from fanin.examples.parallel.launcher import Asked

QUICK = Asked(quick=True)


def check_daef_has_the_central_weights_for_any_split_over_1_2_and_4_workers(rank: int, size: int) -> None:
    samples, test, anomalous = daef.load()
    central = daef.fit(samples, lambda tensor: tensor)
    for workers in (1, 2, 4):
        group = dist.new_group(list(range(workers)))
        if rank >= workers:
            continue

        def add(tensor: torch.Tensor, group: dist.ProcessGroup = group) -> torch.Tensor:
            dist.all_reduce(tensor, group=group)
            return tensor

        for seed in (0, 1):
            model = daef.fit(daef.split(samples, workers, seed)[rank], add)
            assert daef.largest_difference(model, central) <= daef.TOLERANCE, (workers, seed)
    errors = central.errors(test)
    assert errors[anomalous].mean() > 1.3 * errors[~anomalous].mean()


def check_hd_pissa_is_one_process_by_gather_and_by_sum(rank: int, size: int) -> None:
    start, target = hd_pissa.matrices()
    alone = hd_pissa.train_alone(size)
    for by_gather in (True, False):
        adapter = hd_pissa.Adapter(start, rank)
        exchange, weight = hd_pissa.Exchange(adapter, start, rank, size, by_gather), start
        for step in range(hd_pissa.STEPS):
            gradient = hd_pissa.gradient(weight, *hd_pissa.data(rank, step, target))
            weight = weight - exchange.total(*adapter.changes(gradient))
        assert (weight - alone).abs().max() <= hd_pissa.TOLERANCE * (alone - start).abs().max()
    assert hd_pissa.effective_rank(alone - start) >= hd_pissa.RANK_TIMES * size * hd_pissa.RANK


def check_hd_pissa_takes_the_smaller_exchange(rank: int, size: int) -> None:
    assert hd_pissa.gathers(100, 100, rank=8, workers=4) == (True, 6400.0, 10_000.0)
    assert hd_pissa.gathers(100, 100, rank=8, workers=8) == (False, 12_800.0, 10_000.0)
    assert not hd_pissa.gathers(100, 100, rank=8, workers=4, lane_bits=8)[0]


def check_ampnet_stages_learn_without_a_flush(rank: int, size: int) -> None:
    ampnet.FORWARD_S = (0.0, 0.0)
    replicas = size // ampnet.STAGES
    groups = [dist.new_group(list(range(index, size, ampnet.STAGES))) for index in range(ampnet.STAGES)]
    own, _ = ampnet.train_stage(rank, replicas, groups[rank % ampnet.STAGES], 250, 2)
    stages = ampnet.make_stages(None)
    for index, stage in enumerate(stages):
        for parameter, trained in zip(stage.parameters(), (own if index == rank else stage).parameters(), strict=True):
            parameter.data.copy_(trained.data)
            dist.broadcast(parameter.data, index)
    assert ampnet.accuracy(stages) > 0.6


def check_linear_attention_over_unequal_parts_by_messages_and_by_a_gather(rank: int, size: int) -> None:
    figures = linear_attention.play(QUICK)
    assert figures["bytes_of_messages"] > 0
    assert figures["bytes_of_gather"] > 0


def check_every_transition_of_layouts_is_exact(rank: int, size: int) -> None:
    assert layouts.play(QUICK)["partial to shard"] == "switch"
