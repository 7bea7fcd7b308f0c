"""FedBuff (Nguyen et al., AISTATS 2022): a buffer of K deltas makes a round, and nobody waits."""

from __future__ import annotations

from fanin.errors import ConfigurationError
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import FederationView, RoundPlan
from fanin.host.federated.policies.whole_numbers import whole_number


class FedBuff(FederatedPolicy):
    """The K-th delta closes a round; a delta weighs its samples / sqrt(1 + age).

    `quorum`: K, or None for half of the clients that are present.
    """

    name = "fedbuff"
    waits = False

    def __init__(self, quorum: int | None = None) -> None:
        if quorum is not None:
            whole_number("quorum", quorum, 1)
        self._quorum = quorum

    def check(self, clients: int) -> None:
        """Raise ConfigurationError for a K above the number of clients, which no round can come to."""
        if self._quorum is not None and self._quorum > clients:
            raise ConfigurationError(
                f"policy 'fedbuff' with quorum = {self._quorum} over {clients} clients: no round has so many deltas. "
                f"Remedy: a quorum of 1 to {clients}, or None for half of the clients"
            )

    def plan(self, view: FederationView) -> RoundPlan:
        """K, at most the clients that are present."""
        present = len(view.clients)
        return RoundPlan(quorum=min(self._quorum or max(present // 2, 1), present))

    def weight(self, samples: int, version: int, round: int) -> float:
        """The paper's discount by age, times the samples."""
        return float(samples / (1 + round - version) ** 0.5)
