"""A process of elastic local steps. It may be killed, and others come; prints JSON at the end."""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
from torch import nn

from fanin.examples.train import replica_hash
from fanin.host.torch import ElasticLocalSteps, Members, Outer
from fanin.host.torch.training.meetings.agreement import Patience
from tests.stale.stale_checks import accuracy, batch
from tests.support.replicas import make_model

DIES_AFTER, GOES_ON = 4, 6
"""Meetings after which one of them kills itself in a period; meetings after the newcomer's first."""
GOAL, DEAD = "goal", "dead"
"""Keys: the meetings after which all end, and the rank of the process that is about to die."""


def main() -> None:
    """Train until the newcomer has said for how long."""
    torch.set_num_threads(1)
    role, victim = os.environ["ROLE"], int(os.environ["VICTIM"])
    members = Members.from_environment(
        founders=int(os.environ["FOUNDERS"]), timeout_s=60.0, patience=Patience(silent_s=4.0, lost_s=1.5)
    )
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training = ElasticLocalSteps(
        net, optimizer, members, period=8, fragments=2, overlap=2, mix="keep", codec="8/8",
        outer=Outer(lr=0.7, momentum=0.9, nesterov=True),
    )  # fmt: skip
    first, store = training.meetings, members.store
    if role == "newcomer":
        store.set(GOAL, str(first + GOES_ON))
    sizes: list[int] = []
    losses: list[float] = []
    goal: int | None = None
    while goal is None or training.meetings < goal:
        if goal is None and store.check([GOAL]):
            goal = int(store.get(GOAL))
        if role == "trains" and members.id == victim and training.meetings >= DIES_AFTER and training.steps % 4 == 1:
            store.set(DEAD, os.environ["RANK"])
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = batch(members.id, training.steps)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        training.step()
        losses.append(loss.item())
        if not sizes or sizes[-1] != training.members:
            sizes.append(training.members)
            print(f"members {training.members}", flush=True)
    training.flush()
    told = {
        "replica": replica_hash(net), "meetings": training.meetings, "first": first, "sizes": sizes,
        "accuracy": accuracy(net), "losses": [losses[0], losses[-1]],
    }  # fmt: skip
    print(json.dumps(told))
    sys.stdout.flush()
    training.leave()


main()
