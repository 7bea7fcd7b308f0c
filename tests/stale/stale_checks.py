"""Stale training with DDP and without, on real ranks with a real switch. Run by tests/torch/rank_main.py."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import CollectiveMismatchError, ConfigurationError, FaninError
from fanin.host.stale.account import PASSED_DRAIN
from fanin.host.stale.bound import DynamicBound
from fanin.host.stale.quorum import SemiAsynchronousQuorum
from fanin.host.torch import AsynchronousOptimizer, StaleOptions, StaleSynchronousState, stale_synchronous_hook
from tests.support.replicas import CLASSES, WIDTH, compute, expect_identical, make_model

BATCH = 16


def batch(rank: int, step: int, count: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """A task that a small network learns: which of four directions the input lies in."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(count, WIDTH, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(dim=1)


def accuracy(model: nn.Module) -> float:
    inputs, targets = batch(99, 99_999, 512)
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == targets).float().mean())


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
    drained = [base for base, use in enumerate(optimizer.account.bases[:60]) if use == PASSED_DRAIN]
    # A pass of a drain that is sent before its round was heard of lands up to S rounds later, and counts there.
    touched = {base + late for base in drained for late in range(options.staleness + 1)}
    contributors = [count for base, count in enumerate(optimizer.account.contributors[:60]) if base not in touched]
    assert len(contributors) > 40
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


class Whole(nn.Module):
    """A model with a parameter of each kind; `forward` leaves out what its caller has no use for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.used = nn.Parameter(torch.randn(5, 3))
        self.turning = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.rows = nn.Embedding(6, 3, sparse=True)
        self.frozen = nn.Parameter(torch.randn(7), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(7))
        self.dead = nn.Parameter(torch.randn(7))
        self.empty = nn.Parameter(torch.zeros(0))

    def forward(self, rank: int) -> Any:
        """A value whose gradients differ by rank; rank 0 alone uses `scalar`, and `dead` counts zero times."""
        loss = (self.used * (rank + 1)).square().sum() + (self.turning * (1 + 1j * rank)).real.square().sum()
        loss = loss + self.rows(torch.tensor([rank, 1])).square().sum() + self.empty.sum() + 0.0 * self.dead.sum()
        return loss + self.scalar.square() if rank == 0 else loss


def check_a_round_steps_the_parameters_that_have_a_gradient_as_torch_does(rank: int, size: int) -> None:
    """Complex and sparse gradients; parameters that are frozen, unused, used by one rank, empty; with weight decay."""
    model, reference = Whole(), Whole()
    rounds = 3
    optimizer = AsynchronousOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9),
        model,
        rounds=rounds,
        policy="wait",
        options=StaleOptions(staleness=0, quorum=size),
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9)
    for _ in range(rounds):
        optimizer.zero_grad()
        model(rank).backward()
        optimizer.step()
        assert optimizer._job is not None
        optimizer._job.runner.wait_for_results()
        optimizer._take_weights()  # as torch's optimizer, without the delay
        plain.zero_grad()
        (sum((reference(each) for each in range(size)), torch.zeros(())) / size).backward()
        for parameter in reference.parameters():
            if parameter.grad is not None and parameter.grad.layout is torch.sparse_coo:
                parameter.grad = parameter.grad.to_dense()
        plain.step()
    optimizer.flush()
    for (name, own), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5, msg=partial("{}: {}".format, name))
    assert torch.equal(model.frozen, Whole().frozen)
    assert torch.equal(model.unused, Whole().unused)
    assert not torch.equal(model.dead, Whole().dead), "a gradient of zero is one: weight decay applies"


def check_training_whose_first_gradients_say_nothing_learns(rank: int, size: int) -> None:
    """They are zero, next to nothing, absent, or not finite at one rank."""
    for first in ("zero", "tiny", "absent", "nan"):
        model = make_model()
        optimizer = AsynchronousOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.2), model, rounds=60,
            options=StaleOptions(staleness=2, quorum=size, lanes=16),
        )  # fmt: skip
        step = 0
        while not optimizer.finished:
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            if step == 0:
                loss = loss * {"zero": 0.0, "tiny": 1e-9, "absent": 1.0, "nan": math.nan if rank == 0 else 0.0}[first]
            if step > 0 or first != "absent":
                loss.backward()
            optimizer.step(loss)
            step += 1
        accounts = optimizer.flush()
        expect_identical(model, size)
        assert accuracy(model) > 0.5, f"{first}: {accuracy(model)}"
        assert sum(account.dropped["not finite"] for account in accounts) == (first == "nan")


def check_the_hook_learns_after_a_warm_up_of_zero_gradients(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    state = StaleSynchronousState(StaleOptions(staleness=1, quorum=size))
    model.register_comm_hook(state, stale_synchronous_hook)
    for step in range(40):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(inputs), targets) * (0.0 if step < 3 else 1.0)).backward()
        optimizer.step()
    state.flush(optimizer)
    expect_identical(model, size)
    assert accuracy(model) > 0.5


def check_options_that_would_part_the_replicas_are_refused(rank: int, size: int) -> None:
    model = make_model()
    with pytest.raises(ConfigurationError, match=r"LBFGS needs a closure.*Remedy: an optimizer"):
        AsynchronousOptimizer(torch.optim.LBFGS(model.parameters()), model, rounds=2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = AsynchronousOptimizer(inner, model, rounds=2)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=1)
    inputs, targets = batch(rank, 0)
    nn.functional.cross_entropy(model(inputs), targets).backward()
    inner.step()
    scheduler.step()
    with pytest.raises(ConfigurationError, match=r"lr of .* group 0 was 0\.1 and is .*schedule="):
        optimizer.step()


def check_ranks_of_unlike_options_or_states_are_refused_by_name(rank: int, size: int) -> None:
    def make(lr: float = 0.1, rounds: int = 9, warm: bool = False, **given: Any) -> AsynchronousOptimizer:
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        if warm:
            nn.functional.cross_entropy(model(batch(0, 0)[0]), batch(0, 0)[1]).backward()
            inner.step()
        return AsynchronousOptimizer(inner, model, rounds=rounds, **given)

    last = rank == size - 1
    for unlike, name in (
        ({"lr": 0.2 if last else 0.1}, "optimizer differs"),
        ({"warm": rank == 0}, "optimizer's state differs"),
        ({"rounds": 8 if last else 9}, "rounds differs"),
        ({"policy": "fold" if last else "skip"}, "policy differs"),
        ({"schedule": (lambda version: 0.5**version) if last else (lambda version: 1.0)}, "schedule differs"),
    ):
        with pytest.raises(CollectiveMismatchError, match=f"unlike asynchronous training: {name}.*Remedy: the same"):
            make(**unlike)
    make(warm=True)


def check_what_the_program_changes_between_steps_is_refused(rank: int, size: int) -> None:
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    inner.register_step_pre_hook(lambda *_: None)
    with pytest.raises(ConfigurationError, match=r"SGD has hooks of its step, which would not run.*Remedy"):
        AsynchronousOptimizer(inner, model, rounds=2)
    optimizer = AsynchronousOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, rounds=2)
    model.load_state_dict(make_model().state_dict())
    with pytest.raises(ConfigurationError, match=r"changed parameter '0.weight' since .*before AsynchronousOptimizer"):
        optimizer.step()


class Scaled(torch.optim.Optimizer):
    """A stranger's optimizer, with an attribute of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.scale = {"all": 0.2}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move against the gradient."""
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.sub_(self.scale["all"] * each.grad)


def check_an_optimizer_with_attributes_of_its_own_trains_and_its_state_can_be_saved(rank: int, size: int) -> None:
    for kind in (Scaled, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)):
        model = make_model()
        optimizer = AsynchronousOptimizer(kind(model.parameters()), model, rounds=40)
        step = 0
        while not optimizer.finished:
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            step += 1
        optimizer.flush()
        expect_identical(model, size)
        assert accuracy(model) > 0.35
        state = optimizer.state_dict()["state"]
        assert bool(state) == (kind is not Scaled), "momentum, of the copy that steps"
        assert optimizer.flush() == []
        with pytest.raises(ConfigurationError, match=r"was flushed\. Remedy: make another one"):
            optimizer.step()


def check_gradients_that_are_not_finite_hold_nobody_up(rank: int, size: int) -> None:
    """They are passed: by the hook, whose ranks stay in step, and where rounds wait for every rank."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    state = StaleSynchronousState(StaleOptions(staleness=1, quorum=size))
    model.register_comm_hook(state, stale_synchronous_hook)
    for _ in range(2):  # training goes on after a flush, as for a checkpoint
        for step in range(30):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            spoiled = rank == 1 and step in (2, 10, 11, 29)
            (nn.functional.cross_entropy(model(inputs), targets) * (math.nan if spoiled else 1.0)).backward()
            optimizer.step()
        accounts = state.flush(optimizer)
        assert [account.dropped["not finite"] for account in accounts] == [
            4 if each == 1 else 0 for each in range(size)
        ]
        expect_identical(model, size)
    assert accuracy(model) > 0.5
    plain = make_model()
    waits = AsynchronousOptimizer(
        torch.optim.SGD(plain.parameters(), lr=0.1), plain, rounds=12, policy="wait",
        options=StaleOptions(staleness=2, quorum=size),
    )  # fmt: skip
    while not waits.finished:
        waits.zero_grad()
        (
            nn.functional.cross_entropy(plain(batch(rank, 0)[0]), batch(rank, 0)[1]) * (math.nan if rank == 0 else 1.0)
        ).backward()
        waits.step()
    waits.flush()
    expect_identical(plain, size)
    assert all(bool(torch.isfinite(each).all()) for each in plain.parameters())


def check_a_failure_of_the_optimizer_names_it(rank: int, size: int) -> None:
    model = nn.Embedding(4, 3, sparse=True)
    optimizer = AsynchronousOptimizer(torch.optim.SparseAdam(model.parameters()), model, rounds=50)

    def train() -> None:
        while not optimizer.finished:
            optimizer.zero_grad()
            model(torch.tensor([rank, 1])).sum().backward()
            optimizer.step()
        optimizer.flush()

    with pytest.raises(FaninError, match=r"SparseAdam did not take the mean of round 0.*Remedy: an optimizer"):
        train()


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
