"""A rank of a stale job that goes on without the last one, which dies half-way. Prints a JSON object at the end."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from fanin.examples.train import replica_hash
from fanin.host.torch import AsynchronousOptimizer, StaleOptions
from tests.stale.training_checks import batch, make_model

ROUNDS, DIES_AFTER = 60, 10


def main() -> None:
    """Train; the last rank dies."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model()
    optimizer = AsynchronousOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2),
        model,
        rounds=ROUNDS,
        options=StaleOptions(staleness=4, quorum=size, bound=8),
    )
    step = 0
    while not optimizer.finished:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        if rank == size - 1 and step == DIES_AFTER:
            os._exit(9)
        optimizer.step()
        step += 1
    accounts = optimizer.flush()
    account = optimizer.account
    assert account is not None
    print(
        json.dumps(
            {
                "replica": replica_hash(model),
                "ranks": [each.rank for each in accounts],
                "contributors": account.contributors[:ROUNDS],
            }
        )
    )
    sys.stdout.flush()
    os._exit(0)  # the group's gloo part has lost a rank: leaving in order is not what this is about


main()
