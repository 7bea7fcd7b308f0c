"""Bounds of a number: metadata beside a field, from which checks, command lines and their help are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Closed bounds of a number, or of each number of a tuple; None: no bound on that side."""

    least: float | None = None
    most: float | None = None

    def __contains__(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        return f"at most {self.most}" if self.least is None else f"in {self.least}..{self.most}"


SEED = Bounds(0, 2**63 - 1)
"""Seeds that Python's `random`, numpy and torch all take."""
