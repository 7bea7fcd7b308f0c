"""What a worker does with a gradient that is late: `wait`, `skip` or `fold` (docs/staleness.md).

A gradient was computed on the weights of version a (the results applied by then) and is ready when its worker's next
base is b. Its *age* is b - a.

| policy | result b comes, no gradient is ready   | a gradient is ready whose age is beyond the bound     |
|--------|----------------------------------------|-------------------------------------------------------|
| wait   | nothing: the others wait at the bound; | cannot be: contributed                                |
|        | the gradient goes with the next one    |                                                       |
| skip   | base b is passed                       | dropped, and counted                                  |
| fold   | base b is passed                       | added to the next one                                 |
"""

from __future__ import annotations

import enum
from typing import Literal, get_args

from fanin.errors import ConfigurationError

Policy = Literal["wait", "skip", "fold"]
POLICIES: tuple[str, ...] = get_args(Policy)


class Fate(enum.Enum):
    """What becomes of a gradient that is ready."""

    CONTRIBUTE = enum.auto()
    DROP = enum.auto()
    FOLD = enum.auto()


def check_policy(policy: str) -> None:
    """ConfigurationError for an unknown policy."""
    if policy not in POLICIES:
        raise ConfigurationError(f"policy = {policy!r}; must be one of {', '.join(POLICIES)}")


def passes_for(policy: Policy) -> bool:
    """Whether a worker passes a base whose result came before its gradient."""
    return policy != "wait"


def fate(policy: Policy, age: int, bound: int) -> Fate:
    """What becomes of a gradient of this age."""
    assert age >= 0, f"age {age}"
    if policy == "wait" or age <= bound:
        return Fate.CONTRIBUTE
    return Fate.DROP if policy == "skip" else Fate.FOLD


def staleness_factor(age: int) -> float:
    """What a gradient is multiplied by in staleness-aware SGD (Zhang et al., 2016, equation 6): 1 / age, 1 if fresh."""
    return 1.0 / max(age, 1)
