"""Stale training with DDP and without, on real ranks with a real switch. Run by tests/torch/rank_main.py."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import ConfigurationError
from fanin.host.stale.bound import DynamicBound
from fanin.host.stale.quorum import SemiAsynchronousQuorum
from fanin.host.torch import AsynchronousOptimizer, StaleOptions, StaleSynchronousState, stale_synchronous_hook

WIDTH, CLASSES, BATCH = 24, 4, 16


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 48), nn.Tanh(), nn.Linear(48, CLASSES))


def batch(rank: int, step: int, count: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """A task that a small network learns: which of four directions the input lies in."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(count, WIDTH, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(dim=1)


def compute(times: int) -> None:
    """Be slow by having more to compute."""
    for _ in range(10 * times):
        torch.mm(torch.ones(128, 128), torch.ones(128, 128))


def accuracy(model: nn.Module) -> float:
    inputs, targets = batch(99, 99_999, 512)
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == targets).float().mean())


def expect_identical(model: nn.Module, size: int) -> None:
    bits = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everyones = [torch.empty_like(bits) for _ in range(size)]
    dist.all_gather(everyones, bits)
    assert all(torch.equal(bits, other) for other in everyones), "replicas differ"


def expect_shards(description: str) -> None:
    shards = os.environ.get("EXPECTED_SHARDS")
    assert (f"one of {shards} shards" if shards else "slots") in description
    assert shards or "shards" not in description, description


def train_with_hook(rank: int, steps: int, options: StaleOptions) -> tuple[nn.Module, StaleSynchronousState]:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    state = StaleSynchronousState(options)
    model.register_comm_hook(state, stale_synchronous_hook)
    for step in range(steps):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        if rank == step % 3:  # unlike paces, so that there is something late
            compute(2)
        optimizer.step()
    expect_shards(state.description)
    accounts = state.flush(optimizer)
    assert [account.contributed for account in accounts] == [steps - 2] * len(accounts), "every gradient lands"
    return model, state


def check_stale_synchronous_replicas_are_identical_after_the_flush(rank: int, size: int) -> None:
    model, _ = train_with_hook(rank, 40, StaleOptions(staleness=2, quorum=1))
    expect_identical(model, size)
    assert accuracy(model) > 0.6


def check_scale_epochs_change_where_all_agree(rank: int, size: int) -> None:
    model, state = train_with_hook(rank, 40, StaleOptions(staleness=2, quorum=2, epoch_rounds=12, lanes=16))
    expect_identical(model, size)
    assert state.account is not None
    assert state.account.bases.count("D") == 2 * (len(state.account.bases) // 12)


def check_staleness_zero_is_synchronous_training(rank: int, size: int) -> None:
    model, _ = train_with_hook(rank, 12, StaleOptions(staleness=0))
    plain = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.3, momentum=0.9)
    for step in range(12):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def train_asynchronously(
    rank: int, size: int, rounds: int, policy: str, late_by: int = 0, **given: Any
) -> AsynchronousOptimizer:
    """`late_by`: rounds that go on while the last rank computes; rounds and not time, which depends on the machine."""
    model = make_model()
    torch.manual_seed(rank)
    optimizer = AsynchronousOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2), model, rounds=rounds, policy=policy, **given
    )
    step = 0
    while not optimizer.finished:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        compute(1)
        if rank == size - 1 and step > 0:  # the first step opens the job: no round is over before
            comes_at = optimizer.version + late_by
            while optimizer.version < comes_at and not optimizer.finished:
                compute(1)
        optimizer.step(loss)
        step += 1
    expect_shards(optimizer.description)
    accounts = optimizer.flush()
    expect_identical(model, size)
    assert sum(account.contributions for account in accounts) > 0
    assert len(accounts[0].contributors) == rounds + optimizer.options.staleness
    assert accuracy(model) > 0.35, "a quarter is chance"
    return optimizer


def check_asynchronous_skip_goes_on_past_a_slow_worker(rank: int, size: int) -> None:
    options = StaleOptions(staleness=8, quorum=size - 1)
    optimizer = train_asynchronously(rank, size, 60, "skip", late_by=3, options=options)
    assert optimizer.account is not None
    if rank == size - 1:
        assert optimizer.account.bases.count("P") > 0, str(optimizer.account)
    contributors = optimizer.account.contributors[:60]
    assert min(contributors) >= size - 1, f"late passes closed a round: {contributors}"


def check_asynchronous_fold_keeps_what_is_too_old(rank: int, size: int) -> None:
    optimizer = train_asynchronously(
        rank, size, 60, "fold", late_by=3, options=StaleOptions(staleness=4, quorum=size - 1, bound=1)
    )
    assert optimizer.account is not None
    assert not optimizer.account.dropped["too old"]


def check_asynchronous_wait_loses_nothing(rank: int, size: int) -> None:
    optimizer = train_asynchronously(rank, size, 40, "wait", options=StaleOptions(staleness=2))
    account = optimizer.account
    assert account is not None
    assert account.contributed == account.handed_in - account.dropped["at the end"]


def check_rates_by_staleness_and_by_predicted_loss(rank: int, size: int) -> None:
    train_asynchronously(rank, size, 50, "skip", staleness_rate=True, predict_loss=True, schedule=lambda v: 0.99**v)


def check_a_group_without_a_switch_is_refused(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ConfigurationError, match="fanin"):
        StaleSynchronousState(group=gloo)


def check_the_bound_and_the_quorum_are_chosen_at_run_time(rank: int, size: int) -> None:
    model, state = train_with_hook(rank, 42, StaleOptions(quorum=1, tune=DynamicBound(lowest=1, highest=3)))
    expect_identical(model, size)
    optimizer = train_asynchronously(
        rank, size, 80, "skip", options=StaleOptions(staleness=8, tune=SemiAsynchronousQuorum(bound=4))
    )
    if rank == 0:
        assert state.choices, "nothing was chosen in 40 steps"
        assert all(1 <= choice <= 3 for choice in state.choices)
        assert all(1 <= choice <= size for choice in optimizer.choices)
