"""Local steps beside PyTorch's own engines and averagers, on four ranks. Run by rank_main.py; see
test_meetings_training.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import ConfigurationError, ReplicasDifferError
from fanin.host.torch import FaninProcessGroup, LocalSteps, Outer, check_replicas
from fanin.host.torch.training.meetings.parameters import check_alike

PERIOD = 3
STEPS = 7
RATE = 0.1


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))


def learn(model: nn.Module, rank: int, step: int) -> None:
    """The gradient of one step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(8, 16, generator=generator)
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), torch.arange(8)).backward()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [each.full_tensor() if isinstance(each, DTensor) else each.detach().clone() for each in model.parameters()]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def check_torchs_averager_over_fanin_has_the_weights_of_plain_local_steps(rank: int, size: int) -> None:
    theirs = network()
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(theirs.parameters(), lr=RATE), averager)
    ours = network()
    training = LocalSteps(ours, torch.optim.SGD(ours.parameters(), lr=RATE), period=PERIOD)
    # Their averager counts from 0, so that it averages after the first step, and then after every third one.
    learn(theirs, rank, 0)
    optimizer.step()
    learn(ours, rank, 0)
    training.step()
    training.flush()
    for step in range(1, STEPS):
        learn(theirs, rank, step)
        optimizer.step()
        learn(ours, rank, step)
        training.step()
    assert_close(weights(ours), weights(theirs))
    check_replicas(ours)


def check_every_shard_of_fsdp2_meets_its_replicas(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    replica, replicas = mesh.get_local_rank("replicate"), mesh.get_group("replicate")
    outer = Outer(lr=0.7, momentum=0.9, nesterov=True)
    model = network()
    for each in (model[0], model[2], model):
        fully_shard(each, mesh=mesh["shard"])
    training = LocalSteps(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), period=4, outer=outer, group=replicas, fragments=2,
        overlap=1, codec="16",
    )  # fmt: skip
    for step in range(6):
        learn(model, replica, step)  # the ranks of a replica share its samples
        training.step()
    training.flush()
    check_replicas(model, replicas)
    whole = network()
    same = LocalSteps(
        whole, torch.optim.AdamW(whole.parameters(), lr=0.01), period=4, outer=outer, group=replicas, fragments=2,
        overlap=1, codec="16",
    )  # fmt: skip
    for step in range(6):
        learn(whole, replica, step)
        same.step()
    same.flush()
    for own, other in zip(weights(model), weights(whole), strict=True):
        assert float((own - other).norm()) < 0.02 * float(other.norm()), rank


def check_engines_that_sum_over_the_same_ranks_are_refused(rank: int, size: int) -> None:
    model = network()
    synchronized = DistributedDataParallel(model)
    with pytest.raises(ConfigurationError, match="DistributedDataParallel sums"):
        LocalSteps(synchronized, torch.optim.SGD(model.parameters(), lr=RATE), period=2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for group, word in ((mesh.get_group("replicate"), "HSDP"), (mesh.get_group("shard"), "unlike parts")):
        sharded = network()
        fully_shard(sharded, mesh=mesh)
        with pytest.raises(ConfigurationError, match=word):
            LocalSteps(sharded, torch.optim.SGD(sharded.parameters(), lr=RATE), period=2, group=group)
    sharded = network()
    fully_shard(sharded, mesh=mesh["shard"])
    with pytest.raises(ConfigurationError, match="unlike parts"):  # the world has the replicas, and the shards as well
        LocalSteps(sharded, torch.optim.SGD(sharded.parameters(), lr=RATE), period=2)


def check_ranks_whose_gradients_are_summed_meet_all_in_one_group_or_each_in_another(rank: int, size: int) -> None:
    summed, some = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 3])
    if rank < 2:
        assert isinstance(some, FaninProcessGroup)
        with pytest.raises(ConfigurationError, match=r"alike on ranks \[0, 1, 2\], of which \[0, 1\] alone"):
            check_alike("the model", "an engine", summed, some, "")


def check_ddp_inside_a_host_and_local_steps_between_hosts(rank: int, size: int) -> None:
    """Gradients over two ranks each step, deltas over the other dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))
    model = network()
    wrapped = DistributedDataParallel(model, process_group=mesh.get_group("inside"))
    training = LocalSteps(
        wrapped, torch.optim.SGD(model.parameters(), lr=RATE), period=PERIOD, group=mesh.get_group("between")
    )
    for step in range(PERIOD):
        learn(wrapped, rank, step)
        training.step()
    check_replicas(model)


def check_ranks_may_have_to_be_alike_from_the_start(rank: int, size: int) -> None:
    model: Any = network()
    LocalSteps(model, torch.optim.SGD(model.parameters(), lr=RATE), period=2, init_sync=False)
    with torch.no_grad():
        model[0].bias[0] += rank
    with pytest.raises(ReplicasDifferError, match=r"0\.bias"):
        LocalSteps(model, torch.optim.SGD(model.parameters(), lr=RATE), period=2, init_sync=False)


def check_a_group_over_gloo_is_refused(rank: int, size: int) -> None:
    model = network()
    with pytest.raises(ConfigurationError, match="'fanin'"):
        LocalSteps(model, torch.optim.SGD(model.parameters(), lr=RATE), period=2, group=dist.new_group(backend="gloo"))
    alone = [dist.new_group([each]) for each in range(size)][rank]
    training = LocalSteps(model, torch.optim.SGD(model.parameters(), lr=RATE), period=2, group=alone)
    for step in range(3):
        learn(model, 0, step)
        training.step()
    training.flush()  # a group of one meets itself
