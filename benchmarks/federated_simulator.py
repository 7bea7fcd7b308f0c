"""Simulates the clients of `fanin bench federated`: every run in virtual time, one after another, in one process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanin.benchmarks.federated_runs import Asked, Run, each_run
from fanin.benchmarks.federated_simulation import Floats, Simulation, World
from fanin.benchmarks.federated_task import Learner, turn_s
from fanin.benchmarks.ranks import asked_of, report
from fanin.host.federated.policies import make_policy

EXCHANGE_S = 0.01
"""Virtual time from a delta to its round, and from a round's end to the clients."""
ELEMENT_BYTES = 4


class Trained:
    """Trains a Learner's network in numpy, on flat weights: torch's steps at a fifth of their overhead."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._shapes = [tuple(each.shape) for each in learner.network.parameters()]
        self._ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        self.start: Floats = np.concatenate(
            [each.detach().double().numpy().reshape(-1) for each in learner.network.parameters()]
        )

    def parts(self, weights: Floats) -> list[Floats]:
        """Views of flat weights, by parameter."""
        parts = np.split(weights, self._ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def turn(self, client: int, number: int, weights: Floats, rate: float) -> tuple[Floats, float]:
        """Train for one client's turn from these weights; returns the weights after it, and the mean loss."""
        weights = weights.astype(np.float32)
        parts = self.parts(weights)
        rate *= self.learner.learning_rate
        losses = [self._step(parts, *batch, rate) for batch in self.learner.batches(client, number)]
        return weights.astype(np.float64), sum(losses) / len(losses)

    def deep(self, names: frozenset[str]) -> npt.NDArray[np.bool_]:
        """Mask of the elements of these parameters, shape (elements,)."""
        named = self.learner.network.named_parameters()
        return np.concatenate([np.full(each.numel(), name in names) for name, each in named])

    @staticmethod
    def _step(parts: Sequence[Any], inputs: torch.Tensor, labels: torch.Tensor, rate: float) -> float:
        """Take a step of SGD on the mean cross-entropy, in place; returns the loss before it."""
        layers = list(zip(parts[::2], parts[1::2], strict=True))
        values = [inputs.flatten(1).numpy()]
        for weight, bias in layers[:-1]:
            values.append(np.maximum(values[-1] @ weight.T + bias, 0))
        logits = values[-1] @ layers[-1][0].T + layers[-1][1]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        rows, targets = np.arange(len(shares)), labels.numpy()
        loss = -float(np.log(np.maximum(shares[rows, targets], 1e-30)).mean())
        shares[rows, targets] -= 1
        gradient = shares / len(shares)
        for (weight, bias), value in zip(reversed(layers), reversed(values), strict=True):
            before = (gradient @ weight) * (value > 0)
            weight -= rate * (gradient.T @ value)
            bias -= rate * gradient.sum(axis=0)
            gradient = before
        return loss


def simulate(number: int, run: Run) -> None:
    """Simulate one training, and report it."""
    learner = Learner(run.partition, run.clients, run.seed, run.learning_rate)
    trained, policy, samples = Trained(learner), make_policy(run.policy), learner.samples
    draws = [random.Random(1000 * run.seed + client) for client in range(run.clients)]
    simulated = Simulation(
        policy,
        run.rounds,
        World(
            samples=samples,
            turn_s=lambda client, number: turn_s(run.turn_ms / 1e3, client, samples, draws[client]),
            exchange_s=EXCHANGE_S,
        ),
        trained.start,
        trained.deep(policy.deep([name for name, _ in learner.network.named_parameters()])),
        trained.turn,
    ).run()
    report(
        {
            "run": number,
            "seconds": simulated.times_s,
            "bytes": [
                ELEMENT_BYTES * (sent + received)
                for sent, received in zip(simulated.sent, simulated.received, strict=True)
            ],
            "accuracies": [
                learner.accuracy([torch.from_numpy(part) for part in trained.parts(weights)])
                for weights in simulated.weights
            ],
            "handed_in": sum(each.handed_in for each in simulated.accounts),
            "dropped": sum(sum(each.dropped.values()) for each in simulated.accounts),
        }
    )


def main() -> None:
    """Simulate the runs of the command line."""
    asked = asked_of(Asked, __doc__)
    torch.set_num_threads(1)
    each_run(asked, simulate)


if __name__ == "__main__":
    main()
