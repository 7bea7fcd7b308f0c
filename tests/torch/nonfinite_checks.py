"""Checks of sums that are not finite, and of ranks that are unlike the others, on every rank of one job."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import ConfigurationError, NonFiniteError, UnsupportedError
from fanin.host.torch import StaleSynchronousState, counters, nonfinite_reports, on_nonfinite, watch_ranks
from fanin.options import Options

WIDTH = 48
STEPS = 6
PLANTED_STEP = 4
"""From 0; the names of parameters are known by then."""


def group_that(policy: str) -> Any:
    """A group of all ranks with another reaction than the world's."""
    return dist.new_group(backend="fanin", pg_options=Options(on_nonfinite=policy))  # type: ignore[arg-type]


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))


def train(model: nn.Module, rank: int, spoiler: int, after: Callable[[int], None] = lambda step: None) -> None:
    """Some steps, in one of which the gradient of the second bias of rank `spoiler` is NaN."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        hidden = model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank)))
        loss = hidden.square().mean()
        if step == PLANTED_STEP and rank == spoiler:
            loss = loss * math.nan
        loss.backward()
        optimizer.step()
        after(step)


def state_of(model: nn.Module) -> torch.Tensor:
    parts = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    return torch.cat([each.detach().reshape(-1) for each in parts])


def check_a_sum_names_who_spoiled_it_on_every_rank(rank: int, size: int) -> None:
    heard: list[tuple[int, ...]] = []
    handle = on_nonfinite(lambda report: heard.append(report.ranks))
    before = counters().get("nonfinite.sums", 0)
    for count in (100, 60_000):
        for spoiler in range(size):
            for later in (False, True):
                values = torch.ones(count)
                if rank == spoiler:
                    values[count - 2] = -math.inf
                work = dist.all_reduce(values, async_op=later)
                if work is not None:
                    work.wait()
                (culprit,) = nonfinite_reports()[-1].culprits
                assert (culprit.rank, culprit.first, culprit.count) == (spoiler, count - 2, 1)
                assert not values.isfinite().all()
    handle.remove()
    assert heard == [(spoiler,) for _ in range(2) for spoiler in range(size) for _ in range(2)]
    assert counters()["nonfinite.sums"] == before + 4 * size


def check_a_ddp_script_is_told_the_parameter(rank: int, size: int) -> None:
    """In a process that trains a second time, too: its third step is not the process's."""
    steps = [_step_of_a_named_parameter(rank, size) for _ in range(2)]
    assert steps[0] >= STEPS
    assert steps[1] - steps[0] == STEPS


def _step_of_a_named_parameter(rank: int, size: int) -> int:
    group = group_that("warn")
    model = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.01)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.index_fill(0, torch.tensor([1]), math.nan) if rank == size - 1 and planted else gradient

    model.module[1].bias.register_hook(spoil)
    planted = False

    def after(step: int) -> None:
        nonlocal planted
        planted = step == STEPS - 2

    train(model, rank, spoiler=-1, after=after)
    (report,) = nonfinite_reports(group)
    (culprit,) = report.culprits
    assert (culprit.rank, culprit.parameter) == (size - 1, "1.bias")
    assert "'1.bias'" in str(report)
    return report.step


def check_every_rank_raises_the_same(rank: int, size: int) -> None:
    group = group_that("raise")
    for count in (10, 5000):
        values = torch.full((count,), math.nan if rank == 1 else 1.0)
        with pytest.raises(NonFiniteError, match="rank 1 contributed") as raised:
            dist.all_reduce(values, group=group)
        assert raised.value.ranks == (1,)
        part = torch.zeros(count)
        work = dist.reduce_scatter_tensor(part, values.new_full((size * count,), (rank == 1 and math.inf) or 1.0),
                                          group=group, async_op=True)  # fmt: skip
        for _ in range(2):
            with pytest.raises(NonFiniteError):
                work.wait()
        fine = torch.ones(count)
        dist.all_reduce(fine, group=group)
        assert (fine == size).all(), "the group goes on"


def check_a_step_is_left_out_of_ddp_on_all_ranks_alike(rank: int, size: int) -> None:
    group = group_that("skip")
    model = DistributedDataParallel(make_model(), process_group=group)
    states: list[torch.Tensor] = []
    train(model, rank, spoiler=0, after=lambda step: states.append(state_of(model)))
    assert torch.equal(states[PLANTED_STEP], states[PLANTED_STEP - 1])
    assert not torch.equal(states[PLANTED_STEP + 1], states[PLANTED_STEP])
    assert states[-1].isfinite().all()
    assert group.counters()["nonfinite.skipped_steps"] == 1
    group.shutdown()


def check_a_step_is_left_out_of_fsdp_on_all_ranks_alike(rank: int, size: int) -> None:
    group = group_that("skip")
    model = make_model()
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    states: list[torch.Tensor] = []
    train(model, rank, spoiler=1, after=lambda step: states.append(state_of(model)))
    assert torch.equal(states[PLANTED_STEP], states[PLANTED_STEP - 1])
    assert not torch.equal(states[PLANTED_STEP + 1], states[PLANTED_STEP])
    assert states[-1].isfinite().all()
    optimizer = torch.optim.LBFGS(nn.Linear(2, 2).parameters())
    with pytest.raises(UnsupportedError, match="closure"):
        optimizer.step(lambda: torch.zeros(()))
    with pytest.raises(ConfigurationError, match="on_nonfinite"):
        StaleSynchronousState(group=group)
    group.shutdown()


def check_a_rank_with_other_weights_is_named(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    watch = watch_ranks(model, every=1)

    def after(step: int) -> None:
        if step == 2 and rank == 1:
            with torch.no_grad():
                model.module[2].weight.view(torch.int32)[0, 5] ^= 1 << 25

    train(model, rank, spoiler=-1, after=after)
    report, *_ = watch.reports
    assert (report.rank, report.kind, report.layer, report.step) == (1, "weights", "2", 4)
    watch.remove()


def check_a_rank_with_a_louder_loss_is_named(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    heard: list[Any] = []
    watch = watch_ranks(model, every=1, callback=heard.append)
    generator = torch.Generator().manual_seed(rank)
    for step in range(70):
        model.zero_grad()
        (
            model(torch.randn(32, WIDTH, generator=generator)).square().mean()
            * (10.0 if step >= 60 and rank == 2 else 1.0)
        ).backward()
        if step == 60:
            assert watch.reports == ()
    watch.remove()
    assert {(each.rank, each.kind) for each in heard} == {(2, "norm")}, heard
    assert 61 <= heard[0].step <= 65
    assert 5 < heard[0].norm_ratio < 20
    with pytest.raises(UnsupportedError, match="DistributedDataParallel"):
        watch_ranks(model.module)
