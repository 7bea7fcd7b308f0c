"""A worker that takes so many optimizer steps with DDP over fanin, and says what the sum of its weights is.

With a folder behind their number it takes them when it is started again; before, steps have no end. A rank's file there
says that it was started: torchrun counts by agent, and one that was killed begins to count anew.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train on numbers of its own; replicas agree because gradients are averaged."""
    dist.init_process_group("fanin")
    torch.manual_seed(0)
    network = torch.nn.Linear(64, 8)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
    endless = False
    if sys.argv[2:]:
        been_here = Path(sys.argv[2]) / f"rank{dist.get_rank()}"
        endless = not been_here.exists()
        been_here.touch()
    for _ in itertools.count() if endless else range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    print(json.dumps({"loss": network.weight.double().sum().item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
