"""The table of round policies: what a worker does with a gradient that is late (docs/staleness.md, *Policies*).

To add one: a module here with a subclass of `RoundPolicy` (policy.py says what it decides), its class in `POLICIES`.
Nothing else has to know of it: rounds, default quorums, the options' check and the simulator's draws ask the table.
"""

from __future__ import annotations

from fanin.errors import ConfigurationError
from fanin.host.stale.policies.fold import Fold
from fanin.host.stale.policies.policy import RoundPolicy
from fanin.host.stale.policies.skip import Skip
from fanin.host.stale.policies.wait import Wait

POLICIES: dict[str, type[RoundPolicy]] = {each.name: each for each in (Wait, Skip, Fold)}
"""Policy classes by name, in the order in which the simulator draws them."""


def policy_class(name: str) -> type[RoundPolicy]:
    """The policy of that name; ConfigurationError where there is none."""
    if name not in POLICIES:
        raise ConfigurationError(f"policy = {name!r}; must be one of {', '.join(POLICIES)}")
    return POLICIES[name]


def make_policy(name: str) -> RoundPolicy:
    """A policy object for one worker; ConfigurationError for an unknown name."""
    return policy_class(name)()
