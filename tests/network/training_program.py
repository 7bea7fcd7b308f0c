"""A worker that takes so many optimizer steps with DDP over fanin, and says what the sum of its weights is.

With `--restarted` behind their number it takes them when torchrun has started it again; before, steps have no end.
"""

from __future__ import annotations

import itertools
import json
import os
import sys

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
    endless = "--restarted" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for _ in itertools.count() if endless else range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    print(json.dumps({"loss": network.weight.double().sum().item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
