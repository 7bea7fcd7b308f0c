"""Linear attention over a sequence in unequal parts: states that travel from rank to rank, or are gathered at once.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.linear_attention --check

Sun et al., LASP, 2024, and LASP-2, 2025. With a decay of lambda per position, rank i computes
O_i = (Q K^T * decay) V + lambda^. Q S_{i-1} and S_i = lambda^{C_i} S_{i-1} + its own state, where C_i is the length of
its part. LASP sends S_i to the next rank, a message of gloo's; LASP-2 gathers every rank's own state, through the
switch, and each rank adds up those before it. Either moves one state of head x head per rank, whatever the length.
`--check` compares outputs and gradients of both forms with the layer in one process, for two lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.examples.parallel import launcher
from fanin.examples.parallel.differentiable import gather_rows
from fanin.examples.parallel.launcher import Asked, Figures, apart, counted, expect

HEADS, WIDTH = 4, 16
"""Number of heads, and width of a head's queries, keys and values."""
DECAYS = torch.tensor([0.90, 0.95, 0.99, 1.0], dtype=torch.float64)
"""Lambda of each head."""
LENGTHS = (1, 4)
"""Lengths of the sequences, as multiples of the shortest."""
TOLERANCE = 1e-5

States = Callable[[Tensor, list[int]], Tensor]
"""Function that returns the state before this rank's part, from its own state and the lengths of all parts."""


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention without softmax, by definition; all tensors have shape (heads, length, width)."""
    length = query.shape[1]
    places = torch.arange(length)
    gap = (places.unsqueeze(1) - places).clamp(min=0)
    decay = DECAYS.view(-1, 1, 1) ** gap * (places.unsqueeze(1) >= places)
    made: Tensor = (query @ key.transpose(1, 2) * decay) @ value
    return made


def own_state(key: Tensor, value: Tensor) -> Tensor:
    """The state of one part alone: (heads, width, width), the sum of lambda^{C - j} k_j v_j."""
    left = torch.arange(key.shape[1] - 1, -1, -1)
    decayed = key * (DECAYS.unsqueeze(1) ** left).unsqueeze(2)
    return decayed.transpose(1, 2) @ value


def part_of_layer(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], states: States) -> Tensor:
    """This rank's part of the layer's output."""
    before = states(own_state(key, value), lengths)
    reached = DECAYS.unsqueeze(1) ** torch.arange(1, query.shape[1] + 1)
    return attention(query, key, value) + reached.unsqueeze(2) * (query @ before)


class FromRankToRank(torch.autograd.Function):
    """LASP: receive the state from the rank before, send the state after this part to the next; gradients backwards."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, lengths: list[int]) -> Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        ctx.decay = (DECAYS ** lengths[rank]).view(-1, 1, 1)
        before = torch.zeros_like(own)
        if rank > 0:
            dist.recv(before, rank - 1)
        if rank < ranks - 1:
            dist.send(ctx.decay * before + own, rank + 1)
        return before

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        of_later = torch.zeros_like(gradients[0])  # the gradient of the state after this part
        if rank < ranks - 1:
            dist.recv(of_later, rank + 1)
        if rank > 0:
            dist.send(gradients[0] + ctx.decay * of_later, rank - 1)
        return of_later, None


class Gathered(torch.autograd.Function):
    """LASP-2: gather all states at once, and add those before this part; for gradients, those after it."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths, rank = lengths, dist.get_rank()
        everyones = gathered(own)
        return torch.stack(
            [everyones[i] * passed(lengths, i, rank) for i in range(rank)] or [torch.zeros_like(own)]
        ).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        everyones = gathered(gradients[0])
        later = [everyones[i] * passed(ctx.lengths, rank, i) for i in range(rank + 1, ranks)]
        return torch.stack(later or [torch.zeros_like(gradients[0])]).sum(0), None


def gathered(own: Tensor) -> Tensor:
    """Every rank's tensor: (ranks, ...)."""
    group = dist.group.WORLD
    assert group is not None
    return gather_rows(own.unsqueeze(0), [1] * dist.get_world_size(), group)


def passed(lengths: list[int], source: int, reader: int) -> Tensor:
    """Decay of the state of rank `source` over the parts between it and rank `reader`."""
    return (DECAYS ** sum(lengths[source + 1 : reader])).view(-1, 1, 1)


FORMS: dict[str, States] = {"messages": FromRankToRank.apply, "gather": Gathered.apply}


def play(asked: Asked) -> Figures:
    """Run both forms for two lengths; returns bytes by carrier, and differences from the whole layer."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    figures: Figures = {}
    largest = 0.0
    sent: dict[str, set[int]] = {name: set() for name in FORMS}
    for times in LENGTHS:
        lengths = [times * (5 + 3 * (place % 3)) for place in range(ranks)]
        drawn = torch.Generator().manual_seed(29)
        whole = list(torch.randn(3, HEADS, sum(lengths), WIDTH, generator=drawn, dtype=torch.float64))
        for each in whole:
            each.requires_grad_()
        expected = attention(*whole)
        expected.square().sum().backward()
        for name, states in FORMS.items():
            mine = [each.detach().split(lengths, dim=1)[rank].clone().requires_grad_() for each in whole]
            with counted() as moved:
                made = part_of_layer(mine[0], mine[1], mine[2], lengths, states)
                made.square().sum().backward()
            sent[name].add(moved["gloo"] + moved["switch"] + moved["shards"])
            figures[f"bytes_of_{name}"] = max(sent[name])
            pairs = [(made, expected.split(lengths, dim=1)[rank])]
            for part, each in zip(mine, whole, strict=True):
                assert part.grad is not None
                assert each.grad is not None
                pairs.append((part.grad, each.grad.split(lengths, dim=1)[rank]))
            largest = max(largest, *(apart(*pair) for pair in pairs))
    if asked.check:
        expect(largest <= TOLERANCE, f"{largest:.2g} from the layer in one process; at most {TOLERANCE} is right")
        expect(all(len(counts) == 1 for counts in sent.values()), f"bytes grow with the sequence: {sent}")
    return {"difference": largest, "positions": sum(lengths), **figures}


if __name__ == "__main__":
    launcher.run(play, "linear_attention", __doc__)
