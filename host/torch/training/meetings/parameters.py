"""The parameters that local steps train, and checks of model and group."""

from __future__ import annotations

import torch
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import ConfigurationError, UnsupportedError
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import QUANTIZED
from fanin.host.torch.training.meetings.fragments import local

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
    """ConfigurationError or UnsupportedError for what cannot meet in this group; the text has the remedy."""
    if not parameters:
        raise ConfigurationError("the optimizer trains no parameter. Remedy: LocalSteps(model, optimizer) with its own")
    if isinstance(model, DistributedDataParallel) and _same(model.process_group, group):
        raise ConfigurationError(
            "DistributedDataParallel sums every gradient over the ranks that are to meet now and then. Remedy: give "
            "LocalSteps the module itself, or DistributedDataParallel a group of the ranks inside a host"
        )
    names = {id(each): name for name, each in model.named_parameters()}
    for each in parameters:
        name = names.get(id(each), "a parameter")
        if each.dtype not in QUANTIZED:
            raise UnsupportedError(
                f"{name!r} is {each.dtype}; local steps are for float32, bfloat16 and float16 parameters"
            )
        if local(each).layout is not torch.strided:
            raise UnsupportedError(f"{name!r} is sparse; local steps are for dense parameters")
        if isinstance(each, DTensor):
            _check_mesh(name, each, group)


def _check_mesh(name: str, parameter: DTensor, group: FaninProcessGroup) -> None:
    for dimension, placement in enumerate(parameter.placements):
        if not _same(parameter.device_mesh.get_group(dimension), group) or group.size() == 1:
            continue
        if placement.is_replicate():
            raise ConfigurationError(
                f"{name!r} is replicated over the ranks that are to meet, so its gradients are summed over them in "
                "every step (HSDP). Remedy: fully_shard over mesh['shard'] alone, and LocalSteps with "
                "group=mesh.get_group('replicate')"
            )
        raise ConfigurationError(
            f"{name!r} is sharded over the ranks that are to meet, which therefore hold unlike parts of it. Remedy: a "
            "mesh of replicas x shards, fully_shard over mesh['shard'], and LocalSteps with "
            "group=mesh.get_group('replicate')"
        )


def _same(one: c10d.ProcessGroup, other: FaninProcessGroup) -> bool:
    return one is other or one.group_name == other.group_name
