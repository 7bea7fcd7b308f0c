"""FedAvg (McMahan et al., AISTATS 2017): every round waits for every client that is present."""

from __future__ import annotations

from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import FederationView, RoundPlan


class FedAvg(FederatedPolicy):
    """All clients, weighted by their samples. The slowest sets the pace: the baseline of the others."""

    name = "fedavg"

    def plan(self, view: FederationView) -> RoundPlan:
        """A round of one delta from every client."""
        return RoundPlan(quorum=len(view.clients))
