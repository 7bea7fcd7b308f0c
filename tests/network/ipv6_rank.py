"""A rank on a host with IPv6 addresses alone: it sums, trains for some steps, and says what came of it."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

STEPS = 3
ELEMENTS = 50_000


def main() -> None:
    """Print the sum, the weights after training on all ranks, and where sums are made."""
    dist.init_process_group("fanin")
    rank, size = dist.get_rank(), dist.get_world_size()
    summed = torch.full((ELEMENTS,), rank + 1.0)
    dist.all_reduce(summed)
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everyone = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(everyone, own)
    backend = dist.group.WORLD
    assert backend is not None
    print(
        json.dumps(
            {
                "sum": summed.unique().tolist(),
                "alike": all(torch.equal(each, own) for each in everyone),
                "described": backend.describe(),  # type: ignore[attr-defined]
            }
        ),
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
