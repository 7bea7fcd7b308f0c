"""A mixture of experts to which ranks send one centroid per bucket of similar tokens.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.lsh_mixture --check

LSH-MoE, 2024. A token's bucket is given by cross-polytope hashes: argmax over +-1..+-d of a random rotation. Each rank
sends the mean of every bucket to its expert by all-to-all, and computes y = E(centroid) + (x - centroid) from the
answer. Experts are chosen by top-2 gating and have a capacity. The network learns text; the switch sums the gradients
of shared parameters. The switch has no part in the compression: all-to-all moves data and adds nothing, so it goes
through gloo. `--check` compares bytes and the loss with those of plain all-to-all; the figures also show the loss
without x - centroid.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn

from fanin.examples import text
from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, counted, expect

EXPERTS, CHOSEN = 8, 2
WIDTH, HIDDEN = 32, 64
CONTEXT = 2
"""Number of bytes that a position sees."""
CAPACITY = 0.4
"""Largest share of the tokens that one expert takes."""
HASHES, DIRECTIONS = 6, 4
"""Rotations, and the dimensions used of each: a bucket is one of (2 * DIRECTIONS) ** HASHES."""
WINDOWS = 32
"""Windows per step of one rank."""
STEPS, QUICK_STEPS, SEEDS = 60, 4, 3
RATE = 1e-2
MODES = ("plain", "compensated", "centroids alone")
LARGEST_BYTES, LARGEST_LOSS = 0.25, 0.02

load = functools.cache(text.load)
"""Loads windows and the bytes that follow, for training and for test; cached."""


class Network(nn.Module):
    """Embeddings of the last bytes, a mixture with a residual path, and logits. Each rank has different experts."""

    rotations: Tensor

    def __init__(self, seed: int, mode: str) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.mode, ranks, rank = mode, dist.get_world_size(), dist.get_rank()
        self.bytes = nn.Embedding(CONTEXT * text.BYTE_VALUES, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.logits = nn.Linear(WIDTH, text.BYTE_VALUES)
        up, down = torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5, torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5
        self.up, self.down = (nn.Parameter(each.chunk(ranks)[rank].clone()) for each in (up, down))
        rotations = torch.linalg.qr(torch.randn(HASHES, WIDTH, WIDTH))[0]
        self.register_buffer("rotations", rotations[:, :, :DIRECTIONS])
        self.rows_sent = self.rows_wanted = 0

    def forward(self, windows: Tensor) -> Tensor:
        """Logits [n, length, 256]."""
        before = nn.functional.pad(windows, (CONTEXT - 1, 0))
        seen = torch.stack([before[:, i : i + windows.shape[1]] + i * text.BYTE_VALUES for i in range(CONTEXT)])
        hidden = self.bytes(seen).sum(0).flatten(0, 1)
        mixed = hidden + self.mixture(self.norm(hidden))
        logits: Tensor = self.logits(mixed)
        return logits.view(*windows.shape, text.BYTE_VALUES)

    def mixture(self, tokens: Tensor) -> Tensor:
        """Weighted sum of the outputs of each token's experts."""
        weights, chosen = self.router(tokens).softmax(-1).topk(CHOSEN)
        flat = chosen.flatten()
        place = nn.functional.one_hot(flat, EXPERTS).cumsum(0).gather(1, flat.unsqueeze(1)).squeeze(1)
        kept = (place <= int(CAPACITY * len(tokens))).nonzero().squeeze(1)
        order = kept[flat[kept].argsort(stable=True)]
        rows, experts = tokens[order // CHOSEN], flat[order]
        made = self.by_buckets(rows, experts) if self.mode != "plain" else self.by_experts(rows, experts)
        self.rows_wanted += len(rows)
        return torch.zeros_like(tokens).index_add(0, order // CHOSEN, made * weights.flatten()[order].unsqueeze(1))

    def by_buckets(self, rows: Tensor, experts: Tensor) -> Tensor:
        """Experts' outputs for rows, from the centroids of buckets; in mode `compensated` plus row - centroid."""
        turned = torch.einsum("rw,hwd->rhd", rows.detach(), self.rotations)
        hashes = torch.cat([turned, -turned], dim=2).argmax(2)
        keys = torch.cat([experts.unsqueeze(1), hashes], dim=1)
        buckets, bucket, sizes = keys.unique(dim=0, return_inverse=True, return_counts=True)
        centroids = torch.zeros(len(buckets), WIDTH).index_add(0, bucket, rows) / sizes.unsqueeze(1)
        made = self.by_experts(centroids, buckets[:, 0])[bucket]
        return made + rows - centroids[bucket] if self.mode == "compensated" else made

    def by_experts(self, rows: Tensor, experts: Tensor) -> Tensor:
        """Outputs of the experts, on whichever rank they are, for rows sorted by expert."""
        ranks, own, world = dist.get_world_size(), len(self.up), dist.group.WORLD
        assert world is not None
        self.rows_sent += len(rows)
        counts = experts.bincount(minlength=EXPERTS)
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts)
        out, back = counts.view(ranks, own).sum(1).tolist(), coming.view(ranks, own).sum(1).tolist()
        here = funcol.all_to_all_single_autograd(rows, back, out, world)
        kinds = torch.arange(own).repeat(ranks).repeat_interleave(coming)
        made = torch.zeros_like(here)
        for kind in range(own):
            taken = (kinds == kind).nonzero().squeeze(1)
            made = made.index_copy(0, taken, torch.relu(here[taken] @ self.up[kind]) @ self.down[kind])
        return funcol.all_to_all_single_autograd(made, out, back, world)

    def shared(self) -> list[nn.Parameter]:
        """Parameters that all ranks share, which excludes experts."""
        return [each for name, each in self.named_parameters() if name not in ("up", "down")]


def train(seed: int, mode: str, steps: int) -> tuple[float, float]:
    """Train; returns test loss, and the share of the rows that was sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    network = Network(seed, mode)
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    (windows, following), (test_windows, test_following) = (each.tensors for each in load())
    for step in range(steps):
        drawn = torch.Generator().manual_seed(1000 * seed + step)
        own = torch.randperm(len(windows), generator=drawn)[: ranks * WINDOWS][rank::ranks]
        loss = nn.functional.cross_entropy(network(windows[own]).flatten(0, 1), following[own].flatten()) / ranks
        optimizer.zero_grad()
        loss.backward()  # an expert's gradient is already the sum over ranks, since all ranks sent it their rows
        gradient = torch.cat([each.grad.flatten() for each in network.shared() if each.grad is not None])
        dist.all_reduce(gradient)
        for each, part in zip(
            network.shared(), gradient.split([each.numel() for each in network.shared()]), strict=True
        ):
            each.grad = part.view_as(each)
        optimizer.step()
    part_sent = network.rows_sent / network.rows_wanted
    with torch.no_grad():
        own_windows, own_following = test_windows[rank::ranks], test_following[rank::ranks]
        loss = nn.functional.cross_entropy(network(own_windows).flatten(0, 1), own_following.flatten()) / ranks
        dist.all_reduce(loss)
    return float(loss), part_sent


def play(asked: Asked) -> Figures:
    """Train in each of the modes; losses are means over seeds."""
    steps, seeds = (QUICK_STEPS, 1) if asked.quick else (STEPS, SEEDS)
    losses, moved = dict.fromkeys(MODES, 0.0), dict.fromkeys(MODES, 0)
    for mode in MODES:
        for seed in range(seeds):
            with counted() as carried:
                losses[mode] += train(seed, mode, steps)[0] / seeds
            moved[mode] += carried["gloo"]
    total = torch.tensor([moved[mode] for mode in MODES])
    dist.all_reduce(total)
    part = (total / total[0]).tolist()
    worse = {mode: losses[mode] / losses["plain"] - 1 for mode in MODES}
    if asked.check:
        expect(part[1] <= LARGEST_BYTES, f"{part[1]:.1%} of the bytes of plain all-to-all; at most {LARGEST_BYTES:.0%}")
        expect(worse["compensated"] <= LARGEST_LOSS, f"loss {worse['compensated']:.1%} above the plain one's")
    return {
        "bytes_of_plain": part[1], "loss": losses["plain"], "loss_compensated": losses["compensated"],
        "loss_of_centroids_alone": losses["centroids alone"], "seeds": seeds, "steps": steps,
    }  # fmt: skip


if __name__ == "__main__":
    launcher.run(play, "lsh_mixture", __doc__)
