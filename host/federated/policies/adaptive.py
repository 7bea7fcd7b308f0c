"""Adaptive asynchronous federated learning (Liu et al., INFOCOM 2021), with hill climbing in place of its agent.

The paper lets a learned agent choose the fraction of clients that makes a round. Our stand-in climbs on the fall of
log(loss) per second (fanin/host/stale/quorum.py), smoothed over a few rounds.
"""

from __future__ import annotations

from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import FederationView, RoundPlan
from fanin.host.stale.quorum import AdaptiveQuorum

ROUNDS_PER_CHOICE = 3
"""Rounds under one K before its gain is judged: one round's loss is noise."""


class Adaptive(FederatedPolicy):
    """The K-th delta closes a round; K starts at half of the clients and moves by one."""

    name = "adaptive"

    def __init__(self) -> None:
        self._climber: AdaptiveQuorum | None = None
        self._judged: tuple[int, float, float] | None = None
        """Round, seconds and loss at the last choice."""

    def plan(self, view: FederationView) -> RoundPlan:
        """Set K, which moves by one every few rounds: on where the loss fell faster than before, else back."""
        present = len(view.clients)
        if self._climber is None:
            self._climber = AdaptiveQuorum(workers=present, quorum=max(present // 2, 1))
        self._climber.workers = present
        self._climber.quorum = min(self._climber.quorum, present)
        if view.loss is not None:
            self._judge(self._climber, view, view.loss)
        return RoundPlan(quorum=self._climber.quorum)

    def _judge(self, climber: AdaptiveQuorum, view: FederationView, loss: float) -> None:
        if self._judged is not None:
            round, at_s, before = self._judged
            if view.round < round + ROUNDS_PER_CHOICE:
                return
            climber.observe(view.now_s - at_s, before, loss)
        self._judged = view.round, view.now_s, loss

    def weight(self, samples: int, version: int, round: int) -> float:
        """Discounted by age, as FedBuff's: the paper leaves the weight to the server."""
        return float(samples / (1 + round - version) ** 0.5)
