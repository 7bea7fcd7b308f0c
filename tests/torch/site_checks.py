"""HSDP inside sites, local steps between them: on 4 ranks with one shard per site, on 8 with two. Run by rank_main.py;
see test_sites.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fanin.errors import ReplicasDifferError
from fanin.host.torch import LocalSteps, Outer, check_replicas

SITES = REPLICAS = 2
PERIOD, STEPS = 4, 6
DILOCO = Outer(lr=0.7, momentum=0.9, nesterov=True)
STREAMING: dict[str, Any] = {"fragments": 2, "overlap": 1, "mix": 0.5, "codec": "rotated:8/8"}


def meshes(size: int) -> tuple[DeviceMesh, DeviceMesh]:
    """Sites x replicas x shards, and the same ranks as those that hold one shard x shards."""
    shards = size // (SITES * REPLICAS)
    return (
        init_device_mesh("cpu", (SITES, REPLICAS, shards), mesh_dim_names=("site", "replicate", "shard")),
        init_device_mesh("cpu", (SITES * REPLICAS, shards), mesh_dim_names=("same", "shard")),
    )


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))


def hybrid(mesh: DeviceMesh, model: nn.Sequential | None = None) -> nn.Sequential:
    """Sharded and replicated inside its site."""
    model = network() if model is None else model
    for each in (model[0], model[2], model):
        fully_shard(each, mesh=mesh["replicate", "shard"])
    return model


def loss(model: nn.Module, rank: int, step: int, scale: float = 1.0) -> torch.Tensor:
    inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
    return nn.functional.cross_entropy(model(scale * inputs), torch.arange(8))


def train(training: LocalSteps, rank: int, **given: Any) -> None:
    for step in range(STEPS):
        training.zero_grad()
        loss(training.model, rank, step, **given).backward()
        training.step()
    training.flush()


def made(model: nn.Module, group: dist.ProcessGroup, **given: Any) -> LocalSteps:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return LocalSteps(model, optimizer, period=PERIOD, outer=DILOCO, group=group, **given)


def whole(model: nn.Module) -> torch.Tensor:
    return torch.cat(
        [(p.full_tensor() if isinstance(p, DTensor) else p).detach().reshape(-1) for p in model.parameters()]
    )


def of_whole_sites(rank: int, size: int, mesh: DeviceMesh) -> torch.Tensor:
    """The weights of the same training, of models that are whole and gradients that are added up in one process."""
    model = network()
    inside = size // SITES
    first = rank // inside * inside
    training = made(model, mesh.get_group("site"))
    for step in range(STEPS):
        training.zero_grad()
        for each in range(first, first + inside):
            (loss(model, each, step) / inside).backward()
        training.step()
    training.flush()
    return whole(model)


def check_a_hybrid_model_is_trained_as_a_whole_one_by_site(rank: int, size: int) -> None:
    mesh, same = meshes(size)
    expected = of_whole_sites(rank, size, mesh)
    # Every rank meets its peers at the other sites; or all that hold a shard meet, whose replicas hand in the same.
    for group in (mesh.get_group("site"), same.get_group("same")):
        model = hybrid(mesh)
        train(made(model, group), rank)
        torch.testing.assert_close(whole(model), expected, rtol=1e-4, atol=1e-5)
        assert (expected - whole(network())).norm() > 0.1


def check_all_that_hold_a_shard_have_its_bits_with_fragments_overlap_and_codec(rank: int, size: int) -> None:
    mesh, same = meshes(size)
    for group in (mesh.get_group("site"), same.get_group("same")):
        model = hybrid(mesh)
        train(made(model, group, **STREAMING), rank)
        check_replicas(model, same.get_group("same"))


def check_a_site_that_is_not_finite_takes_the_others_weights_at_all_of_its_ranks(rank: int, size: int) -> None:
    mesh, same = meshes(size)
    for group in (mesh.get_group("site"), same.get_group("same")):
        model = hybrid(mesh)
        training = made(model, group)
        train(training, rank, scale=float("nan") if rank == size - 1 else 1.0)  # one rank, whose site has its gradients
        assert bool(whole(model).isfinite().all())
        assert (training.totals.left_out > 0) == (mesh.get_local_rank("site") == SITES - 1)
        check_replicas(model, same.get_group("same"))


def check_replicas_of_a_site_that_begin_unlike_are_refused_or_made_alike(rank: int, size: int) -> None:
    mesh, same = meshes(size)
    odd = network()
    with torch.no_grad():
        odd.get_parameter("2.bias").add_(mesh.get_local_rank("replicate"))
    model = hybrid(mesh, odd)
    with pytest.raises(ReplicasDifferError, match=r"2\.bias"):
        made(model, mesh.get_group("site"))  # which makes each replica alike at all sites
    train(made(model, same.get_group("same")), rank)
    check_replicas(model, same.get_group("same"))


def check_replicas_of_a_site_that_came_apart_are_found_at_the_flush(rank: int, size: int) -> None:
    mesh, _ = meshes(size)
    model = hybrid(mesh)
    training = made(model, mesh.get_group("site"))
    with torch.no_grad():
        weight = model[0].weight
        assert isinstance(weight, DTensor)
        weight.to_local()[0, 0] += mesh.get_local_rank("replicate")
    with pytest.raises(ReplicasDifferError, match=r"0\.weight"):
        train(training, rank)
