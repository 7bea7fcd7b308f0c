"""Steering of rounds: when to ask the policy for a plan, when to close a round early, and who has missed one. No clock.

Rank 0 has a `Steering`. It is told of deltas, of closed rounds and of clients that come and go, and has the plan in
force and the quorum to set at the switch.
"""

from __future__ import annotations

from fanin.errors import ConfigurationError
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import RoundPlan
from fanin.host.federated.roster import Roster

IDLE_LOOKS = 100
"""Calls of `observe` that find a round with every delta it can get before it is closed: the deltas may still travel.

At 50 calls per second (federated_steering.py) that is 2 s. After 2 calls a loaded machine closed rounds of FedAvg
without a delta that was on its way.
"""


class Steering:
    """The plan of the round that is open."""

    def __init__(self, policy: FederatedPolicy, rounds: int, samples: dict[int, int]) -> None:
        """`samples` by client, of those that are present at first: the first plan follows from these alone."""
        self.roster = Roster()
        for client, count in samples.items():
            self.roster.enroll(client, count)
        self._policy = policy
        self._rounds = rounds
        self._present = frozenset(samples)
        self._round = 0
        self._began_s = 0.0
        self._arrived: set[int] = set()
        """Clients whose deltas came since the round began."""
        self._idle_looks = 0
        self._closes_early = False
        self.plan = self._planned(0.0)

    @property
    def quorum(self) -> int:
        """K for the switch: the plan's, or 1 to close the round with what it holds.

        1 and not the number of deltas that rank 0 has heard of: one of these may be in the round before.
        """
        return 1 if self._closes_early else self.plan.quorum

    def handed_in(self, client: int, turns: int, seconds: float, loss: float | None) -> None:
        """Note that a client has handed in its `turns`-th delta, `seconds` after the turn began."""
        self.roster.handed_in(client, turns, seconds, loss)
        self._arrived.add(client)

    def observe(self, round: int, present: frozenset[int], now_s: float) -> bool:
        """Take in time, open round and present clients; return whether plan or quorum may have changed."""
        before = self.quorum
        if round != self._round:
            for client in (self.plan.clients or frozenset()) & present - self._arrived:
                self.roster.missed(client, self._round)
            self._round, self._began_s, self._present = round, now_s, present
            self._arrived, self._idle_looks, self._closes_early = set(), 0, False
            self.plan = self._planned(now_s)
            return True
        if present != self._present:
            self._present = present
            self.plan = self._planned(now_s)
            return True
        deadline_s = self.plan.deadline_s
        late = deadline_s is not None and now_s >= self._began_s + deadline_s
        selected = present if self.plan.clients is None else self.plan.clients & present
        self._idle_looks = self._idle_looks + 1 if selected <= self._arrived else 0
        if (late and self._arrived) or self._idle_looks >= IDLE_LOOKS:
            self._closes_early = True
        return self.quorum != before

    def _planned(self, now_s: float) -> RoundPlan:
        view = self.roster.view(self._present, round=self._round, rounds=self._rounds, now_s=now_s)
        plan = self._policy.plan(view)
        if plan.quorum > len(view.clients):
            raise ConfigurationError(
                f"policy {self._policy.name!r} wants {plan.quorum} deltas of {len(view.clients)} clients in round "
                f"{self._round}: it would never close"
                ". Remedy: correct the policy's quorum, or let more clients take part"
            )
        return plan
