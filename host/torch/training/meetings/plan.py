"""The facts of local steps that all ranks must share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from fanin.errors import ConfigurationError
from fanin.host.torch.training.meetings.outer import Outer
from fanin.host.torch.training.meetings.period import Period


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of `LocalSteps` but the model; the same on every rank."""

    period: Period
    outer: Outer
    fragments: int
    overlap: int
    mix: float | Literal["keep"]
    codec: str
    quorum: int | None
    staleness: int

    def __post_init__(self) -> None:
        if not isinstance(self.period, Period):
            raise ConfigurationError(
                f"period = {self.period!r} is no number of steps and no rule. Remedy: 16, Every(16) or Quadratic(...)"
            )
        shortest = self.period.shortest
        if not 1 <= self.fragments <= shortest:
            raise ConfigurationError(
                f"fragments = {self.fragments}; must be in 1..{shortest}, the shortest period of {self.period}, since "
                "each fragment meets once in a period",
                "fragments",
            )
        if not 0 <= self.overlap <= shortest:
            raise ConfigurationError(
                f"overlap = {self.overlap}; must be in 0..{shortest}, the shortest period of {self.period}, since a "
                "fragment's meeting is over before its next one",
                "overlap",
            )
        legal = self.mix == "keep" if isinstance(self.mix, str) else 0 <= self.mix < 1
        if not legal or (self.mix and not self.overlap):
            raise ConfigurationError(
                f"mix = {self.mix!r}; must be 'keep', or in 0..1 and below 1, and 0 without overlap, where replicas "
                "are alike after every meeting",
                "mix",
            )
        if self.quorum is not None:
            self._check_quorum()

    def _check_quorum(self) -> None:
        if self.quorum is not None and (self.quorum < 1 or not 1 <= self.staleness <= 1024):
            raise ConfigurationError(
                f"quorum = {self.quorum}, staleness = {self.staleness}; at least 1 worker, and 1..1024 meetings",
                "quorum and staleness",
            )
        if self.fragments > 1 or self.overlap or self.outer.gap != 1.0 or not self.codec.startswith("lanes:"):
            raise ConfigurationError(
                "a quorum goes with one fragment, no overlap, a gap of 1 and lanes as codec: its meetings are rounds "
                "of a stale job, which has one scale and one tensor. Remedy: leave out one of the two"
            )

    def facts(self) -> dict[str, str]:
        """All settings as text, by name."""
        return {name: str(getattr(self, name)) for name in asdict(self)}


ALIKE = ("local steps", "the same model, optimizer and LocalSteps")
"""Words for ranks whose facts differ: what they would take, and what they need."""
