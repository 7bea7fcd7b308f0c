"""A worker that sums a million numbers over fanin so many times, and checks what it gets from four."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Sum, and look at every result."""
    dist.init_process_group("fanin")
    for _ in range(int(sys.argv[1])):
        tensor = torch.full((1_000_000,), 1.0 + dist.get_rank())
        dist.all_reduce(tensor)
        assert (tensor == 10).all()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
