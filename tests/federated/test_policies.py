"""Federated policies: plans and weights from views, without a clock, a switch or a client."""

from __future__ import annotations

import math

import pytest

from fanin.errors import ConfigurationError
from fanin.host.federated.policies import POLICIES, make_policy
from fanin.host.federated.policies.adaptive import ROUNDS_PER_CHOICE, Adaptive
from fanin.host.federated.policies.fed_buff import FedBuff
from fanin.host.federated.policies.fed_les_scan import FedLesScan, in_backoff, moving_average
from fanin.host.federated.policies.fed_sa import FedSA
from fanin.host.federated.policies.layer_wise import LayerWise
from fanin.host.federated.policies.view import ClientRecord, FederationView, RoundPlan


def client(number: int, seconds: float | None = 1.0, **given: object) -> ClientRecord:
    measured = {"seconds": () if seconds is None else (seconds,), "turns": 0 if seconds is None else 1}
    return ClientRecord(**{"client": number, "samples": 10, **measured, **given})  # type: ignore[arg-type]


def view(*clients: ClientRecord, round: int = 0, rounds: int = 100, now_s: float = 0.0) -> FederationView:
    return FederationView(round=round, rounds=rounds, now_s=now_s, clients=clients)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_plans_a_round_that_can_close_and_weighs_old_deltas_no_more(name: str) -> None:
    policy = make_policy(name)
    for known in (None, 1.0):
        plan = policy.plan(view(*(client(number, known and known * (1 + number)) for number in range(6))))
        assert 1 <= plan.quorum <= len(plan.clients or range(6))
    weights = [policy.weight(10, version, 8) for version in (8, 7, 0)]
    assert weights[0] >= weights[1] >= weights[2] > 0


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(ConfigurationError, match="fedavg, fedbuff"):
        make_policy("fedprox")


def test_fedbuff_divides_by_the_root_of_one_plus_age() -> None:
    assert FedBuff().weight(12, 5, 8) == 6.0
    assert FedBuff(quorum=3).plan(view(client(0), client(1))).quorum == 2


def test_fedsa_takes_the_smallest_quorum_within_its_bound_and_turns_up_the_slow() -> None:
    clients = [client(number, seconds) for number, seconds in enumerate((1, 1, 1, 1, 4))]
    plan = FedSA(bound=6).plan(view(*clients, round=5))
    assert plan.quorum == 3  # 4 s at 4.25 deltas a second are 17 deltas: within 6 rounds of 3, not of 2
    assert plan.rates[4] == 2.0 > plan.rates[0] == pytest.approx(0.85)


def test_the_adaptive_quorum_turns_when_loss_falls_more_slowly() -> None:
    policy, quorums = Adaptive(), []
    for step, loss in enumerate((1.0, 0.5, 0.45, 0.2)):
        clients = [client(number, loss=loss) for number in range(8)]
        now = view(*clients, round=step * ROUNDS_PER_CHOICE, now_s=float(step))
        quorums.append(policy.plan(now).quorum)
    assert quorums == [4, 3, 4, 5]


def test_fedlesscan_takes_rookies_first_and_those_in_backoff_last() -> None:
    rookie, missed = client(5, None), client(0, 1.0, missed=(9,), missed_in_a_row=1)
    plan = FedLesScan(fraction=0.5).plan(view(missed, *(client(number) for number in (1, 2, 3, 4)), rookie, round=10))
    assert plan.clients is not None
    assert 5 in plan.clients
    assert 0 not in plan.clients
    assert plan.deadline_s is None, "nothing is known of the rookie's speed"
    assert FedLesScan(fraction=1.0).plan(view(missed, round=10)).clients == frozenset({0})


def test_fedlesscan_takes_clients_of_like_speed_and_moves_on_to_slower_ones() -> None:
    clients = [client(number, seconds) for number, seconds in enumerate((1.0, 1.1, 1.05, 9.0, 9.1, 9.05))]
    early = FedLesScan().plan(view(*clients, round=0, rounds=10))
    late = FedLesScan().plan(view(*clients, round=9, rounds=10))
    assert (early.clients, late.clients) == (frozenset({0, 1, 2}), frozenset({3, 4, 5}))
    assert early.deadline_s == pytest.approx(1.65)


def test_backoff_doubles_with_each_round_missed_in_a_row() -> None:
    once, thrice = client(0, missed=(9,), missed_in_a_row=1), client(0, missed=(7, 8, 9), missed_in_a_row=3)
    assert [in_backoff(once, round) for round in (10, 11)] == [True, False]
    assert [in_backoff(thrice, round) for round in (13, 14)] == [True, False]
    assert moving_average([1.0, 3.0], 0.5) == 2.0


def test_layer_wise_names_deep_layers_and_discounts_by_half_of_e() -> None:
    names = ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert LayerWise().deep(names) == {"b.weight", "b.bias"}
    assert LayerWise().weight(4, 1, 3) == pytest.approx(4 * (math.e / 2) ** -2)
    with pytest.raises(ConfigurationError, match="the model has"):
        LayerWise(deep_layers=["c"]).deep(names)
    with pytest.raises(ConfigurationError, match="some must travel"):
        LayerWise(deep_layers=names).deep(names)


@pytest.mark.parametrize("quorum", [0, -1, 2.5, float("nan"), True])
def test_a_quorum_is_a_whole_number_of_deltas(quorum: float) -> None:
    with pytest.raises(ConfigurationError, match=r"quorum = .*; must be a whole number"):
        FedBuff(quorum=quorum)  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [0, float("nan"), float("inf")])
def test_a_bound_is_at_least_one_round(bound: float) -> None:
    with pytest.raises(ConfigurationError, match="bound = "):
        FedSA(bound=bound)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"quorum": 0}, {"quorum": 1, "clients": frozenset()}, {"quorum": 1, "deadline_s": 0}]
)
def test_a_plan_that_never_closes_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        RoundPlan(**wrong)  # type: ignore[arg-type]
