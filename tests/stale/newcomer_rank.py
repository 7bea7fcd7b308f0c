"""A rank of a stale job whose last rank dies and is replaced while the job runs. Prints a JSON object at the end.

Variables name the tasks of a process besides training: QUORUM; DIES, of the last founder; SHAPE, for another model;
GIVES_NOTHING and DIES_GIVING, of those who are asked for weights; LAST, of the last newcomer that is to come; LINGERS,
of founders that stay until that one has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d

from fanin.errors import FaninError, UnsupportedError
from fanin.examples.train import replica_hash
from fanin.host.session import handover
from fanin.host.torch import AsynchronousOptimizer, StaleOptions, is_newcomer
from tests.stale.stale_checks import batch
from tests.support.processes import until
from tests.support.replicas import CLASSES, WIDTH

ROUNDS, DIES_AFTER = 60, 8
EMPTY_UNTIL, ALONE_UNTIL = 24, 40
"""From these versions on founders wait for the newcomer: until it is a member, and until it has taken part or given up.
"""
CAME, OVER, LEFT = "test/came", "test/over", "test/left/{}"
PATIENCE_S = 600.0
"""Longer than the test lives: a founder that gives up first takes the group's store with it, and the test sees that."""
KEPT_PARTS = handover.LENGTH


class DeadlyLength:
    """A length at which a giver dies: after its place, and before its weights."""

    size, unpack = KEPT_PARTS.size, KEPT_PARTS.unpack

    def __init__(self) -> None:
        self.frames = 0

    def pack(self, length: int) -> bytes:
        self.frames += length > 0
        if self.frames == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return KEPT_PARTS.pack(length)


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    hidden = int(os.environ.get("SHAPE", "48"))
    return nn.Sequential(nn.Linear(WIDTH, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def wait_for_newcomer(optimizer: AsynchronousOptimizer, rank: int, store: c10d.Store) -> None:
    """A founder does not train the job to its end before somebody has come."""
    job = optimizer._job
    assert job is not None
    if optimizer.version >= EMPTY_UNTIL:
        until(lambda: rank in job.session.members or store.check([CAME]), PATIENCE_S)
    if optimizer.version >= ALONE_UNTIL:
        until(lambda: store.check([CAME]), PATIENCE_S)


def train(rank: int, size: int, newcomer: bool, store: c10d.Store) -> dict[str, object]:
    """Train to the end, and tell what there is to tell."""
    model = make_model()
    optimizer = AsynchronousOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5),
        model,
        rounds=ROUNDS,
        options=StaleOptions(staleness=4, quorum=int(os.environ["QUORUM"]), bound=8, epoch_rounds=10),
    )
    began, step = optimizer.version, 0
    while not optimizer.finished:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        if step == DIES_AFTER and "DIES" in os.environ and rank == size - 1 and not newcomer:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        step += 1
        if step == 1 and "GIVES_NOTHING" in os.environ and optimizer._welcome is not None:
            optimizer._welcome.close()
        if not newcomer:
            wait_for_newcomer(optimizer, size - 1, store)
        elif optimizer.account is not None and optimizer.account.contributions:
            store.set(CAME, "")
    accounts = optimizer.flush()
    told: dict[str, object] = {
        "began": began,
        "replica": replica_hash(nn.ParameterList(model.parameters())),
        "ranks": [account.rank for account in accounts],
        "contributors": accounts[0].contributors[:ROUNDS],
        "contributions": [account.contributions for account in accounts],
        "outside": is_newcomer(),
    }
    if len(accounts) == size:
        everyones = [torch.empty(1) for _ in range(size)]
        dist.all_gather(everyones, torch.tensor([float(rank)]))
        total = torch.tensor(float(rank))
        dist.all_reduce(total)
        told["gathered"], told["total"] = [float(each) for each in everyones], float(total)
    return told


def leave_before_the_store(rank: int, size: int, store: c10d.Store) -> None:
    """The store ends with rank 0, which therefore goes last of the founders that live."""
    if rank == 0:
        until(lambda: store.check([LEFT.format(each) for each in range(1, size - 1)]), PATIENCE_S)
    else:
        store.set(LEFT.format(rank), "")


def main() -> None:
    """Join, train and report."""
    torch.set_num_threads(1)
    told: dict[str, object] = {}
    started_s = time.monotonic()
    dist.init_process_group("fanin")
    rank, size, newcomer = dist.get_rank(), dist.get_world_size(), is_newcomer()
    store = dist.distributed_c10d._get_default_store()
    if rank == 2 and "DIES_GIVING" in os.environ:
        handover.LENGTH = DeadlyLength()  # type: ignore[assignment]
    try:
        if newcomer:
            try:
                dist.barrier()
            except UnsupportedError as error:
                told["barrier"] = str(error)
        told |= train(rank, size, newcomer, store)
    except FaninError as error:
        told |= {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - started_s}
    print(json.dumps(told))
    if "LAST" in os.environ:
        store.set(CAME, "")
        store.set(OVER, "")
    if "LINGERS" in os.environ and not newcomer:
        until(lambda: store.check([OVER]), PATIENCE_S)
        leave_before_the_store(rank, size, store)


main()
sys.stdout.flush()
os._exit(0)  # where a rank is gone the group's gloo part is broken: leaving in order is not what this is about
