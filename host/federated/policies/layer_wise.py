"""Layer-wise asynchronous updates with temporally weighted aggregation (Chen, Sun and Jin, IEEE TNNLS 2020).

Shallow layers, which are small and learn what all clients share, travel every round; deep ones, which hold most of the
bytes, every few rounds. A delta weighs n_k / n (e / 2)^-age, divided by the sum of the weights: a deliberate
correction, since the paper's weights do not add up to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fanin.errors import ConfigurationError
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.policies.view import FederationView, RoundPlan
from fanin.host.federated.policies.whole_numbers import whole_number


class LayerWise(FederatedPolicy):
    """`deep_every`: rounds from one that carries deep layers to the next. `deep_layers`: names of the parameters, or
    None for the last half of the model's parameters. `fraction` of the clients makes a round.
    """

    name = "layerwise"

    def __init__(self, *, deep_every: int = 3, deep_layers: Sequence[str] | None = None, fraction: float = 1.0) -> None:
        whole_number("deep_every", deep_every, 1)
        if not 0 < fraction <= 1:
            raise ConfigurationError(f"fraction = {fraction}; must be in (0, 1]", "fraction")
        self.deep_every = deep_every
        self._deep = deep_layers
        self._fraction = fraction

    def plan(self, view: FederationView) -> RoundPlan:
        """Set K to that fraction of the clients that are present."""
        return RoundPlan(quorum=max(round(self._fraction * len(view.clients)), 1))

    def weight(self, samples: int, version: int, round: int) -> float:
        """The paper's (e / 2)^-age, times the samples."""
        return float(samples * (math.e / 2) ** (version - round))

    def deep(self, names: Sequence[str]) -> frozenset[str]:
        """Return the deep parameters; ConfigurationError if the model lacks one, or if no parameter is left shallow."""
        deep = frozenset(names[len(names) // 2 :] if self._deep is None else self._deep)
        if unknown := deep - set(names):
            raise ConfigurationError(
                f"deep layers {sorted(unknown)}: the model has {', '.join(names)}. Remedy: name layers of the model"
            )
        if len(deep) == len(names):
            raise ConfigurationError(
                "all parameters are deep layers: some must travel every round"
                ". Remedy: leave some layers out of the deep ones"
            )
        return deep
