"""Datagrams through queues of one process: for tests, and for a switch and workers that live in one interpreter."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from fanin.transports.transport import MAX_BATCH, Datagram

QUEUED_DATAGRAMS = 4096
"""Datagrams that one end holds unread; beyond it they are lost, as in a socket buffer."""


class MemoryTransport:
    """One end. `connect` joins two of them; each numbers its peers in that order, 0 upwards."""

    def __init__(self) -> None:
        self._inbox: deque[Datagram] = deque()
        self._peers: list[tuple[MemoryTransport, int]] = []
        self._changed = threading.Condition()
        self._woken = False
        self._closed = False

    def connect(self, peer: MemoryTransport) -> None:
        """Join this end and `peer`: each can now send to the other."""
        mine, theirs = len(self._peers), len(peer._peers)
        self._peers.append((peer, theirs))
        peer._peers.append((self, mine))

    @property
    def trouble(self) -> str:
        """Nothing: memory does not complain."""
        return ""

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Put each into its peer's inbox."""
        for data, address in datagrams:
            peer, me = self._peers[address]
            peer._deliver(bytes(data), me)

    def receive(self, timeout_s: float) -> list[Datagram]:
        """At most MAX_BATCH datagrams."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._woken, timeout_s)
            self._woken = False
            return [self._inbox.popleft() for _ in range(min(len(self._inbox), MAX_BATCH))]

    def wake(self) -> None:
        """End a waiting `receive`."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Drop what is queued, and what comes from now on."""
        with self._changed:
            self._closed = True
            self._inbox.clear()

    def _deliver(self, data: bytes, source: int) -> None:
        with self._changed:
            if not self._closed and len(self._inbox) < QUEUED_DATAGRAMS:
                self._inbox.append((data, source))
                self._changed.notify_all()
