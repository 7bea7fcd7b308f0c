"""`skip`: no worker waits, and gradients beyond the bound are dropped."""

from __future__ import annotations

from fanin.host.stale.policies.policy import Fate, RoundPolicy


class Skip(RoundPolicy):
    """Drops what is too old. A worker slower than the bound allows contributes nothing."""

    name = "skip"
    passes_over = True

    def fate(self, age: int, bound: int, *, over: bool) -> Fate:
        """Contribute up to the age `bound`, and drop older ones."""
        return Fate.CONTRIBUTE if age <= bound else Fate.DROP
