"""Watches whether long packets still pass where short ones do: a member's path may become narrower while a job runs.

Twin of native/machine/path_watch.hpp. The path's MTU falls (a tunnel comes up, a route moves, a port is given another
MTU) and nobody says so: bridges and many firewalls drop what is too long without a word (RFC 2923, section 2.1). Then
heartbeats pass, so that everybody lives, and no data does. A packet layer finds that out by packets of its own, whose
loss means nothing else (RFC 8899, sections 3 and 4.3); here these are HELLOs, since a switch answers each in its
length.

The rules are R-MEMBER-10 and R-MEMBER-11 in docs/protocol.md.
"""

from __future__ import annotations

from fanin.protocol.job import HEARTBEATS_TO_SILENCE
from fanin.protocol.wire import WORD_BYTES, datagram_bytes

HEARTBEAT_BYTES = datagram_bytes(0, 2)
"""Length of a heartbeat: it passes, or the member is silent."""


class PathWatch:
    """The long HELLOs of one member. Times are in seconds, lengths those of UDP payloads in bytes."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: how long long packets may be lost, the job's liveness timeout."""
        self._limit_s = limit_s
        self._item = -1
        """The oldest item at the last heartbeat; -1: nothing was waited for."""
        self.needed_bytes = 0
        """Length of that item's packets."""
        self._unanswered = 0
        """Long HELLOs since the last that was answered."""
        self.passes_bytes = HEARTBEAT_BYTES
        """Length of the longest HELLO that was answered since long ones are lost."""
        self._fails_bytes = 0
        self._tried_bytes = 0
        """Length of the last shorter HELLO that was tried; 0: none."""
        self._since_s = 0.0
        """When the first of `_unanswered` was sent."""

    def beat(self, item: int, needed_bytes: int, now: float) -> list[int]:
        """Return the lengths of the HELLOs to send behind the heartbeat that is due, in order.

        `item`: the oldest unfinished one, in packets of `needed_bytes`; -1: nothing is waited for.
        """
        waited, self._item = self._item, item
        # R-MEMBER-10: the item is another one, so something moves; or a heartbeat is as long, and shows as much.
        if item < 0 or item != waited or needed_bytes <= HEARTBEAT_BYTES:
            self._rest()
            return []
        if needed_bytes != self.needed_bytes:
            self._rest()
            self.needed_bytes = self._fails_bytes = needed_bytes
        self._unanswered += 1
        if self._unanswered == 1:  # one that is lost says little, and may be chance
            self._since_s = now
            return [needed_bytes]
        # Shorter ones first: behind a longer one it may become part of its train, which virtual links pass whole.
        return [*self._shorter(), needed_bytes]

    def welcome(self, size_bytes: int) -> None:
        """Note that a HELLO of that length was answered in its length."""
        if size_bytes >= self.needed_bytes:
            self._rest()
        else:
            self.passes_bytes = max(self.passes_bytes, size_bytes)

    @property
    def suspects(self) -> bool:
        """Whether so many long HELLOs were lost that it is hardly chance."""
        return self._unanswered > HEARTBEATS_TO_SILENCE

    def too_narrow(self, now: float) -> bool:
        """Whether long HELLOs have been lost for `limit_s`."""
        # R-MEMBER-11
        return self.suspects and now >= self._since_s + self._limit_s

    def _shorter(self) -> list[int]:
        if self._tried_bytes > self.passes_bytes:  # unanswered until now: too long as well
            self._fails_bytes = self._tried_bytes
        middle = (self.passes_bytes + self._fails_bytes) // 2 // WORD_BYTES * WORD_BYTES
        self._tried_bytes = middle if middle > self.passes_bytes else 0
        return [middle] if self._tried_bytes else []

    def _rest(self) -> None:
        self.needed_bytes = self._unanswered = self._fails_bytes = self._tried_bytes = 0
        self.passes_bytes = HEARTBEAT_BYTES
