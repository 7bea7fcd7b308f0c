"""A small model whose replicas train on several ranks, and the check that they end with the same bits."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

WIDTH, CLASSES = 24, 4


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 48), nn.Tanh(), nn.Linear(48, CLASSES))


def compute(times: int) -> None:
    """Be slow by having more to compute."""
    for _ in range(10 * times):
        torch.mm(torch.ones(128, 128), torch.ones(128, 128))


def identical(tensor: torch.Tensor) -> None:
    """Bit for bit the same on every rank."""
    mine = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    copies = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, mine)
    assert all(torch.equal(copy, mine) for copy in copies), "ranks differ"


def expect_identical(model: nn.Module, size: int) -> None:
    bits = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everyones = [torch.empty_like(bits) for _ in range(size)]
    dist.all_gather(everyones, bits)
    assert all(torch.equal(bits, other) for other in everyones), "replicas differ"
