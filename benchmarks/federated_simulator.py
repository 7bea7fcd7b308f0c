"""The simulated clients of `fanin bench federated`: every run in virtual time, one after the other, in one process."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import torch

from fanin.benchmarks.federated import Asked, rounds_of
from fanin.benchmarks.federated_simulation import Floats, Simulation, World
from fanin.benchmarks.federated_task import Learner, turn_s
from fanin.benchmarks.ranks import asked_of, progress, report
from fanin.host.federated.policies import make_policy

EXCHANGE_S = 0.01
"""Virtual time from a delta to its round, and from a round's end to the clients."""
ELEMENT_BYTES = 4


class Trained:
    """A Learner whose weights are flat arrays."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._parameters = list(learner.network.parameters())
        self._sizes = [each.numel() for each in self._parameters]

    def flat(self) -> Floats:
        """The network's weights, shape (elements,)."""
        return torch.cat([each.detach().reshape(-1).double() for each in self._parameters]).numpy()

    def parts(self, weights: Floats) -> list[torch.Tensor]:
        """Flat weights by parameter."""
        parts = torch.from_numpy(weights).split(self._sizes)
        return [part.view_as(each) for part, each in zip(parts, self._parameters, strict=True)]

    def turn(self, client: int, number: int, weights: Floats, rate: float) -> tuple[Floats, float]:
        """One client's turn from these weights."""
        with torch.no_grad():
            for parameter, part in zip(self._parameters, self.parts(weights), strict=True):
                parameter.copy_(part)
        loss = self.learner.turn(client, number, rate)
        return self.flat(), loss

    def deep(self, names: frozenset[str]) -> np.ndarray:
        """Mask of the elements of these parameters, shape (elements,)."""
        named = self.learner.network.named_parameters()
        return np.concatenate([np.full(each.numel(), name in names) for name, each in named])


def run(asked: Asked, partition: str, seed: int, name: str) -> None:
    """Simulate one training, and report it."""
    learner = Learner(partition, asked.clients, seed)
    trained, policy, samples = Trained(learner), make_policy(name), learner.samples
    draws = [random.Random(1000 * seed + client) for client in range(asked.clients)]
    simulated = Simulation(
        policy,
        rounds_of(name, asked.rounds),
        World(
            samples=samples,
            turn_s=lambda client, number: turn_s(asked.turn_ms / 1e3, client, samples, draws[client]),
            exchange_s=EXCHANGE_S,
        ),
        trained.flat(),
        trained.deep(policy.deep([name for name, _ in learner.network.named_parameters()])),
        trained.turn,
    ).run()
    report(
        {
            "partition": partition,
            "policy": name,
            "seed": seed,
            "seconds": simulated.times_s,
            "bytes": [
                ELEMENT_BYTES * (sent + received)
                for sent, received in zip(simulated.sent, simulated.received, strict=True)
            ],
            "accuracies": [learner.accuracy(trained.parts(weights)) for weights in simulated.weights],
            "handed_in": sum(each.handed_in for each in simulated.accounts),
            "dropped": sum(sum(each.dropped.values()) for each in simulated.accounts),
        }
    )


def main() -> None:
    """Simulate what the command line asks for."""
    asked = asked_of(Asked, __doc__)
    torch.set_num_threads(1)
    runs = list(product(range(asked.seeds), asked.partitions, asked.policies))
    for number, (seed, partition, policy) in enumerate(runs, start=1):
        run(asked, partition, seed, policy)
        progress(f"run {number} of {len(runs)}: {policy}, {partition}, seed {seed}")


if __name__ == "__main__":
    main()
