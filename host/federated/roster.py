"""The roster: rank 0's measurements of each client, by which policies decide. No clock: times are arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fanin.host.federated.policies.view import ClientRecord, FederationView

HISTORY = 32
"""Durations and missed rounds that are kept of each client."""


@dataclass(slots=True)
class _Entry:
    samples: int
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    missed: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    missed_in_a_row: int = 0
    turns: int = 0
    loss: float | None = None


class Roster:
    """Clients by rank. A client that is gone keeps its record until it comes back."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def enroll(self, client: int, samples: int) -> None:
        """Add a client, or update its number of samples."""
        self._entries.setdefault(client, _Entry(samples)).samples = samples

    def handed_in(self, client: int, turns: int, seconds: float, loss: float | None) -> None:
        """Note that a client has handed in its `turns`-th delta, `seconds` after the turn began."""
        entry = self._entries[client]
        entry.turns, entry.loss, entry.missed_in_a_row = turns, loss, 0
        entry.seconds.append(seconds)

    def missed(self, client: int, round: int) -> None:
        """Note that a round closed without a client that was selected for it."""
        entry = self._entries[client]
        entry.missed.append(round)
        entry.missed_in_a_row += 1

    def turns(self, client: int) -> int:
        """Deltas that a client has handed in; 0 for one that is not enrolled."""
        return self._entries[client].turns if client in self._entries else 0

    def view(self, present: Iterable[int], *, round: int, rounds: int, now_s: float) -> FederationView:
        """State for a policy, of the enrolled clients among `present`."""
        return FederationView(
            round=round,
            rounds=rounds,
            now_s=now_s,
            clients=tuple(self._record(client) for client in sorted(present) if client in self._entries),
        )

    def _record(self, client: int) -> ClientRecord:
        entry = self._entries[client]
        return ClientRecord(
            client=client,
            samples=entry.samples,
            seconds=tuple(entry.seconds),
            turns=entry.turns,
            missed=tuple(entry.missed),
            missed_in_a_row=entry.missed_in_a_row,
            loss=entry.loss,
        )
