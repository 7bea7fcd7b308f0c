"""Messages of a controller, in order, until its driver fetches them."""

from __future__ import annotations

from collections import Counter, deque

from fanin.protocol.control import Refused, Reply


class Outbox:
    """Messages, each with the peer that it is for; refusals are counted."""

    def __init__(self) -> None:
        self._messages: deque[tuple[bytes, Reply]] = deque()
        self.refused: Counter[str] = Counter()
        """Refusals so far by code."""

    def send(self, peer: bytes, reply: Reply) -> None:
        """Send `reply` to `peer`."""
        self._messages.append((peer, reply))

    def refuse(self, peer: bytes, refused: Refused) -> None:
        """Send a refusal to `peer` and count it."""
        self.count(refused.code)
        self.send(peer, refused)

    def count(self, code: str) -> None:
        """Somebody else was refused, or in other words."""
        self.refused[code] += 1

    def fetch(self) -> list[tuple[bytes, Reply]]:
        """All that has come together since the last call."""
        messages = list(self._messages)
        self._messages.clear()
        return messages
