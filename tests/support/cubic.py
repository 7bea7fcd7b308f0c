"""A TCP-like flow with CUBIC in virtual time (RFC 9438), to stand beside jobs on a link of the simulator.

Rules of this file
------------------
* There is always more to send. Segments are numbered as they go out, new or not, and what is lost is lost: which bytes
  they carry decides nothing here (RFC 9002 counts in the same way).
* Every second segment is acknowledged at once, and so is one that shows a gap. Segments do not overtake each other: a
  number is lost as soon as a later one is acknowledged.
* Slow start ends with the first loss; after that CUBIC's window, or Reno's where that is larger (RFC 9438, section
  4.3); one cut per round trip; silence for RETRY_S brings the window to one segment.
"""

from __future__ import annotations

import struct

SEGMENT_BYTES = 1480
"""Bytes of a segment as long as frames with a contribution of 1,444 bytes, headers aside."""
INITIAL_SEGMENTS = 10
C, BETA = 0.4, 0.7
"""RFC 9438, sections 5 and 4.6."""
RENO = 3 * (1 - BETA) / (1 + BETA)
"""Segments per round trip by which Reno's window grows that cuts to BETA (section 4.3)."""
RETRY_S = 0.3
ACK_S = 0.04
"""A segment waits that long for another one to be acknowledged with."""

NUMBERS = struct.Struct("!QQ")
"""Numbers of a segment: its own; of an acknowledgement: the highest that has arrived, and how many have."""


class CubicSender:
    """Sends segments to `receiver` as its window allows."""

    def __init__(self, receiver: int) -> None:
        self.window = float(INITIAL_SEGMENTS)
        self.cuts = 0
        self._receiver = receiver
        self._threshold = float("inf")
        self._sent_at: list[float] = []
        """By number of the segment."""
        self._acknowledged = -1
        """The highest number that was: nothing up to it is in flight."""
        self._arrived = 0
        self._recover = -1
        self._largest = self._origin = self._plateau_s = 0.0
        """The window at the last cut, and where the cubic function has its plateau."""
        self._reno = 0.0
        self._epoch_at: float | None = None
        self._retry_at: float | None = None

    @property
    def delivered(self) -> int:
        """Segments that have arrived."""
        return self._arrived

    @property
    def _in_flight(self) -> int:
        return len(self._sent_at) - 1 - self._acknowledged

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Take in an acknowledgement."""
        highest, arrived = NUMBERS.unpack_from(data)
        if highest <= self._acknowledged:
            return
        news, numbers = arrived - self._arrived, highest - self._acknowledged
        self._acknowledged, self._arrived = highest, arrived
        self._retry_at = now + RETRY_S
        if news < numbers and highest > self._recover:
            self._cut(now)
        elif highest > self._recover:
            self._grow(news, now - self._sent_at[highest], now)

    def _cut(self, now: float) -> None:
        self.cuts += 1
        self._recover = len(self._sent_at) - 1
        # Fast convergence (section 4.7): a window that did not reach the last one makes room.
        self._origin = self.window * (1 + BETA) / 2 if self.window < self._largest else self.window
        self._largest = self.window
        self.window = self._threshold = max(self.window * BETA, 2.0)
        self._epoch_at = None

    def _grow(self, segments: int, round_trip_s: float, now: float) -> None:
        if self.window < self._threshold:
            self.window += segments
            return
        if self._epoch_at is None:
            self._epoch_at, self._reno = now, self.window
            self._origin = max(self._origin, self.window)
            self._plateau_s = ((self._origin - self.window) / C) ** (1 / 3)
        self._reno += RENO * segments / self.window
        at_s = now - self._epoch_at + round_trip_s
        target = min(max(self._origin + C * (at_s - self._plateau_s) ** 3, self.window), 1.5 * self.window)
        self.window = max(self.window + segments * (target - self.window) / self.window, self._reno)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        """Segments for which the window has room."""
        sent = []
        while self._in_flight < int(self.window):
            sent.append((NUMBERS.pack(len(self._sent_at), 0).ljust(SEGMENT_BYTES, b"\0"), self._receiver))
            self._sent_at.append(now)
            if self._retry_at is None:
                self._retry_at = now + RETRY_S
        return sent

    def next_timer(self) -> float | None:
        """When silence has lasted for too long."""
        return self._retry_at

    def handle_timer(self, now: float) -> None:
        """Start again with one segment."""
        if self._retry_at is not None and now >= self._retry_at:
            self._threshold, self.window = max(self.window * BETA, 2.0), 1.0
            self._acknowledged = self._recover = len(self._sent_at) - 1
            self._epoch_at, self._retry_at = None, now + RETRY_S

    def next_event(self) -> None:
        """Return None: there are no events."""


class CubicReceiver:
    """Acknowledges segments to `sender`."""

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._highest = -1
        self._arrived = 0
        self._waiting = 0
        self._due_at: float | None = None

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Take in a segment."""
        number, _ = NUMBERS.unpack_from(data)
        gap = number != self._highest + 1
        self._highest, self._arrived, self._waiting = number, self._arrived + 1, self._waiting + 1
        if self._waiting >= 2 or gap:
            self._due_at = now
        elif self._due_at is None:
            self._due_at = now + ACK_S

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        """An acknowledgement, if one is due."""
        if self._due_at is None or self._due_at > now:
            return []
        self._due_at, self._waiting = None, 0
        return [(NUMBERS.pack(self._highest, self._arrived).ljust(40, b"\0"), self._sender)]

    def next_timer(self) -> float | None:
        """When a lonely segment is to be acknowledged."""
        return self._due_at

    def handle_timer(self, now: float) -> None:
        """`datagrams_to_send` looks at the time."""

    def next_event(self) -> None:
        """Return None: there are no events."""
