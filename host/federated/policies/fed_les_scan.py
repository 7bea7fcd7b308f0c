"""FedLesScan (Elzohairy et al., IEEE BigData 2022): rounds of clients of like speed; stragglers are selected last.

Clients that nothing is known of go first. The others are clustered by a moving average of their durations and one of
the rounds that they missed; clusters are taken in order of speed, from a start that moves with the training's progress.
A client that missed a round is in back-off for 1, 2, 4, ... rounds, and selected only when nobody else is left.
The weight of a late delta is (t_k + 1) / (t + 1) times its samples, divided by the sum of these weights; the released
aggregator divides by the unweighted sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fanin.errors import ConfigurationError
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import ClientRecord, FederationView, RoundPlan

TIME_ALPHA, MISSED_ALPHA = 0.5, 0.8
"""Weight of the newest value in the moving averages of durations and of missed rounds."""
EPSILONS = tuple(0.01 + 0.1 * step for step in range(20))
"""Radii of DBSCAN that are tried: from 0.01 to 2 in steps of 0.1."""
MIN_SAMPLES = 2
DEADLINE_FACTOR = 1.5
"""A round waits for its slowest client's usual duration times this."""
MAX_BACKOFF_EXPONENT = 10


class FedLesScan(FederatedPolicy):
    """`fraction` of the clients makes a round, 0..1. Raises ConfigurationError without scikit-learn."""

    name = "fedlesscan"

    def __init__(self, fraction: float = 0.5) -> None:
        if not 0 < fraction <= 1:
            raise ConfigurationError(f"fraction = {fraction}; must be in (0, 1]", "fraction")
        try:
            import sklearn.cluster  # noqa: F401
        except ImportError:
            raise ConfigurationError(
                "FedLesScan clusters with scikit-learn. Remedy: pip install 'fanin[federated]'"
            ) from None
        self._fraction = fraction

    def plan(self, view: FederationView) -> RoundPlan:
        """Rookies, then clusters from the start cluster on, then those in back-off, until the round is full."""
        wanted = max(round(self._fraction * len(view.clients)), 1)
        backing_off = {each.client for each in view.clients if in_backoff(each, view.round)}
        rookies = [each for each in view.clients if each.rookie]
        known = [each for each in view.clients if not each.rookie and each.client not in backing_off]
        last = sorted((each for each in view.clients if each.client in backing_off), key=lambda each: each.turns)
        chosen = [*rookies, *in_order(known, view), *last][:wanted]
        slowest_s = max(duration_s(each) for each in chosen)
        return RoundPlan(
            quorum=len(chosen),
            clients=frozenset(each.client for each in chosen),
            deadline_s=DEADLINE_FACTOR * slowest_s if slowest_s and not any(each.rookie for each in chosen) else None,
        )

    def weight(self, samples: int, version: int, round: int) -> float:
        """The paper's discount of a late delta, times the samples."""
        return samples * (version + 1) / (round + 1)


def moving_average(values: Sequence[float], alpha: float) -> float:
    """Exponential moving average, oldest first; 0 of none."""
    average = values[0] if values else 0.0
    for value in values[1:]:
        average = alpha * value + (1 - alpha) * average
    return average


def duration_s(client: ClientRecord) -> float:
    """Usual duration of a client's turn."""
    return moving_average(client.seconds, TIME_ALPHA)


def penalty(client: ClientRecord, round: int) -> float:
    """How much and how lately a client missed rounds, 0..1."""
    return moving_average([(missed + 1) / max(round, 1) for missed in client.missed], MISSED_ALPHA)


def in_backoff(client: ClientRecord, round: int) -> bool:
    """Whether a client missed rounds so lately that others go first."""
    if not client.missed_in_a_row:
        return False
    return round <= client.missed[-1] + (1 << min(client.missed_in_a_row - 1, MAX_BACKOFF_EXPONENT))


def in_order(clients: Sequence[ClientRecord], view: FederationView) -> list[ClientRecord]:
    """Clients cluster by cluster, those that ran least first within each."""
    if not clients:
        return []
    features = np.array([[duration_s(each), penalty(each, view.round)] for each in clients])
    longest_s = float(features[:, 0].max())
    clusters = defaultdict(list)
    for client, label in zip(clients, labels_of(features), strict=True):
        clusters[label].append(client)

    def cost_s(cluster: list[ClientRecord]) -> float:
        return sum(duration_s(each) + penalty(each, view.round) * longest_s for each in cluster) / len(cluster)

    ordered = sorted(clusters.values(), key=cost_s)
    start = min(view.round * len(ordered) // max(view.rounds, 1), len(ordered) - 1)
    by_turns = [sorted(each, key=lambda client: (client.turns, client.client)) for each in ordered]
    return [client for each in [*by_turns[start:], *by_turns[:start]] for client in each]


def labels_of(features: np.ndarray) -> list[int]:
    """Cluster of each row, shape (clients, 2): DBSCAN with the radius of the highest Calinski-Harabasz score.

    Features are standardized. Rows near no other are one cluster, as scikit-learn labels them (-1).
    """
    from sklearn.cluster import DBSCAN
    from sklearn.metrics import calinski_harabasz_score

    spread = features.std(axis=0)
    standard = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    best, labels = -np.inf, [0] * len(features)
    for epsilon in EPSILONS:
        found = DBSCAN(eps=epsilon, min_samples=MIN_SAMPLES).fit_predict(standard)
        if 2 <= len(set(found)) < len(found):
            score = calinski_harabasz_score(standard, found)
            if score > best:
                best, labels = score, [int(each) for each in found]
    return labels
