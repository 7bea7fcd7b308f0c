"""A transformer over data x pipeline x tensor groups, by four schedules of microbatches.

    torchrun --nproc-per-node 8 -m fanin.examples.parallel.transformer --check

Shoeybi et al., Megatron-LM, 2019; Huang et al., GPipe, 2019. torch's tensor parallelism splits heads and the hidden
layer of every block; torch's pipelining sends microbatches through the stages: GPipe, 1F1B, interleaved (two stages per
rank) and zero bubble. Sums of tensor and data groups go through the switch, messages between stages through gloo.
`--check` compares every gradient with one process, and checks by counters which carrier had how many bytes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, apart, counters_of, expect, gradient_of

DATA, PIPELINE, TENSOR = 2, 2, 2
STAGES = 2 * PIPELINE
"""Number of parts; each is a stage if a schedule interleaves, otherwise two are one stage."""
WIDTH, HEADS, LENGTH, VOCABULARY = 32, 4, 12, 40
MICROBATCHES, SAMPLES = 4, 2
"""Number of microbatches of each data replica, and of samples in each."""
TOLERANCE = 1e-5
SCHEDULES: dict[str, tuple[Any, int]] = {
    "GPipe": (ScheduleGPipe, 1), "1F1B": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2), "zero bubble": (ScheduleInterleavedZeroBubble, 2),
}  # fmt: skip
"""By name, the schedule's class, and its stages per rank."""


class Block(nn.Module):
    """Causal attention and a hidden layer, each with a residual path; a rank may have a part of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform activations; shape (samples, length, width) in and out."""
        normed = self.first(hidden)
        query, key, value = (
            each(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).flatten(2))
        made: Tensor = hidden + self.down(nn.functional.gelu(self.up(self.second(hidden))))
        return made


PLAN = {
    "query": ColwiseParallel(), "key": ColwiseParallel(), "value": ColwiseParallel(), "out": RowwiseParallel(),
    "up": ColwiseParallel(), "down": RowwiseParallel(),
}  # fmt: skip


def make_parts() -> list[nn.Module]:
    """One module per part: the first has the embedding, the last the logits."""
    torch.manual_seed(13)
    parts: list[nn.Module] = [Block() for _ in range(STAGES)]
    parts[0] = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), parts[0])
    parts[-1] = nn.Sequential(parts[-1], nn.Linear(WIDTH, VOCABULARY))
    return parts


def loss_of(logits: Tensor, following: Tensor) -> Tensor:
    """Mean cross-entropy over one microbatch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def samples() -> tuple[Tensor, Tensor]:
    """Tokens of all replicas, and the tokens that follow them."""
    shape = (DATA * MICROBATCHES * SAMPLES, LENGTH + 1)
    tokens = torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(2))
    return tokens[:, :-1], tokens[:, 1:]


def own_stages(mesh: DeviceMesh, per_rank: int) -> tuple[list[nn.Module], list[list[int]]]:
    """This rank's stages, split over its tensor group, and the numbers of the parts in each."""
    parts, place = make_parts(), mesh["pipeline"].get_local_rank()
    together = STAGES // (PIPELINE * per_rank)
    numbers = [
        list(range(stage * together, (stage + 1) * together)) for stage in range(place, PIPELINE * per_rank, PIPELINE)
    ]
    for block in (each for module in parts for each in module.modules() if isinstance(each, Block)):
        parallelize_module(block, mesh["tensor"], PLAN)
    return [nn.Sequential(*(parts[number] for number in each)) for each in numbers], numbers


def trained(mesh: DeviceMesh, name: str) -> dict[int, list[Tensor]]:
    """Gradients of one step by the schedule `name`, gathered whole, by part."""
    kind, per_rank = SCHEDULES[name]
    modules, numbers = own_stages(mesh, per_rank)
    group, place = mesh["pipeline"].get_group(), mesh["pipeline"].get_local_rank()
    count = PIPELINE * per_rank
    stages = [
        PipelineStage(module, stage, count, torch.device("cpu"), group=group)
        for module, stage in zip(modules, range(place, count, PIPELINE), strict=True)
    ]
    schedule = kind(stages if per_rank > 1 else stages[0], n_microbatches=MICROBATCHES, loss_fn=loss_of)
    tokens, following = (each.chunk(DATA)[mesh["data"].get_local_rank()] for each in samples())
    inputs = (tokens,) if place == 0 else ()
    schedule.step(*inputs, **({"target": following} if place == PIPELINE - 1 else {}))
    gradients: dict[int, list[Tensor]] = {}
    for module, each in zip(modules, numbers, strict=True):
        for part, number in zip(module.children(), each, strict=True):
            gradients[number] = [whole(parameter.grad, mesh["data"].get_group()) for parameter in part.parameters()]
    return gradients


def whole(gradient: Any, data: Any) -> Tensor:
    """A gradient gathered over the tensor group, and averaged over data replicas."""
    local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    dist.all_reduce(local, dist.ReduceOp.AVG, group=data)
    return gradient.full_tensor() if isinstance(gradient, DTensor) else local


def play(asked: Asked) -> Figures:
    """Train one step by each schedule."""
    mesh = init_device_mesh("cpu", (DATA, PIPELINE, TENSOR), mesh_dim_names=("data", "pipeline", "tensor"))
    reference = nn.Sequential(*copy.deepcopy(make_parts()))
    tokens, following = samples()
    for part in zip(tokens.chunk(DATA * MICROBATCHES), following.chunk(DATA * MICROBATCHES), strict=True):
        (loss_of(reference(part[0]), part[1]) / (DATA * MICROBATCHES)).backward()
    figures: Figures = {}
    for name in SCHEDULES:
        found = trained(mesh, name)
        pairs = [
            (gradient, gradient_of(parameter))
            for number, gradients in found.items()
            for gradient, parameter in zip(gradients, reference[number].parameters(), strict=True)
        ]
        largest = max(apart(gradient, wanted) for gradient, wanted in pairs if float(wanted.abs().max()) > 1e-6)
        figures[name] = largest
        if asked.check:
            expect(largest <= TOLERANCE, f"{name}: gradients are {largest:.2g} from one process")
    carried = {name: counters_of(mesh[name].get_group()) for name in ("data", "pipeline", "tensor")}
    sums = carried["data"].get("switch.all_reduce", 0)
    messages = carried["pipeline"].get("gloo.send", 0) + carried["pipeline"].get("gloo.recv", 0)
    if asked.check:
        expect(
            sums > 0 and not carried["data"].get("gloo.bytes"), f"data-parallel sums went elsewhere: {carried['data']}"
        )
        expect(
            messages > 0 and not carried["pipeline"].get("switch.bytes"),
            f"messages went elsewhere: {carried['pipeline']}",
        )
        expect(
            carried["tensor"].get("switch.bytes", 0) > 0, f"tensor-parallel sums went elsewhere: {carried['tensor']}"
        )
    return {**figures, "data_sums": int(sums), "messages": int(messages)}


if __name__ == "__main__":
    launcher.run(play, "transformer", __doc__)
