"""The tasks of the examples: two small classification problems that need no download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.utils.data import TensorDataset

from fanin.examples import digits, text


@dataclass(frozen=True, slots=True)
class Task:
    """A classification task: inputs with classes, and a network whose logits have the classes in the last dimension."""

    network: Callable[[], nn.Module]
    data: Callable[[], tuple[TensorDataset, TensorDataset]]
    """Function that makes the training and the test set."""
    epochs: int
    batch: int
    """Samples per step over all workers together."""
    learning_rate: float


TASKS = {
    "digits": Task(digits.Network, digits.load, epochs=12, batch=64, learning_rate=3e-3),
    "text": Task(text.Network, text.load, epochs=2, batch=64, learning_rate=2e-3),
}
