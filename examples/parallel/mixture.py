"""A mixture of experts over data x expert x tensor groups, whose tokens are sent once instead of once per tensor rank.

    torchrun --nproc-per-node 8 -m fanin.examples.parallel.mixture --check

Singh et al., DeepSpeed-TED, 2023; Rajbhandari et al., DeepSpeed-MoE, 2022; Shen et al., SE-MoE, 2022. The ranks of a
tensor group hold the same tokens and a part of each of their two experts. Without dropping, each sends all tokens by
all-to-all. With dropping, each sends its own part (`narrow` by rank), and the arrivals are gathered inside the group:
half of the bytes for two tensor ranks. The gather goes through the switch, the all-to-all through gloo.

Tokens beyond an expert's capacity bypass the block. A balance loss is added to the gradient.
`--check` compares outputs and all gradients with one process, and the bytes with and without dropping.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fanin.examples.parallel import launcher
from fanin.examples.parallel.differentiable import everyones, gather_rows, own_rows, summed
from fanin.examples.parallel.launcher import Asked, Figures, apart, counters_of, expect, gradient_of

DATA, EXPERT, TENSOR = 2, 2, 2
EXPERTS = 2 * EXPERT
"""Number of experts: two at each place of the expert dimension."""
WIDTH, HIDDEN = 24, 48
CAPACITY = 0.35
"""Largest share of a place's tokens that one expert takes."""
BALANCE = 0.1
"""Weight of the balance loss."""
TOLERANCE = 1e-5


class Mixture(nn.Module):
    """The whole router and all experts; computes the output for the tokens of one place in one process."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(17)
        self.router = nn.Parameter(torch.randn(WIDTH, EXPERTS, generator=drawn, dtype=torch.float64))
        self.up = nn.Parameter(0.2 * torch.randn(EXPERTS, WIDTH, HIDDEN, generator=drawn, dtype=torch.float64))
        self.down = nn.Parameter(0.2 * torch.randn(EXPERTS, HIDDEN, WIDTH, generator=drawn, dtype=torch.float64))

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Expert of each token, EXPERTS for tokens beyond the capacity; the expert's weight; the balance loss."""
        likely = (tokens @ self.router).softmax(-1)
        chosen = likely.argmax(-1)
        wanted = nn.functional.one_hot(chosen, EXPERTS)
        balance = EXPERTS * (wanted.double().mean(0) * likely.mean(0)).sum()
        before = (wanted.cumsum(0) - 1).gather(1, chosen.unsqueeze(1)).squeeze(1)
        limited = torch.where(before < int(CAPACITY * len(tokens)), chosen, EXPERTS)
        return limited, likely.gather(1, chosen.unsqueeze(1)), balance

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the block, and the balance loss."""
        chosen, weights, balance = self.route(tokens)
        made = torch.zeros_like(tokens)
        for expert in range(EXPERTS):
            made = torch.where(
                (chosen == expert).unsqueeze(1), torch.relu(tokens @ self.up[expert]) @ self.down[expert], made
            )
        return tokens + weights * made, balance


class Place(nn.Module):
    """This rank's part of the model: the router, and its columns and rows of two experts."""

    def __init__(self, whole: Mixture, mesh: DeviceMesh, drop: bool) -> None:
        super().__init__()
        self.expert, self.tensor, self.drop = mesh["expert"].get_group(), mesh["tensor"].get_group(), drop
        own = slice(self.expert.rank() * 2, self.expert.rank() * 2 + 2)
        part = slice(self.tensor.rank() * HIDDEN // TENSOR, (self.tensor.rank() + 1) * HIDDEN // TENSOR)
        self.whole = whole
        self.up = nn.Parameter(whole.up[own, :, part].detach().clone())
        self.down = nn.Parameter(whole.down[own, part].detach().clone())

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the block, and the balance loss, for the tokens of this place."""
        chosen, weights, balance = self.whole.route(tokens)
        sent, mine = tokens, chosen
        parts = [len(tokens) // TENSOR] * TENSOR
        if self.drop:
            sent, mine = own_rows(tokens, parts, self.tensor), chosen.split(parts)[self.tensor.rank()]
        made = self.by_experts(sent, mine)
        if self.drop:
            made = everyones(made, parts, self.tensor)
        return tokens + weights * made, balance

    def by_experts(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """Outputs of the experts, on whichever rank they are, for the tokens; zeros for tokens that no expert takes."""
        order = chosen.argsort(stable=True)[: int((chosen < EXPERTS).sum())]
        counts = chosen[order].bincount(minlength=EXPERTS)
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts, group=self.expert)
        out, back = counts.view(EXPERT, 2).sum(1).tolist(), coming.view(EXPERT, 2).sum(1).tolist()
        here = funcol.all_to_all_single_autograd(tokens[order], back, out, self.expert)
        kinds = torch.arange(2).repeat(EXPERT).repeat_interleave(coming)
        lengths = [len(here)]
        if self.drop:
            told = torch.zeros(TENSOR, dtype=torch.int64)
            dist.all_gather_into_tensor(told, torch.tensor(lengths), group=self.tensor)
            lengths = told.tolist()
            kinds = gather_rows(kinds.double().unsqueeze(1), lengths, self.tensor).squeeze(1).long()
            here = everyones(here, lengths, self.tensor, summands=True)
        else:
            here = summed(here, self.tensor, backwards=True)
        made = torch.zeros_like(here)
        for kind in range(2):
            made = torch.where((kinds == kind).unsqueeze(1), torch.relu(here @ self.up[kind]) @ self.down[kind], made)
        made = summed(made, self.tensor)
        made = own_rows(made, lengths, self.tensor) if self.drop else made
        returned = funcol.all_to_all_single_autograd(made, out, back, self.expert)
        return torch.zeros_like(tokens).index_copy(0, order, returned)


def samples() -> list[Tensor]:
    """Tokens of every place of data and expert dimension: different numbers, each place with its own mean."""
    drawn = torch.Generator().manual_seed(23)
    tokens = [
        torch.randn(40 + 8 * place, WIDTH, generator=drawn, dtype=torch.float64) for place in range(DATA * EXPERT)
    ]
    return [part + 0.3 * torch.randn(WIDTH, generator=drawn, dtype=torch.float64) for part in tokens]


def loss_of(made: Tensor, balance: Tensor) -> Tensor:
    """Loss of one place; the whole loss is the sum over places."""
    return made.square().sum() + BALANCE * balance


def play(asked: Asked) -> Figures:
    """Go forward and backward with and without dropping; bytes of all-to-all, and differences from one process."""
    mesh = init_device_mesh("cpu", (DATA, EXPERT, TENSOR), mesh_dim_names=("data", "expert", "tensor"))
    places = mesh["data", "expert"]._flatten("places")
    tokens = samples()
    gone = torch.zeros(2, dtype=torch.int64)  # bytes of all-to-all of all ranks: without dropping, with it
    difference = 0.0
    for drop in (False, True):
        whole, reference = Mixture(), Mixture()
        place = Place(whole, mesh, drop)
        group = mesh["expert"].get_group()
        before = counters_of(group)["gloo.bytes"] if drop else 0
        made, balance = place(tokens[places.get_local_rank()])
        loss_of(made, balance).backward()
        gone[int(drop)] = counters_of(group)["gloo.bytes"] - before
        for parameter, replicas in ((whole.router, places), (place.up, mesh["data"]), (place.down, mesh["data"])):
            dist.all_reduce(gradient_of(parameter), group=replicas.get_group())
        if asked.check:
            wanted = [reference(part) for part in tokens]
            torch.stack([loss_of(*pair) for pair in wanted]).sum().backward()
            difference = max(difference, *differences(place, reference, made, wanted[places.get_local_rank()][0]))
    dist.all_reduce(gone)
    whole_bytes, dropped_bytes = gone.tolist()
    routed = [Mixture().route(part)[0] for part in tokens]
    counts = torch.stack([chosen.bincount(minlength=EXPERTS + 1) for chosen in routed])
    if asked.check:
        expect(difference <= TOLERANCE, f"{difference:.2g} from one process; at most {TOLERANCE} is right")
        expect(dropped_bytes <= 0.51 * whole_bytes, f"dropping sends {dropped_bytes} bytes of {whole_bytes}")
        expect(counts[:, EXPERTS].sum() > 0, "no token was beyond the capacity, so the limit was not tried")
        expect(
            counts[:, :EXPERTS].unique().numel() > EXPERTS, "the experts' tokens are even, so nothing uneven was tried"
        )
    return {
        "difference": difference, "all_to_all_bytes": whole_bytes, "with_dropping": dropped_bytes,
        "tokens": int(counts.sum()), "beyond_capacity": int(counts[:, EXPERTS].sum()),
    }  # fmt: skip


def differences(place: Place, reference: Mixture, made: Tensor, wanted: Tensor) -> list[float]:
    """Differences of outputs and gradients from those of one process."""
    own = slice(place.expert.rank() * 2, place.expert.rank() * 2 + 2)
    part = slice(place.tensor.rank() * HIDDEN // TENSOR, (place.tensor.rank() + 1) * HIDDEN // TENSOR)
    pairs = (
        (made, wanted), (gradient_of(place.whole.router), gradient_of(reference.router)),
        (gradient_of(place.up), gradient_of(reference.up)[own, :, part]),
        (gradient_of(place.down), gradient_of(reference.down)[own, part]),
    )  # fmt: skip
    return [apart(found, whole) for found, whole in pairs]


if __name__ == "__main__":
    launcher.run(play, "mixture", __doc__)
