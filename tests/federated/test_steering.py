"""Steering federated rounds: plans, deadlines, and clients that come, go and miss rounds. In given time."""

from __future__ import annotations

import pytest

from fanin.errors import ConfigurationError
from fanin.host.federated.policies.fed_avg import FedAvg
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import FederationView, RoundPlan
from fanin.host.federated.steering import IDLE_LOOKS, Steering

EVERYONE = frozenset(range(4))


class Half(FederatedPolicy):
    """The first half of the clients, within 10 seconds."""

    name = "half"

    def plan(self, view: FederationView) -> RoundPlan:
        chosen = frozenset(each.client for each in view.clients[: len(view.clients) // 2])
        return RoundPlan(quorum=len(chosen), clients=chosen, deadline_s=10.0)


class Greedy(FederatedPolicy):
    """More deltas than there are clients."""

    name = "greedy"

    def plan(self, view: FederationView) -> RoundPlan:
        return RoundPlan(quorum=len(view.clients) + 1)


def steering(policy: FederatedPolicy) -> Steering:
    return Steering(policy, 10, dict.fromkeys(EVERYONE, 5))


def test_a_deadline_closes_the_round_with_what_has_come() -> None:
    steers = steering(Half())
    assert (steers.quorum, steers.observe(0, EVERYONE, 20.0)) == (2, False), "nothing has come"
    steers.handed_in(0, 1, 2.0, None)
    assert (steers.observe(0, EVERYONE, 20.0), steers.quorum) == (True, 1)
    assert (steers.observe(1, EVERYONE, 21.0), steers.quorum) == (True, 2)


def test_a_selected_client_without_a_delta_has_missed_the_round() -> None:
    steers = steering(Half())
    steers.handed_in(0, 1, 2.0, None)
    steers.observe(1, EVERYONE, 3.0)
    records = steers.roster.view(EVERYONE, round=1, rounds=10, now_s=3.0).clients
    assert [record.missed for record in records] == [(), (0,), (), ()]
    steers.handed_in(1, 1, 5.0, 0.5)
    assert steers.roster.view([1], round=1, rounds=10, now_s=5.0).clients[0].missed_in_a_row == 0


def test_a_round_that_has_every_delta_it_can_get_does_not_wait_for_more() -> None:
    steers = steering(Half())
    for client in (0, 1):
        steers.handed_in(client, 1, 1.0, None)
    looks = [steers.observe(0, EVERYONE, 2.0) for _ in range(IDLE_LOOKS)]
    assert looks == [False] * (IDLE_LOOKS - 1) + [True]
    assert steers.quorum == 1, "one of the two deltas may be in the round before"


def test_who_goes_is_not_waited_for_and_who_comes_is_planned_with() -> None:
    steers = steering(FedAvg())
    assert steers.observe(0, EVERYONE - {3}, 1.0)
    assert steers.quorum == 3
    steers.roster.enroll(9, 7)
    assert steers.observe(0, EVERYONE | {9}, 2.0)
    assert steers.quorum == 5


def test_a_policy_that_wants_more_deltas_than_clients_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'greedy' wants 5 deltas of 4"):
        steering(Greedy())
