"""The verbs of a machine: all that a loop, a test or a simulation needs to drive one."""

from __future__ import annotations

from typing import Protocol, TypeVar

Event = TypeVar("Event", covariant=True)


class Machine(Protocol[Event]):
    """The five verbs. Time is in seconds, of any clock that does not go back."""

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Take in one datagram."""

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        """Everything that is to be sent now."""

    def next_timer(self) -> float | None:
        """When to call `handle_timer`; None: not before something else happens."""

    def handle_timer(self, now: float) -> None:
        """Do what is due."""

    def next_event(self) -> Event | None:
        """The next thing to report, or None."""
