"""The federated policies by name (docs/federated.md).

To add one to this table: a module here with a subclass of `FederatedPolicy`, and its class in `POLICIES`. A user's own
needs no entry: `Federated` takes any object of that class.
"""

from __future__ import annotations

from fanin.errors import ConfigurationError
from fanin.host.federated.policies.adaptive import Adaptive
from fanin.host.federated.policies.fed_avg import FedAvg
from fanin.host.federated.policies.fed_buff import FedBuff
from fanin.host.federated.policies.fed_les_scan import FedLesScan
from fanin.host.federated.policies.fed_sa import FedSA
from fanin.host.federated.policies.layer_wise import LayerWise
from fanin.host.federated.policies.policy import FederatedPolicy

POLICIES: dict[str, type[FederatedPolicy]] = {
    each.name: each for each in (FedAvg, FedBuff, FedSA, Adaptive, FedLesScan, LayerWise)
}
"""Policy classes by name; each can be made without arguments."""


def make_policy(name: str) -> FederatedPolicy:
    """A policy with its usual settings; ConfigurationError for an unknown name."""
    if name not in POLICIES:
        raise ConfigurationError(f"policy = {name!r}; must be one of {', '.join(POLICIES)}", "policy")
    return POLICIES[name]()
