"""`fold`: no worker waits, and gradients beyond the bound are added to the next one."""

from __future__ import annotations

from fanin.host.stale.policies.policy import Fate, RoundPolicy


class Fold(RoundPolicy):
    """Keeps what is too old for the next contribution. Nothing is lost; old gradients take effect late."""

    name = "fold"
    passes_over = True

    def fate(self, age: int, bound: int, *, over: bool) -> Fate:
        """Contribute up to the age `bound`, and fold older ones."""
        return Fate.CONTRIBUTE if age <= bound else Fate.FOLD
