"""Attention over filtered queries and keys, in pipeline stages of unequal depth, with a sharded optimizer.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.local_filters --check

Wu et al., YUAN 2.0, 2023. Localized filtering attention: two causal convolutions of kernel 2, d -> d/2 -> d, then a
residual path and RMSNorm (1e-6); queries and keys come from the filtered states, values from the unfiltered ones.
The stages at both ends have fewer layers, since they also have the embedding and the logits: 2 and 1 layers here, as
the 51B model's are 2, ..., 3, ..., 2. Two stages with two replicas each; every stage's optimizer shards its states.
`--check` compares gradients with one process, and the loss of text with that of a network without the filter whose
hidden layers are larger by as many parameters.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from fanin.examples import text
from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, apart, expect
from fanin.examples.train import cross_entropy

WIDTH, HEADS = 32, 4
DEPTHS = (2, 1)
"""Number of layers of each stage; the last stage also has the logits."""
MICROBATCHES, WINDOWS = 4, 4
"""Number of microbatches of each replica, and of windows in each."""
STEPS, QUICK_STEPS, SEEDS, RATE = 60, 6, 3, 4e-3
TOLERANCE, LARGEST_LOSS = 1e-5, 0.0

load = functools.cache(text.load)
"""Loads windows and the bytes that follow, for training and for test; cached."""


class Filter(nn.Module):
    """Localized filtering: adds to each position a function of it and the two before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(WIDTH, WIDTH // 2, 2), nn.Conv1d(WIDTH // 2, WIDTH, 2)
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, hidden: Tensor) -> Tensor:
        """Filter hidden states; shape (windows, length, width) in and out."""
        seen = hidden.transpose(1, 2)
        for convolution in (self.first, self.second):
            seen = convolution(nn.functional.pad(seen, (1, 0)))
        filtered: Tensor = self.norm(hidden + seen.transpose(1, 2))
        return filtered


class Layer(nn.Module):
    """Attention and a hidden layer, which without the filter is larger by the filter's parameters."""

    def __init__(self, filtered: bool) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.filter = Filter() if filtered else None
        self.asked, self.values = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        more = 0 if filtered else round(sum(each.numel() for each in Filter().parameters()) / (2 * WIDTH + 1))
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH + more), nn.GELU(), nn.Linear(4 * WIDTH + more, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform hidden states; shape (windows, length, width) in and out."""
        normed = self.first(hidden)
        asked = self.asked(normed if self.filter is None else self.filter(normed))
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (*asked.chunk(2, -1), self.values(normed))
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).flatten(2))
        made: Tensor = hidden + self.hidden(self.second(hidden))
        return made


class Embedding(nn.Module):
    """Embeddings of bytes and of their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(text.BYTE_VALUES, WIDTH), nn.Embedding(text.WINDOW_BYTES, WIDTH)

    def forward(self, windows: Tensor) -> Tensor:
        """Embed windows: (windows, length, width)."""
        made: Tensor = self.bytes(windows) + self.places.weight
        return made


def make_stages(seed: int, filtered: bool) -> list[nn.Sequential]:
    """Both stages, with the same initial weights at every rank."""
    torch.manual_seed(seed)
    layers: Iterator[nn.Module] = iter([Layer(filtered) for _ in range(sum(DEPTHS))])
    stages = [[next(layers) for _ in range(depth)] for depth in DEPTHS]
    stages[0].insert(0, Embedding())
    stages[-1].append(nn.Linear(WIDTH, text.BYTE_VALUES))
    return [nn.Sequential(*stage) for stage in stages]


def batch(
    windows: Tensor, following: Tensor, seed: int, step: int, replica: int, replicas: int
) -> tuple[Tensor, Tensor]:
    """A replica's windows of a step, and the bytes that follow."""
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(1000 * seed + step))
    own = order[: replicas * MICROBATCHES * WINDOWS].chunk(replicas)[replica]
    return windows[own], following[own]


def train(
    seed: int, filtered: bool, steps: int, group: dist.ProcessGroup, pipeline: dist.ProcessGroup
) -> tuple[float, float]:
    """Train; returns test loss, and the difference of the first step's gradients from one process."""
    stage, replica, replicas = pipeline.rank(), group.rank(), group.size()
    (windows, following), test = (each.tensors for each in load())
    module, difference = make_stages(seed, filtered)[stage], 0.0
    part = PipelineStage(module, stage, len(DEPTHS), torch.device("cpu"), group=pipeline)
    schedule = Schedule1F1B(part, n_microbatches=MICROBATCHES, loss_fn=cross_entropy)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, process_group=group, lr=RATE)
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch(windows, following, seed, step, replica, replicas)
        schedule.step(inputs) if stage == 0 else schedule.step(target=targets)
        flat = torch.cat([each.grad.flatten() for each in module.parameters() if each.grad is not None])
        dist.all_reduce(flat, dist.ReduceOp.AVG, group=group)
        if step == 0:
            model = nn.Sequential(*make_stages(seed, filtered))
            for other in range(replicas):
                data = batch(windows, following, seed, step, other, replicas)
                (cross_entropy(model(data[0]), data[1]) / replicas).backward()
            wanted = torch.cat([each.grad.flatten() for each in model[stage].parameters() if each.grad is not None])
            difference = apart(flat, wanted)
        for each, own in zip(module.parameters(), flat.split([p.numel() for p in module.parameters()]), strict=True):
            each.grad = own.view_as(each).clone()
        optimizer.step()
    states: list[dict[str, Tensor] | None] = [None] * len(DEPTHS)
    dist.all_gather_object(states, module.state_dict(), group=pipeline)
    model = nn.Sequential(*make_stages(seed, filtered))
    for trained, state in zip(model.children(), states, strict=True):
        assert state is not None
        trained.load_state_dict(state)
    with torch.no_grad():
        return float(cross_entropy(model(test[0]), test[1])), difference


def play(asked: Asked) -> Figures:
    """Train with the filter and without it, for several seeds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = len(DEPTHS)
    groups = [dist.new_group(list(range(stage, size, count))) for stage in range(count)]
    pipelines = [dist.new_group(list(range(first, first + count))) for first in range(0, size, count)]
    steps, seeds = (QUICK_STEPS, 1) if asked.quick else (STEPS, SEEDS)
    losses: dict[bool, list[float]] = {True: [], False: []}
    difference = 0.0
    for filtered, found in losses.items():
        for seed in range(seeds):
            loss, apart_by = train(seed, filtered, steps, groups[rank % count], pipelines[rank // count])
            found.append(loss)
            difference = max(difference, apart_by)
    loss, plain = (statistics.mean(losses[each]) for each in (True, False))
    if asked.check:
        expect(
            difference <= TOLERANCE, f"gradients are {difference:.2g} from one process; at most {TOLERANCE} is right"
        )
        expect(asked.quick or loss <= plain, f"loss {loss:.3f}, and {plain:.3f} without the filter")
    return {
        "difference": difference, "loss": loss, "loss_without_filter": plain, "seeds": seeds, "steps": steps,
        "parameters": sum(p.numel() for each in make_stages(0, True) for p in each.parameters()),
        "parameters_without_filter": sum(p.numel() for each in make_stages(0, False) for p in each.parameters()),
    }  # fmt: skip


if __name__ == "__main__":
    launcher.run(play, "local_filters", __doc__)
