"""The smallest program: `torchrun --nproc-per-node 4 examples/minimal.py`. Rank 0 starts a software switch."""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser(description=__doc__)
parser.parse_args()
if "RANK" not in os.environ:
    parser.error("no RANK in the environment: start it with `torchrun --nproc-per-node 4`")

dist.init_process_group("fanin")
rank, workers = dist.get_rank(), dist.get_world_size()
gradient = torch.full((1_000_000,), float(rank + 1))
dist.all_reduce(gradient)
expected = workers * (workers + 1) / 2
if not torch.equal(gradient, torch.full_like(gradient, expected)):
    raise SystemExit(f"rank {rank}: expected {expected} everywhere, got {gradient}")
print(f"rank {rank} of {workers}: the sum is {gradient[0]:g}")
dist.destroy_process_group()
