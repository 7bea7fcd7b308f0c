"""The one interface of everything that moves datagrams between a machine and its peers: every transport and wrapper has
it.

Rules
-----
* A datagram is `(data, address)`. Addresses are small integers that the transport hands out, never used twice for two
  peers; a machine passes them around and never looks inside. A worker's transport has one peer, `SWITCH`.
* A transport may lose, repeat, reorder and truncate: the machines are made for that. It must not invent.
* `send` hardly blocks: what the operating system does not take at once, or within SEND_WAIT_S of the UDP transports, is
  lost (and counted by whoever resends it).
* One thread at a time calls `send` and `receive`; `wake` may be called from any thread; `close` by any, once the others
  have stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

Datagram = tuple[bytes, int]
"""The bytes of one packet, and the number of the peer that they come from or go to."""

SWITCH = 0
"""The only peer of a worker's transport."""

MAX_BATCH = 256
"""Most datagrams that one `receive` returns, so that a flood cannot keep the caller from its timers."""


class Transport(Protocol):
    """Interface of transports and of their wrappers; the rules of this file hold for them."""

    @property
    def trouble(self) -> str:
        """The operating system's last complaint, in words for a user; empty if none."""

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send what can be sent now."""

    def receive(self, timeout_s: float) -> list[Datagram]:
        """At most MAX_BATCH datagrams; waits up to `timeout_s` for the first. Empty on a timeout or a `wake`."""

    def wake(self) -> None:
        """Make a `receive` that waits, or else the next one, return at once."""

    def close(self) -> None:
        """Give up sockets and files. A second call does nothing."""
