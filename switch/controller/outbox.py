"""Messages of a controller, in order, until its driver fetches them."""

from __future__ import annotations

from collections import Counter, deque

from fanin.protocol.control import Refused, Reply


class Outbox:
    """Queue of messages, each with the peer that it is for, and counts of refusals."""

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
        """Count a refusal that was not sent by `refuse`."""
        self.refused[code] += 1

    def fetch(self) -> list[tuple[bytes, Reply]]:
        """Take all messages queued since the last call, in order."""
        messages = list(self._messages)
        self._messages.clear()
        return messages
