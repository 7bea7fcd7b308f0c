"""A client of a federated job whose last client dies and is replaced while rounds close. Prints JSON at the end.

TEST_POLICY names the policy. Founders do not train to the end before the newcomer has taken part.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
import torch.distributed as dist

from fanin.errors import FaninError
from fanin.examples.train import replica_hash
from fanin.host.torch import Federated, FederatedOptions, is_newcomer
from tests.federated.federated_checks import SAMPLES, turn
from tests.support.processes import until
from tests.support.replicas import make_model

ROUNDS, DIES_AFTER = 60, 4
EMPTY_UNTIL, ALONE_UNTIL = 24, 40
"""From these versions on founders wait for the newcomer: until it is a member, and until it has handed in. Between the
two rounds close, so that its first base is reached."""
CAME = "test/came"
PATIENCE_S = 600.0
"""Longer than the test lives: a founder that gives up first takes the group's store with it, and the test sees that."""


def main() -> None:
    """Train until all rounds are over."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, size, newcomer = dist.get_rank(), dist.get_world_size(), is_newcomer()
    store = dist.distributed_c10d._get_default_store()
    model = make_model()
    try:
        federated = Federated(
            model, samples=SAMPLES[rank], rounds=ROUNDS, policy=os.environ["TEST_POLICY"],
            options=FederatedOptions(patience_s=PATIENCE_S),
        )  # fmt: skip
    except FaninError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
        return
    began, turns, session = federated.version, 0, federated._part.job.session
    while federated.begin():
        loss = turn(model, rank, 0.1 * federated.rate)
        federated.hand_in(loss)
        turns += 1
        if rank == size - 1 and not newcomer and turns == DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        if newcomer and turns == 1:
            store.set(CAME, "")
        if not newcomer and federated.version >= EMPTY_UNTIL:
            until(lambda: size - 1 in session.members or store.check([CAME]), PATIENCE_S)
        if not newcomer and federated.version >= ALONE_UNTIL:
            until(lambda: store.check([CAME]), PATIENCE_S)
    (accounts,) = federated.flush()
    own = federated.accounts[0]
    told = {
        "replica": replica_hash(model), "began": began, "turns": turns, "ranks": [each.rank for each in accounts],
        "handed_in": own.handed_in, "contributed": own.contributed, "dropped": dict(own.dropped),
        "contributors": list(own.contributors), "all": sum(each.contributed for each in accounts),
    }  # fmt: skip
    print(json.dumps(told))
    sys.stdout.flush()
    dist.destroy_process_group()


main()
