"""A few steps of FSDP2 on the CPU: many collectives in flight from several threads. Prints "loss X" on rank 0."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, BLOCKS, STEPS = 128, 7, 12


def main() -> None:
    """Shard, train and report."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(BLOCKS)]
    model = nn.Sequential(*blocks)
    mesh = init_device_mesh("cpu", (size,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(rank))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
