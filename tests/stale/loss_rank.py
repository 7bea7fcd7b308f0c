"""A rank of stale training that goes on without the last one, which dies half-way: `loss_rank.py MODE`.

MODE is `asynchronous` (AsynchronousOptimizer) or `hook` (stale synchronous training under DDP). Prints a JSON object
when the loss has written the flight recorder's file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.examples.train import replica_hash
from fanin.host.torch import AsynchronousOptimizer, StaleOptions, StaleSynchronousState, stale_synchronous_hook
from tests.stale.stale_checks import accuracy, batch
from tests.support.replicas import make_model

STEPS = 60
DIES_AFTER = {"asynchronous": 10, "hook": 12}


def differentiate(model: nn.Module, step: int) -> None:
    """Gradients of this rank's own batch; the last rank dies in place of that in the middle."""
    if dist.get_rank() == dist.get_world_size() - 1 and step == DIES_AFTER[sys.argv[1]]:
        os.kill(os.getpid(), signal.SIGKILL)
    inputs, targets = batch(dist.get_rank(), step)
    nn.functional.cross_entropy(model(inputs), targets).backward()


def asynchronous() -> dict[str, Any]:
    """Rounds that everybody takes part in who is there."""
    model = make_model()
    optimizer = AsynchronousOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2),
        model,
        rounds=STEPS,
        options=StaleOptions(staleness=4, quorum=dist.get_world_size(), bound=8),
    )
    step = 0
    while not optimizer.finished:
        optimizer.zero_grad()
        differentiate(model, step)
        optimizer.step()
        step += 1
    accounts = optimizer.flush()
    account = optimizer.account
    assert account is not None
    return {
        "replica": replica_hash(model),
        "ranks": [each.rank for each in accounts],
        "contributors": account.contributors[:STEPS],
    }


def hook() -> dict[str, Any]:
    """Train with DDP and the hook."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    state = StaleSynchronousState(StaleOptions(staleness=2))
    model.register_comm_hook(state, stale_synchronous_hook)
    for step in range(STEPS):
        optimizer.zero_grad()
        differentiate(model, step)
        optimizer.step()
    accounts = state.flush(optimizer)
    return {
        "replica": replica_hash(model.module),
        "ranks": [account.rank for account in accounts],
        "contributed": [account.contributed for account in accounts],
        "contributions": sum(account.contributions for account in accounts),
        "held": sum(accounts[0].contributors),
        "accuracy": accuracy(model.module),
    }


def main() -> None:
    """Train in the mode of the command line."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    ended = {"asynchronous": asynchronous, "hook": hook}[sys.argv[1]]()
    while not Path(f"{os.environ['FANIN_FLIGHT_RECORDER']}{dist.get_rank()}").exists():  # the watch thread's turn
        os.sched_yield()
    print(json.dumps(ended), flush=True)
    os._exit(0)  # the group's gloo part has lost a rank: leaving in order is not what this is about


main()
