"""Federated training on real ranks with a real switch. Run by tests/torch/rank_main.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fanin.errors import CollectiveTimeoutError, ConfigurationError, UnsupportedError
from fanin.host.federated.policies import POLICIES
from fanin.host.federated.policies.fed_avg import FedAvg
from fanin.host.federated.policies.fed_buff import FedBuff
from fanin.host.federated.policies.layer_wise import LayerWise
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.stale.account import Account
from fanin.host.torch import Federated, FederatedOptions, LocalSteps
from tests.support.replicas import CLASSES, WIDTH, compute, expect_identical, make_model

SAMPLES = (64, 16, 32, 48)
"""Samples of each client: unlike, so that weights matter."""


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(SAMPLES[client], WIDTH, generator=torch.Generator().manual_seed(client))
    return inputs, inputs[:, :CLASSES].argmax(dim=1)


def turn(model: nn.Module, client: int, rate: float = 0.2) -> torch.Tensor:
    """Two local steps on all of a client's data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    inputs, targets = data(client)
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return loss


def train(client: int, policy: FederatedPolicy | str, rounds: int, **given: Any) -> tuple[nn.Module, Federated]:
    model = make_model()
    federated = Federated(model, samples=SAMPLES[client], rounds=rounds, policy=policy, **given)
    while federated.begin():
        loss = turn(model, client, 0.2 * federated.rate)
        compute(client)  # unlike speeds
        federated.hand_in(loss)
    expect_balance(federated.flush(), federated)
    return model, federated


def expect_balance(accounts: list[list[Account]], federated: Federated) -> None:
    for of_part, own in zip(accounts, federated.accounts, strict=True):
        for account in of_part:
            assert account.handed_in == account.contributed + sum(account.dropped.values())
        assert set(own.dropped) <= {"at the end"}
        assert sum(account.contributed for account in of_part) == sum(of_part[0].contributors)


def check_every_policy_trains_to_identical_replicas_and_a_balance(rank: int, size: int) -> None:
    for name in POLICIES:
        model, federated = train(rank, name, 9)
        assert federated.finished, name
        expect_identical(model, size)


def averaged(rounds: int, size: int) -> nn.Module:
    """The model after FedAvg by definition, in one process."""
    expected = make_model()
    for _ in range(rounds):
        ends = []
        for client in range(size):
            replica = make_model()
            replica.load_state_dict(expected.state_dict())
            turn(replica, client)
            ends.append([each.detach() for each in replica.parameters()])
        with torch.no_grad():
            for parameter, *values in zip(expected.parameters(), *ends, strict=True):
                weighted = sum(count * value for count, value in zip(SAMPLES, values, strict=True))
                parameter.copy_(weighted / sum(SAMPLES))
    return expected


def expect_close(model: nn.Module, expected: nn.Module) -> None:
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def check_fedavg_is_the_mean_by_samples(rank: int, size: int) -> None:
    model, _ = train(rank, FedAvg(), 3)
    expect_close(model, averaged(3, size))


def check_fedavg_stays_in_step_where_the_scale_changes(rank: int, size: int) -> None:
    """Some rounds hold no delta: a client that began its turn by the version was a round ahead after the first."""
    model, federated = train(rank, FedAvg(), 16, options=FederatedOptions(staleness=2, epoch_rounds=5))
    contributors = federated.accounts[0].contributors[:16]
    assert [round for round, count in enumerate(contributors) if not count] == [5, 6, 10, 11, 15]
    assert set(contributors) == {0, size}
    assert set(federated.accounts[0].ages) == {0}
    expect_close(model, averaged(11, size))


def check_no_round_is_spent_on_a_scale_that_fits(rank: int, size: int) -> None:
    """The first scale follows from the weights of deltas, so early changes would tell nothing."""
    model, federated = train(rank, FedAvg(), 40)
    assert federated.accounts[0].contributors[:40] == [size] * 40, federated.accounts[0]
    expect_close(model, averaged(40, size))


def check_a_round_closes_without_those_who_still_compute(rank: int, size: int) -> None:
    model = make_model()
    federated = Federated(model, samples=1, rounds=12, policy=FedBuff(quorum=2))
    late = False
    while federated.begin():
        turn(model, rank)
        if rank == size - 1 and not late:
            until = federated.version + 3
            while federated.version < until:  # rounds go on without this client
                compute(1)
            late = True
        federated.hand_in()
    accounts = federated.flush()[0]
    assert min(accounts[0].contributors[:12]) >= 1
    # Not beside another client's number: with K = 2 of 4 any of them may be left out of rounds on a busy machine.
    assert accounts[size - 1].contributed <= len(accounts[0].contributors) - 3
    expect_identical(model, size)


def check_a_fast_client_begins_no_turn_while_a_delta_of_its_waits(rank: int, size: int) -> None:
    """Rounds of all clients: a delta is one round old at most, since it is computed while the last one travels."""
    model = make_model()
    federated = Federated(model, samples=1, rounds=8, policy=FedBuff(quorum=size))
    while federated.begin():
        turn(model, rank)
        if rank == size - 1:
            compute(20)  # far slower than the others
        federated.hand_in()
    accounts = federated.flush()[0]
    assert set(federated.accounts[0].ages) <= {0, 1}, federated.accounts[0].ages
    assert sum(account.contributed for account in accounts) >= 7 * size
    expect_identical(model, size)


def check_deep_layers_travel_every_few_rounds(rank: int, size: int) -> None:
    model = make_model()
    federated = Federated(model, samples=SAMPLES[rank], rounds=10, policy=LayerWise(deep_every=3, fraction=0.5))
    while federated.begin():
        turn(model, rank)
        federated.hand_in()
    shallow, deep = federated.flush()
    assert len(shallow[0].contributors) == 10 + 2, "the flush takes S rounds more"
    assert len(deep[0].contributors) == 3
    assert 0 < sum(account.contributed for account in deep) <= 3 * size
    expect_identical(model, size)


def check_a_flush_before_the_last_round_ends_with_the_groups_timeout(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=4))  # gloo connects within it, too, on a loaded machine
    federated = Federated(make_model(), samples=1, rounds=3, policy="fedavg", group=group)
    assert federated.begin()
    federated.hand_in()
    told = rf"after 4 s on rank {rank}, at base 1.*Remedy: on every client, train until `begin` returns False"
    with pytest.raises(CollectiveTimeoutError, match=told):
        federated.flush()
    dist.destroy_process_group(group)


class Kinds(nn.Module):
    """Parameters of every type that travels, empty, tied, transposed; buffers of types that stay."""

    wide: nn.Parameter
    small: nn.Parameter
    brain: nn.Parameter
    count: torch.Tensor
    mask: torch.Tensor
    waves: torch.Tensor

    def __init__(self, rank: int) -> None:
        super().__init__()
        for name, kind in {"wide": torch.float64, "small": torch.float16, "brain": torch.bfloat16}.items():
            self.register_parameter(name, nn.Parameter(torch.ones(3, dtype=kind)))
        self.empty = nn.Parameter(torch.zeros(0, 2))
        self.turned = nn.Parameter((torch.arange(6.0) / 8).view(2, 3).t())
        self.tied = self.turned
        self.register_buffer("count", torch.arange(3) + rank)
        self.register_buffer("mask", torch.tensor([rank == 0, True]))
        self.register_buffer("waves", torch.full((2,), rank + 1j))


def check_every_kind_of_parameter_travels_and_float64_is_not_rounded_first(rank: int, size: int) -> None:
    model = Kinds(rank)
    federated = Federated(model, samples=1, rounds=1, policy="fedavg")
    assert model.count.tolist() == [0, 1, 2]
    assert model.mask.tolist() == [True, True]
    assert model.waves.tolist() == [1j, 1j]
    assert federated.begin()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(2e-8 if parameter.dtype is torch.float64 else 0.5)
    federated.hand_in()
    federated.flush()
    assert -4e-8 < float((model.wide.detach() - 1.0).max()) < -1e-8, "float32 has nothing between 1 and 1 - 6e-8"
    torch.testing.assert_close(model.turned.detach(), (torch.arange(6.0) / 8).view(2, 3).t() - 0.5)
    assert model.small.tolist() == model.brain.tolist() == [0.5] * 3
    assert model.tied is model.turned


def check_parameters_that_cannot_travel_are_refused(rank: int, size: int) -> None:
    for kind in (torch.complex64, torch.complex128, torch.int64, torch.bool):
        model = make_model()
        model.register_parameter("odd", nn.Parameter(torch.ones(3, dtype=kind), requires_grad=kind.is_complex))
        told = rf"parameter 'odd' is {kind}; .*Remedy: "
        with pytest.raises(UnsupportedError, match=told):
            Federated(model, samples=1, rounds=1)
        if kind.is_complex:  # torch trains none of the others
            with pytest.raises(UnsupportedError, match=told):
                LocalSteps(model, torch.optim.SGD(model.parameters(), lr=0.1), period=1)
    with pytest.raises(ConfigurationError, match="the model, a ReLU, has no parameter"):
        Federated(nn.ReLU(), samples=1, rounds=1)


def check_numbers_that_are_none_are_refused(rank: int, size: int) -> None:
    for samples in (0, -1, 2.5, float("nan"), float("inf"), True, "3", 1 << 64):
        with pytest.raises(ConfigurationError, match=r"samples = .*; must be a whole number, at least 1\. Remedy: "):
            Federated(make_model(), samples=samples, rounds=1)  # type: ignore[arg-type]
    for rounds in (0, 1.5, float("nan")):
        with pytest.raises(ConfigurationError, match=r"rounds = .*; must be a whole number"):
            Federated(make_model(), samples=1, rounds=rounds)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=rf"quorum = 9 over {size} clients.*Remedy: a quorum of 1 to {size}"):
        Federated(make_model(), samples=1, rounds=1, policy=FedBuff(quorum=9))
    for given in ({"staleness": 0}, {"staleness": 2.5}, {"max_age": -1}, {"epoch_rounds": 2}, {"patience_s": 0.0}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(given))} = .*Remedy: "):
            FederatedOptions(**given)


def check_what_a_client_does_wrong_is_named(rank: int, size: int) -> None:
    model = make_model()
    with pytest.raises(ConfigurationError, match="samples = 0"):
        Federated(model, samples=0, rounds=1)
    with pytest.raises(ConfigurationError, match="must be one of fedavg"):
        Federated(model, samples=1, rounds=1, policy="fedprox")
    federated = Federated(model, samples=1, rounds=2, policy="fedavg")
    with pytest.raises(ConfigurationError, match="without begin"):
        federated.hand_in()
    with pytest.raises(UnsupportedError, match="FANIN_ON_WORKER_LOSS=continue"):
        federated.leave()
    while federated.begin():
        federated.hand_in()
    federated.flush()
