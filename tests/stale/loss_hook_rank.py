"""A rank of stale synchronous training under DDP that goes on without the last one, which dies half-way.

Prints a JSON object at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.examples.train import replica_hash
from fanin.host.torch import StaleOptions, StaleSynchronousState, stale_synchronous_hook
from tests.stale.training_checks import accuracy, batch, make_model

STEPS, DIES_AFTER = 60, 12


def main() -> None:
    """Train; the last rank dies."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    state = StaleSynchronousState(StaleOptions(staleness=2))
    model.register_comm_hook(state, stale_synchronous_hook)
    for step in range(STEPS):
        if rank == size - 1 and step == DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    accounts = state.flush(optimizer)
    print(
        json.dumps(
            {
                "replica": replica_hash(model.module),
                "ranks": [account.rank for account in accounts],
                "contributed": [account.contributed for account in accounts],
                "contributions": sum(account.contributions for account in accounts),
                "held": sum(accounts[0].contributors),
                "accuracy": accuracy(model.module),
            }
        )
    )
    sys.stdout.flush()
    os._exit(0)  # the group's gloo part has lost a rank: leaving in order is not what this is about


main()
