"""Sharded optimizer states, sharded training states, and shards offloaded to host memory beside a GPU.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.sharded_states --check

PatrickStar (Fang et al., 2021) and Colossal-AI (Li et al., 2021) keep a part of weights, gradients and optimizer states
at each rank. Here ZeroRedundancyOptimizer shards the states beside DistributedDataParallel, and FSDP2 shards all of
them. The sums go through the switch; so do FSDP2's gathers. Offloading to host memory needs a GPU; without one, the
output says that it is left out. `--check` compares the weights after some steps with one process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, apart, expect

WIDTH, SAMPLES, STEPS, RATE = 64, 8, 4, 1e-3
TOLERANCE = 1e-3
"""Largest difference, relative to the largest weight; not smaller, since Adam divides gradients by their own size."""


def network() -> nn.Sequential:
    """A network with the same initial weights at every rank."""
    torch.manual_seed(19)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))


def loss_of(model: nn.Module, step: int, rank: int, device: str = "cpu") -> Tensor:
    """Loss of one rank's samples of a step."""
    drawn = torch.randn(2, SAMPLES, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank)).to(device)
    return nn.functional.mse_loss(model(drawn[0]), drawn[1])


def alone(ranks: int) -> Tensor:
    """Weights after all steps of one process that trains for all ranks, flat."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(ranks):
            (loss_of(model, step, rank) / ranks).backward()
        optimizer.step()
    return flat(model)


def flat(model: nn.Module) -> Tensor:
    """All weights, whole and flat, on the host."""
    wholes = [each.full_tensor() if isinstance(each, DTensor) else each for each in model.parameters()]
    return torch.cat([each.detach().cpu().flatten() for each in wholes])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, device: str = "cpu") -> None:
    """Take all steps of training."""
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, rank, device).backward()
        optimizer.step()


def state_elements(optimizer: torch.optim.Optimizer) -> int:
    """Number of elements of Adam's moments that this rank holds."""
    states = [
        value for state in optimizer.state.values() for name, value in state.items() if name.startswith("exp_avg")
    ]
    return sum(each.to_local().numel() if isinstance(each, DTensor) else each.numel() for each in states)


def play(asked: Asked) -> Figures:
    """Train with each kind of sharding."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    expected = alone(ranks)
    model = DistributedDataParallel(network())
    sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=RATE)
    train(model, sharded, rank)
    found = {"states in shards": apart(flat(model), expected)}
    parts = torch.tensor(state_elements(sharded.optim))
    dist.all_reduce(parts)
    kinds: list[tuple[str, str, OffloadPolicy]] = [("FSDP2", "cpu", OffloadPolicy())]
    offloaded = torch.cuda.is_available()
    kinds += [("FSDP2 with offload", "cuda", CPUOffloadPolicy())] if offloaded else []
    held = 0
    for name, device, policy in kinds:
        whole = network()
        mesh = init_device_mesh(device, (ranks,))
        for each in (whole[0], whole[2], whole):
            fully_shard(each, mesh=mesh, offload_policy=policy)
        optimizer = torch.optim.Adam(whole.parameters(), RATE)
        train(whole, optimizer, rank, device)
        found[name] = apart(flat(whole), expected)
        held = state_elements(optimizer)
    if asked.check:
        for name, difference in found.items():
            expect(difference <= TOLERANCE, f"{name}: weights are {difference:.2g} from one process")
        expect(int(parts) == 2 * len(expected), f"the ranks hold {int(parts)} elements of states together")
        expect(held <= 2 * len(expected) // ranks + 2 * WIDTH, f"a rank holds {held} elements of states")
    return {
        **found, "states_per_rank": held, "states": 2 * len(expected),
        "offload": "tried" if offloaded else "skipped: no GPU",
    }  # fmt: skip


if __name__ == "__main__":
    launcher.run(play, "sharded_states", __doc__)
