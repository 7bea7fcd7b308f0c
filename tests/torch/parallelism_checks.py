"""Layers that are split over ranks in more than one way, each against the same layer in one process, in float64.

Run by rank_main.py on eight ranks; see test_parallelism.py.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

EXPERTS = 2
WIDTH = 24
TOKENS = 20
"""Tokens of each place of data and expert parallelism; the ranks of a tensor-parallel group see the same ones."""


class Mixture(nn.Module):
    """A router that sends each token to the expert it likes best, and the experts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(17)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )

    def routed(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each token's expert, and the weight of what that expert says."""
        weights = self.router(tokens).softmax(-1)
        chosen: torch.Tensor = weights.argmax(-1)
        return chosen, weights.gather(1, chosen.unsqueeze(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        chosen, weights = self.routed(tokens)
        outputs = torch.stack([expert(tokens) for expert in self.experts])
        return weights * outputs[chosen, torch.arange(len(tokens))]


def through_the_experts(mixture: Mixture, expert: nn.Module, tokens: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Output of `mixture` for this rank's tokens, where this rank has a part of one expert."""
    group = mesh["expert"].get_group()
    chosen, weights = mixture.routed(tokens)
    order = chosen.argsort(stable=True)
    leaving = chosen.bincount(minlength=EXPERTS)
    coming = torch.empty_like(leaving)
    dist.all_to_all_single(coming, leaving, group=group)
    out, back = leaving.tolist(), coming.tolist()
    here = funcol.all_to_all_single_autograd(tokens[order], back, out, group)
    returned = funcol.all_to_all_single_autograd(expert(here), out, back, group)
    return weights * torch.empty_like(tokens).index_copy(0, order, returned)


def check_a_mixture_of_experts_on_a_mesh_of_three_dimensions(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size // 4, EXPERTS, 2), mesh_dim_names=("data", "expert", "tensor"))
    places = mesh["data", "expert"]._flatten("tokens")
    whole = Mixture().double()
    own = copy.deepcopy(whole)
    expert = own.experts[mesh["expert"].get_local_rank()]
    parallelize_module(expert, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})

    everything = torch.randn(
        places.size() * TOKENS, WIDTH, generator=torch.Generator().manual_seed(23), dtype=torch.float64
    )
    tokens = everything.chunk(places.size())[places.get_local_rank()]
    expected = whole(everything)
    output = through_the_experts(own, expert, tokens, mesh)
    torch.testing.assert_close(output, expected.chunk(places.size())[places.get_local_rank()])

    expected.square().sum().backward()
    output.square().sum().backward()
    reference = whole.experts[mesh["expert"].get_local_rank()]
    for module, alone, replicas in ((expert, reference, mesh["data"]), (own.router, whole.router, places)):
        for part, all_of_it in zip(module.parameters(), alone.parameters(), strict=True):
            assert part.grad is not None
            gradient = part.grad.full_tensor() if isinstance(part.grad, DTensor) else part.grad
            dist.all_reduce(gradient, group=replicas.get_group())
            torch.testing.assert_close(gradient, all_of_it.grad)


class StateOfThePast(torch.autograd.Function):
    """The sum of what all ranks before this one gave; its gradient comes from all ranks after it."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor) -> torch.Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        past = torch.zeros_like(own)
        if rank > 0:
            dist.recv(past, rank - 1)
        if rank < size - 1:
            dist.send(past + own, rank + 1)
        return past

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        of_the_future = torch.zeros_like(gradients[0])
        if rank < size - 1:
            dist.recv(of_the_future, rank + 1)
        if rank > 0:
            dist.send(of_the_future + gradients[0], rank - 1)
        return of_the_future


def linear_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention without softmax."""
    return (query @ key.T).tril() @ value


def check_linear_attention_over_a_sequence_in_uneven_parts(rank: int, size: int) -> None:
    lengths = [5 + 3 * (place % 3) for place in range(size)]
    generator = torch.Generator().manual_seed(29)
    shape = (3, sum(lengths), WIDTH)
    whole = [tensor.requires_grad_() for tensor in torch.randn(shape, generator=generator, dtype=torch.float64)]
    mine = [tensor.detach().split(lengths)[rank].clone().requires_grad_() for tensor in whole]
    query, key, value = mine
    past = StateOfThePast.apply(key.T @ value)  # type: ignore[no-untyped-call]
    output = linear_attention(query, key, value) + query @ past
    expected = linear_attention(*whole)
    torch.testing.assert_close(output, expected.split(lengths)[rank])
    output.square().sum().backward()
    expected.square().sum().backward()
    for part, all_of_it in zip(mine, whole, strict=True):
        assert part.grad is not None
        assert all_of_it.grad is not None
        torch.testing.assert_close(part.grad, all_of_it.grad.split(lengths)[rank])
