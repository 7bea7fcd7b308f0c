"""The table of round policies: what a worker does with a gradient that is late (docs/staleness.md, *Policies*).

To add one: a module here with a subclass of `RoundPolicy` (policy.py says what it decides), its class in `POLICIES`.
Nothing else has to know of it: rounds, default quorums, the options' check and the simulator's draws ask the table.
Other packages register theirs by entry points (fanin/plugins.py); the simulator draws only those of the table.
"""

from __future__ import annotations

from typing import cast

from fanin import plugins
from fanin.errors import ConfigurationError
from fanin.host.stale.policies.fold import Fold
from fanin.host.stale.policies.policy import RoundPolicy
from fanin.host.stale.policies.skip import Skip
from fanin.host.stale.policies.wait import Wait

GROUP = "fanin.policies"
POLICIES: dict[str, type[RoundPolicy]] = {each.name: each for each in (Wait, Skip, Fold)}
"""Policy classes by name, in the order in which the simulator draws them."""


def policy_class(name: str) -> type[RoundPolicy]:
    """The policy of that name, here or of another package; ConfigurationError where there is none."""
    if name in POLICIES:
        return POLICIES[name]
    found = plugins.load(GROUP, name, lambda each: isinstance(each, type) and issubclass(each, RoundPolicy))
    if found is None:
        raise ConfigurationError(
            f"policy = {name!r}; must be one of {', '.join([*POLICIES, *plugins.names(GROUP)])}", "policy"
        )
    return cast("type[RoundPolicy]", found)


def make_policy(name: str) -> RoundPolicy:
    """A policy object for one worker; ConfigurationError for an unknown name."""
    kind = policy_class(name)
    with plugins.called(GROUP, name):
        return kind()
