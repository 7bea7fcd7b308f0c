"""The parameters that local steps train, and checks of model and group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import ConfigurationError
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import QUANTIZED
from fanin.host.torch.training.meetings.fragments import local
from fanin.host.torch.training.parameter_kinds import check_kind

Facts = tuple[int, tuple[int, ...], torch.dtype, bool]
"""Identity, shape, type, and whether it is trained."""


def trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that the optimizer trains, in its order, each once."""
    found = {id(each): each for group in optimizer.param_groups for each in group["params"] if each.requires_grad}
    return list(found.values())


def shapes(parameters: list[torch.Tensor]) -> dict[str, str]:
    """Shapes and types of the parameters in words, which all ranks must share."""
    return {"parameters": str([(tuple(local(each).shape), str(each.dtype)) for each in parameters])}


def facts(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Facts]:
    """Facts of every parameter of the optimizer that stay the same between meetings; -1: no longer in the model.

    FSDP2 puts other tensors into the module while it computes, so a sharded parameter counts by the optimizer alone.
    """
    there = {id(each) for each in model.parameters()}
    return [
        (id(each) if isinstance(each, DTensor) or id(each) in there else -1, tuple(each.shape), each.dtype,
         each.requires_grad)
        for group in optimizer.param_groups
        for each in group["params"]
    ]  # fmt: skip


def check(model: nn.Module, parameters: list[torch.Tensor], group: FaninProcessGroup) -> None:
    """Raise ConfigurationError or UnsupportedError, with the remedy, for parameters that cannot meet in this group."""
    if not parameters:
        raise ConfigurationError("the optimizer trains no parameter. Remedy: LocalSteps(model, optimizer) with its own")
    if isinstance(model, DistributedDataParallel):
        check_alike(
            "the model", "DistributedDataParallel", model.process_group, group,
            "give LocalSteps the module itself, or DistributedDataParallel a group of the ranks inside a host",
        )  # fmt: skip
    names = {id(each): name for name, each in model.named_parameters()}
    for each in parameters:
        name = names.get(id(each), "a parameter")
        check_kind(name, local(each), QUANTIZED, "local steps are")
        if isinstance(each, DTensor):
            _check_mesh(name, each, group)


def replicas_inside(parameters: list[torch.Tensor], group: FaninProcessGroup) -> list[c10d.ProcessGroup]:
    """Groups of ranks that hold the same parts of all sharded parameters and meet in a group each: HSDP in a site.

    Groups over which only some parameters are alike, as norms beside tensor parallelism, are not among them.
    """
    sharded = [each for each in parameters if isinstance(each, DTensor)]
    if not sharded:
        return []
    mesh = sharded[0].device_mesh
    alike = [
        mesh.get_group(dimension)
        for dimension in range(mesh.ndim)
        if all(each.device_mesh == mesh and each.placements[dimension].is_replicate() for each in sharded)
    ]
    return [each for each in alike if each.size() > 1 and len(_shared(each, group)) == 1]


def _check_mesh(name: str, parameter: DTensor, group: FaninProcessGroup) -> None:
    for dimension, placement in enumerate(parameter.placements):
        along = parameter.device_mesh.get_group(dimension)
        if placement.is_replicate():
            check_alike(
                repr(name), "HSDP", along, group,
                "fully_shard over mesh['shard'] alone, and LocalSteps with group=mesh.get_group('replicate'); or a "
                "mesh of sites x replicas x shards, fully_shard over the last two, and LocalSteps between sites",
            )  # fmt: skip
        elif len(_shared(along, group)) > 1:
            raise ConfigurationError(
                f"{name!r} is sharded over the ranks that are to meet, which therefore hold unlike parts of it. "
                "Remedy: a mesh of replicas x shards, fully_shard over mesh['shard'], and LocalSteps with "
                "group=mesh.get_group('replicate')"
            )


def check_alike(name: str, engine: str, alike: c10d.ProcessGroup, group: FaninProcessGroup, remedy: str) -> None:
    """Raise ConfigurationError where the ranks `alike`, whose gradients an engine sums in every step, meet nobody else,
    or not all of them meet in this group: the mean would then depend on how many do.
    """
    shared = _shared(alike, group)
    if len(shared) == 1 or len(shared) == alike.size() < group.size():
        return
    if len(shared) == group.size():
        raise ConfigurationError(
            f"{engine} sums the gradients of {name} over the ranks that are to meet in every step, so they have "
            f"nothing to tell each other. Remedy: {remedy}"
        )
    raise ConfigurationError(
        f"{engine} keeps {name} alike on ranks {sorted(_ranks(alike))}, of which {sorted(shared)} alone are to meet in "
        "this group. Remedy: a group of all of them and of other sites' ranks, or a group for each with its peers"
    )


def _shared(one: c10d.ProcessGroup, group: FaninProcessGroup) -> set[int]:
    """Ranks that are in both groups; 0 stands for this rank in a group of `Members`, which torch does not know."""
    if one is group or one.group_name == group.group_name:
        return set(range(group.size()))
    theirs, own = _ranks(one), _ranks(group)
    return theirs & own or {0}


def _ranks(group: c10d.ProcessGroup) -> set[int]:
    """A group's ranks in the world; empty for a group that torch does not know."""
    try:
        return set(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return set()
