"""A client of a federated job whose last founder dies and is replaced. Prints a JSON object at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from fanin.examples.train import replica_hash
from fanin.host.torch import Federated, is_newcomer
from tests.federated.training_checks import SAMPLES, make_model, turn

ROUNDS, DIES_AT, ALONE_UNTIL = 30, 3, 10
"""From version ALONE_UNTIL on founders wait until the newcomer has contributed."""
CAME = "test/came"
PATIENCE_S = 90.0


def main() -> None:
    """Join, train and report."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, size, newcomer = dist.get_rank(), dist.get_world_size(), is_newcomer()
    store = dist.distributed_c10d._get_default_store()
    model = make_model()
    federated = Federated(model, samples=SAMPLES[rank], rounds=ROUNDS, policy="fedavg")
    began = federated.version
    while federated.begin():
        if rank == size - 1 and not newcomer and federated.version >= DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        deadline_s = time.monotonic() + PATIENCE_S
        while not newcomer and federated.version >= ALONE_UNTIL and not store.check([CAME]):
            assert time.monotonic() < deadline_s, "no newcomer"
            time.sleep(0.01)
        federated.hand_in(turn(model, rank))
        if newcomer and federated.accounts[0].contributions:
            store.set(CAME, "")
    (accounts,) = federated.flush()
    print(
        json.dumps(
            {
                "began": began,
                "replica": replica_hash(model),
                "ranks": [account.rank for account in accounts],
                "contributors": accounts[0].contributors[:ROUNDS],
                "contributions": [account.contributions for account in accounts],
            }
        )
    )


main()
sys.stdout.flush()
os._exit(0)
