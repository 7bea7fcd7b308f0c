"""Federated digits: splits of the training set over clients, the network, and one client's turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fanin.benchmarks.federated import PARTITIONS, SPEEDS
from fanin.examples import digits

CLASSES = 10
CONCENTRATION = 0.3
"""Concentration of the Dirichlet distribution that deals out each class."""
LEAST_SAMPLES = 2
"""Fewest samples of a client."""
BATCH = 16
LEAST_STEPS = 10
"""Fewest steps of a turn; the epoch of a small client is repeated until the turn has that many."""

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


def network() -> nn.Sequential:
    """A network of 6,776 parameters, more than half of them in the last two layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 24),
        nn.ReLU(),
        nn.Linear(24, 64),
        nn.ReLU(),
        nn.Linear(64, 48),
        nn.ReLU(),
        nn.Linear(48, CLASSES),
    )


def partition(labels: Sequence[int], name: str, clients: int, seed: int) -> list[Indices]:
    """Indices of each client's samples, in the order of the training set; samples are shuffled only after the split.

    `even`: alike in number and classes; `dirichlet`: each class dealt out by Dirichlet(0.3); `two-classes`.
    """
    assert name in PARTITIONS
    draw = np.random.default_rng(seed)
    shares = np.zeros((CLASSES, clients))
    for label in range(CLASSES):
        if name == "even":
            shares[label] = 1.0
        elif name == "dirichlet":
            shares[label] = draw.dirichlet(np.full(clients, CONCENTRATION))
    if name == "two-classes":
        order = draw.permutation(CLASSES)
        for client in range(clients):
            shares[order[[2 * client % CLASSES, (2 * client + 1) % CLASSES]], client] = 1.0
    dealt: list[list[int]] = [[] for _ in range(clients)]
    for label in range(CLASSES):
        of_class = np.flatnonzero(np.asarray(labels) == label)
        bounds = np.rint(np.cumsum(shares[label]) / shares[label].sum() * len(of_class)).astype(int)
        for client, part in enumerate(np.split(of_class, bounds[:-1])):
            dealt[client] += part.tolist()
    for client in range(clients):  # every client needs data
        while len(dealt[client]) < LEAST_SAMPLES:
            dealt[client].append(max(dealt, key=len).pop())
    return [np.sort(np.array(each, np.int64)) for each in dealt]


def turn_s(fastest_s: float, client: int, samples: Sequence[int], draw: random.Random) -> float:
    """Draw the duration of a turn: by the client's speed, half of it by its samples, and up to 10 % at random."""
    share = samples[client] * len(samples) / sum(samples)
    return fastest_s * SPEEDS[client % len(SPEEDS)] * (0.5 + 0.5 * share) * draw.uniform(0.9, 1.1)


class Learner:
    """The network of one process, which trains as any client, and evaluates shared weights."""

    def __init__(self, split: str, clients: int, seed: int, learning_rate: float) -> None:
        training, test = digits.load()
        self._inputs, self._labels = training.tensors
        self._test_inputs, self._test_labels = test.tensors
        self.parts = partition(self._labels.tolist(), split, clients, seed)
        self._seed, self.learning_rate = seed, learning_rate
        torch.manual_seed(100 + seed)
        self.network = network()

    @property
    def samples(self) -> list[int]:
        """Number of samples, by client."""
        return [len(each) for each in self.parts]

    def batches(self, client: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an epoch of a client's batches, repeated to LEAST_STEPS if shorter, shuffled for turn `number`."""
        shuffled = torch.Generator().manual_seed((self._seed * 1000 + client) * 100_000 + number)
        chosen, steps = torch.from_numpy(self.parts[client]), 0
        while steps < LEAST_STEPS:
            for batch in chosen[torch.randperm(len(chosen), generator=shuffled)].split(BATCH):
                steps += 1
                yield self._inputs[batch], self._labels[batch]

    def turn(self, client: int, number: int, rate: float = 1.0) -> float:
        """Train the network on a client's batches of one turn; returns the mean loss."""
        optimizer = torch.optim.SGD(self.network.parameters(), self.learning_rate * rate)
        losses = []
        for inputs, labels in self.batches(client, number):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.network(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    def accuracy(self, weights: Sequence[Tensor]) -> float:
        """Accuracy on the test set of these weights, in the order of the parameters."""
        with torch.no_grad():
            for parameter, given in zip(self.network.parameters(), weights, strict=True):
                parameter.copy_(given)
            right = self.network(self._test_inputs).argmax(-1) == self._test_labels
        return float(right.float().mean())
