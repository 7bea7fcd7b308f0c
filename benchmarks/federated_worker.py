"""One client of `fanin bench federated`: trains with every policy on every split through the switch, one after another.

A turn's duration is emulated: the client sleeps until the turn has lasted as long as its speed says. The deltas are
real. Rank 0 keeps the shared weights of each round, and evaluates them at the end of the run.
"""

from __future__ import annotations

import random
import time

import torch
import torch.distributed as dist

from fanin.benchmarks.federated_runs import Asked, Run, each_run
from fanin.benchmarks.federated_task import Learner, turn_s
from fanin.benchmarks.ranks import asked_of, group_of_ranks, report
from fanin.host.federated.policies import make_policy
from fanin.host.stale.account import Account
from fanin.host.torch import Federated

ELEMENT_BYTES = 4


class Watch:
    """Rank 0's record of the rounds: the time of each end, and the shared weights then."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.started_s = 0.0
        self.federated: Federated | None = None
        self.seconds: list[float] = []
        self.weights: list[list[torch.Tensor]] = []

    def note(self, version: int) -> None:
        """Record a round; called in the engine's thread after each round."""
        if self.federated is not None and version <= self.rounds:
            self.seconds.append(time.perf_counter() - self.started_s)
            self.weights.append(self.federated.shared())


def bytes_by_round(
    accounts: list[list[Account]], elements: list[int], rounds: int, deep_every: int, clients: int
) -> list[int]:
    """Payload bytes of all clients, both ways, up to each round's end; `elements`: of the shallow and the deep part."""
    total, totals = 0, []
    for round in range(rounds):
        total += (accounts[0][0].contributors[round] + clients) * elements[0]
        if len(accounts) > 1 and (round + 1) % deep_every == 0:
            total += (accounts[1][0].contributors[(round + 1) // deep_every - 1] + clients) * elements[1]
        totals.append(ELEMENT_BYTES * total)
    return totals


def take_part(number: int, run: Run) -> None:
    """Take part in one training, as every client does; rank 0 reports it."""
    client = dist.get_rank()
    learner = Learner(run.partition, run.clients, run.seed, run.learning_rate)
    rounds, policy = run.rounds, make_policy(run.policy)
    draw, watch = random.Random(1000 * run.seed + client), Watch(rounds)
    federated = Federated(
        learner.network,
        samples=learner.samples[client],
        rounds=rounds,
        policy=policy,
        on_round=watch.note if client == 0 else None,
    )
    dist.barrier()
    watch.started_s, watch.federated = time.perf_counter(), federated
    turn = 0
    while federated.begin():
        ends_s = time.perf_counter() + turn_s(run.turn_ms / 1e3, client, learner.samples, draw)
        loss = learner.turn(client, turn, federated.rate)
        time.sleep(max(ends_s - time.perf_counter(), 0.0))
        federated.hand_in(loss)
        turn += 1
    accounts = federated.flush()
    if client == 0:
        deep = policy.deep([name for name, _ in learner.network.named_parameters()])
        sizes = [0, 0]
        for name_of, parameter in learner.network.named_parameters():
            sizes[name_of in deep] += parameter.numel()
        ordered = _in_model_order(learner, deep)
        report(
            {
                "run": number,
                "seconds": watch.seconds,
                "bytes": bytes_by_round(accounts, sizes, rounds, policy.deep_every, run.clients),
                "accuracies": [learner.accuracy([each[at] for at in ordered]) for each in watch.weights],
                "handed_in": sum(each.handed_in for each in accounts[0]),
                "dropped": sum(sum(each.dropped.values()) for each in accounts[0]),
            }
        )
    dist.barrier()


def _in_model_order(learner: Learner, deep: frozenset[str]) -> list[int]:
    """Positions of the model's parameters in `Federated.shared()`, where deep ones come last."""
    names = [name for name, _ in learner.network.named_parameters()]
    shared = [name for name in names if name not in deep] + [name for name in names if name in deep]
    return [shared.index(name) for name in names]


def main() -> None:
    """Take part in the runs of the command line."""
    asked = asked_of(Asked, __doc__)
    with group_of_ranks("fanin"):
        each_run(asked, take_part)


if __name__ == "__main__":
    main()
