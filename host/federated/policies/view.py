"""Facts that a federated policy decides by, and its decision. Plain values: no clock, no socket, no randomness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fanin.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """Measurements of one client that is present now."""

    client: int
    """Rank of the client in its group."""
    samples: int
    """Number of samples from which the client computes its deltas."""
    seconds: tuple[float, ...] = ()
    """Durations of its last turns, oldest first, as the client measured them."""
    turns: int = 0
    """Number of deltas that the client has handed in."""
    missed: tuple[int, ...] = ()
    """Rounds that selected this client and closed without its delta, oldest first."""
    missed_in_a_row: int = 0
    """Rounds of `missed` since its last delta."""
    loss: float | None = None
    """Training loss of its last turn."""

    @property
    def rookie(self) -> bool:
        """Whether the client has neither handed in a delta nor missed a round."""
        return not self.turns and not self.missed

    @property
    def last_s(self) -> float:
        """Duration of its last turn; 0 before the first."""
        return self.seconds[-1] if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationView:
    """State of the federation when a round begins."""

    round: int
    """Number of the round that begins."""
    rounds: int
    """Rounds of the whole training."""
    now_s: float
    """Seconds since the training began."""
    clients: tuple[ClientRecord, ...]
    """The clients that are present, by rank; at least one."""

    @property
    def loss(self) -> float | None:
        """Mean of the clients' last training losses; None before the first."""
        known = [each.loss for each in self.clients if each.loss is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """A policy's decision on the round that begins."""

    quorum: int
    """Deltas that close the round, 1..clients."""
    clients: frozenset[int] | None = None
    """Clients that may begin a turn; None: all. The others wait. A turn that is under way goes on."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Factor of a client's local learning rate; 1 where none is given."""
    deadline_s: float | None = None
    """Seconds after which the round closes with the deltas that have come, one at least; None: never."""

    def __post_init__(self) -> None:
        if self.quorum < 1 or (self.clients is not None and not self.clients):
            raise ConfigurationError(
                f"a round of {self.quorum} deltas by {self.clients}: it would never close", "the quorum"
            )
        if self.deadline_s is not None and self.deadline_s <= 0:
            raise ConfigurationError(f"deadline_s = {self.deadline_s}; must be positive", "deadline_s")
