"""What a leaf has sent up and waits for, and how long that takes. Twin of native/ascents.hpp.

Rules of this file
------------------
* A leaf sends nothing again of its own accord: its workers do, and it passes that on. It has several workers, none of
  which knows when the sum of all went up; so what went up less than a round trip ago does not go up again.
* That round trip is the shortest of the last RECEIPT_EVERY rounds that went up once, or of those before them: what is
  shared by all of them is the path, queues included, and what is not are late peers. Before the first: MIN_TIMEOUT_S.
* Receipts tell the workers of it: their path is longer than what a receipt of the leaf alone measures.
"""

from __future__ import annotations

from fanin.protocol.timers import MIN_TIMEOUT_S, RECEIPT_EVERY
from fanin.protocol.wire import ORDER_MASK

NEVER = float("inf")


class Ascents:
    """Rounds under way from one leaf to its parent. Times in seconds of one monotonic clock."""

    __slots__ = ("_before_s", "_rounds", "_sent_at", "_shortest_s")

    def __init__(self) -> None:
        self._sent_at: dict[int, tuple[float, bool]] = {}
        """By slot: when its open round last went up, and whether for the first time."""
        self._shortest_s = self._before_s = NEVER
        self._rounds = 0
        """That `_shortest_s` is of."""

    def sent(self, slot: int, now: float) -> None:
        """The slot's open round goes up."""
        self._sent_at[slot] = now, slot not in self._sent_at

    def under_way(self, slot: int, now: float) -> bool:
        """Whether the slot's open round went up so late that its result cannot be here yet."""
        shortest_s = min(self._shortest_s, self._before_s)
        sent = self._sent_at.get(slot)
        return sent is not None and now < sent[0] + (MIN_TIMEOUT_S if shortest_s == NEVER else shortest_s)

    def came(self, slot: int, now: float) -> None:
        """The result of the slot's open round has come."""
        sent_at, once = self._sent_at.pop(slot, (0.0, False))
        if not once:
            return
        self._shortest_s = min(self._shortest_s, now - sent_at)
        self._rounds += 1
        if self._rounds == RECEIPT_EVERY:
            self._before_s, self._shortest_s, self._rounds = self._shortest_s, NEVER, 0

    @property
    def round_trip_us(self) -> int:
        """Microseconds; 0 while it is not known."""
        shortest_s = min(self._shortest_s, self._before_s)
        return 0 if shortest_s == NEVER else min(int(shortest_s * 1e6), ORDER_MASK)
