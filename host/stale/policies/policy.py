"""A round policy decides what a worker does with a gradient that is late (docs/staleness.md, *Policies*).

A gradient was computed on the weights of version a (the results applied by then) and is ready when its worker's next
base is b. Its *age* is b - a. Its round is *over* when the worker has heard so before contributing to it.

Rules
-----
* Every worker has a policy object of its own, which may keep state between gradients.
* A policy has no thread, clock or memory of gradients: rounds.py asks it, and carries out what it says.
* All workers of a job have the same policy: the results of a flush depend on `lands_folded`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import ClassVar


class Fate(enum.Enum):
    """The decision on a gradient that is ready."""

    CONTRIBUTE = enum.auto()
    DROP = enum.auto()
    """It is thrown away, and counted."""
    FOLD = enum.auto()
    """It is added to the next one; the same base is looked at again."""
    FOLD_AND_PASS = enum.auto()
    """It is added to the next one, and this base is passed."""


class RoundPolicy(ABC):
    """The policy of one worker."""

    name: ClassVar[str]
    """Name of the policy in options, and its key in `fanin.host.stale.policies.POLICIES`."""
    passes_over: ClassVar[bool]
    """Whether a worker without a gradient passes a base whose round is over. If not, it waits for its gradient."""
    lands_folded: ClassVar[bool] = False
    """Whether a flush begins with one more base, in which every worker contributes what it has folded."""

    @abstractmethod
    def fate(self, age: int, bound: int, *, over: bool) -> Fate:
        """Decide on the next gradient. `bound`: the largest age that the options allow."""

    @classmethod
    def default_quorum(cls, workers: int) -> int:
        """K, 1..workers, where the options give none: half of the workers."""
        return max(workers // 2, 1)
