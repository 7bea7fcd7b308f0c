"""A federated policy decides which deltas make a round, who begins a turn, and what a delta weighs.

Rules
-----
* `plan` is asked when a round begins and when clients have come or gone, by one process: rank 0. It may keep state.
* `weight` and `deep` are asked by every client and depend on their arguments alone.
* A policy has no thread, clock, socket or randomness: times are in the view, and the same views give the same plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from fanin.host.federated.policies.view import FederationView, RoundPlan


class FederatedPolicy(ABC):
    """Base of all policies; `Federated` takes an object of any subclass, a user's own as well."""

    name: ClassVar[str]
    waits: ClassVar[bool] = True
    """Whether a client that has handed in begins its next turn with the result of its delta's round, and not already
    when the delta is on its way to it."""
    deep_every: int = 1
    """Rounds from one that carries the model's deep layers to the next; 1: every round carries the whole model."""

    def check(self, clients: int) -> None:  # noqa: B027 - most policies fit any number
        """Raise ConfigurationError for settings that do not fit so many clients, all of whom ask before training."""

    @abstractmethod
    def plan(self, view: FederationView) -> RoundPlan:
        """Decide on the round that begins."""

    def weight(self, samples: int, version: int, round: int) -> float:
        """Weight, above 0, of a delta of so many samples, computed on `version` and handed in for `round`."""
        return float(samples)

    def deep(self, names: Sequence[str]) -> frozenset[str]:
        """Parameters, out of `names` in the model's order, that travel every `deep_every` rounds."""
        return frozenset()
