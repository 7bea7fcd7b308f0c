"""FedSA (Ma et al., IEEE JSAC 2021): K from measured speeds and a staleness bound, rates by participation.

The paper chooses the K of least completion time. Its formula could not be read; K here is the smallest with which the
slowest client's deltas stay within the bound (fanin/host/stale/quorum.py), which is the shortest round allowed.
"""

from __future__ import annotations

from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import FederationView, RoundPlan
from fanin.host.stale.quorum import SemiAsynchronousQuorum

MIN_RATE, MAX_RATE = 0.5, 2.0
"""Bounds of the factor of a client's learning rate: ten times the rate would diverge."""


class FedSA(FederatedPolicy):
    """`bound`: largest age, in rounds, that the slowest client's deltas may have."""

    name = "fedsa"

    def __init__(self, bound: int = 10) -> None:
        self._chooser = SemiAsynchronousQuorum(bound=bound)

    def plan(self, view: FederationView) -> RoundPlan:
        """Set K and rates by measured durations; until all are known, K is all clients in round 0, and half later."""
        if any(not each.seconds for each in view.clients):
            return RoundPlan(quorum=len(view.clients) if view.round == 0 else max(len(view.clients) // 2, 1))
        turns_s = {each.client: sum(each.seconds) / len(each.seconds) for each in view.clients}
        mean_share = sum(1 / each for each in turns_s.values()) / len(turns_s)
        rates = {client: min(max(mean_share * each, MIN_RATE), MAX_RATE) for client, each in turns_s.items()}
        return RoundPlan(quorum=self._chooser.choose(list(turns_s.values())), rates=rates)
