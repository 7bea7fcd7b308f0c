"""A rank that forks, as data loaders do, while it trains: its children end normally, and it goes on reducing.

Run by tests/torch/test_forks.py under torchrun; prints "rank R reduced" when everything held.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from fanin.errors import FaninError

ROUNDS = 2


def reduce() -> None:
    """A few sums, small and large."""
    for _ in range(ROUNDS):
        for count in (7, 100_000):
            tensor = torch.ones(count)
            dist.all_reduce(tensor)
            assert (tensor == dist.get_world_size()).all()


def load() -> None:
    """An epoch from a loader with processes of its own."""
    loader = DataLoader(TensorDataset(torch.arange(8.0)), num_workers=2, multiprocessing_context="fork")
    assert sum(float(batch[0]) for batch in loader) == 28.0


def fork(work: Callable[[], None]) -> int:
    """A bare fork, whose child ends as a program does, handlers and interpreter. Its status."""
    child = os.fork()
    if child == 0:
        work()
        sys.exit()
    return os.waitpid(child, 0)[1]


def shut_down() -> None:
    """Shut down as a child does that cleans up after itself."""
    group = dist.group.WORLD
    assert group is not None
    group.shutdown()


def use() -> None:
    """A child that believes to be a rank is told that it is not one."""
    with pytest.raises((FaninError, RuntimeError), match="forked"):
        dist.all_reduce(torch.ones(7))


def main() -> None:
    """Everything, with sums in between."""
    dist.init_process_group("fanin")
    reduce()
    load()
    reduce()
    process = multiprocessing.get_context("fork").Process(target=use)
    process.start()
    process.join()
    assert process.exitcode == 0
    reduce()
    for work in (use, shut_down):
        assert fork(work) == 0, work
        reduce()
    print(f"rank {dist.get_rank()} reduced", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
