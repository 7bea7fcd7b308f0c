"""A rank of synchronous training whose last rank dies and is replaced between two steps. Prints JSON at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.examples.train import replica_hash
from fanin.host.torch import Membership, is_newcomer
from tests.stale.stale_checks import accuracy, batch
from tests.support.replicas import make_model

STEPS, DIES_AT, WAITS_AT = 40, 8, 16
PATIENCE_S = 600.0
"""Longer than the test lives: a founder that gives up first takes the group's store with it, and the test sees that."""
CAME, WAITED_FOR = "test/came", "test/waited-for"


def main() -> None:
    """Train; founders do not go beyond one step before somebody has come, and nobody comes before that step."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, size, newcomer = dist.get_rank(), dist.get_world_size(), is_newcomer()
    store = dist.distributed_c10d._get_default_store()
    if newcomer:
        store.set(CAME, "")
        store.wait([WAITED_FOR], timedelta(seconds=PATIENCE_S))
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    membership = Membership(net, optimizer)
    model = DistributedDataParallel(net)
    step = membership.step
    deadline = time.monotonic() + PATIENCE_S
    while step < STEPS:
        came = membership.let_in(step)
        if step == WAITS_AT and not newcomer:
            assert not came
            store.set(WAITED_FOR, "")
            store.wait([CAME], timedelta(seconds=PATIENCE_S))
        while step == WAITS_AT and not newcomer and not came:
            assert time.monotonic() < deadline, "nobody came"
            came = membership.let_in(step)
        if came:
            model = DistributedDataParallel(net)
        if step == DIES_AT and rank == size - 1 and not newcomer:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        step += 1
    everyones = [torch.empty(1) for _ in range(size)]
    dist.all_gather(everyones, torch.tensor([float(rank)]))
    told = {"replica": replica_hash(net), "began": membership.step, "accuracy": accuracy(net), "newcomer": newcomer}
    print(json.dumps(told | {"gathered": [float(each) for each in everyones]}))
    sys.stdout.flush()
    dist.destroy_process_group()


main()
