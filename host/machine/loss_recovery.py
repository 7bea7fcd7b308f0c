"""When a contribution is sent again.

Rules of this file
------------------
* Every transmission gets a higher order number than the one before, whether it is the first of its item or not.
* A result that comes for order o says that what was sent REORDER_THRESHOLD or more before it is overdue: it is sent
  again at once (a gap). If the item of that result was sent more than once, nobody knows which transmission it is the
  result of (Karn). Then only the oldest is sent again, if it has waited for a whole timeout: the common reason for a
  timeout is a peer that is late, and a window that is sent again when it has caught up would arrive on top of the one
  that lies in the switch's socket buffer, and overflow it.
* If nothing comes, a timer (fanin/protocol/timers.py; RFC 6298, section 5) sends the oldest one again, alone, and
  doubles. One is enough: its result has the next one sent, or makes room for an item whose result uncovers all the
  others.
* The flight is thin where no more than REORDER_THRESHOLD others fly: in a short transfer, and at the end of each. Three
  later results will not come there, so that one is evidence enough (THIN_REORDER_THRESHOLD); and for the last packet
  there is none but the timer, which does not double for the first LINEAR_TIMEOUTS in a row.
* A round trip is measured with items that were sent once, and since the timer last expired: one that was under way then
  measures how long somebody waited to send again. Workers that learned their timeouts from each other's timeouts would
  drive them up together. (HELLO measures the path alone: host/machine/worker_machine.py.)
* Single contributions that are sent again in vain, because a peer is late, do no harm: the switch knows them.

Both are bounded: a gap resends an item at most once per round trip, the timer one item per timeout.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.protocol.timers import LINEAR_TIMEOUTS, REORDER_THRESHOLD, THIN_REORDER_THRESHOLD, RetransmissionTimer


@dataclass(slots=True)
class Transmission:
    """What is known of the current item of a slot, once it was sent."""

    order: int
    sent_at: float
    count: int = 1
    """How often it was sent."""


class LossRecovery:
    """Transmissions whose results have not come, oldest first, and the timer."""

    def __init__(self) -> None:
        self.timer = RetransmissionTimer()
        self.timeouts_in_a_row = 0
        """Since the last result."""
        self._next_order = 0
        self._restarted_at = 0.0
        self._expired_at = 0.0
        self._transmissions: dict[int, Transmission] = {}
        self._flying: dict[int, None] = {}
        """Slots in order of their last transmission; those that wait to be sent again are not in it."""

    def sent(self, slot: int, now: float) -> bool:
        """The slot's current item was sent; True if for the first time."""
        order, self._next_order = self._next_order, self._next_order + 1
        self._flying[slot] = None
        known = self._transmissions.get(slot)
        if known is None:
            self._transmissions[slot] = Transmission(order, now)
            return True
        known.order, known.sent_at, known.count = order, now, known.count + 1
        return False

    def was_sent(self, slot: int) -> bool:
        """Whether the slot's current item was ever sent."""
        return slot in self._transmissions

    @property
    def _thin(self) -> bool:
        return len(self._flying) <= REORDER_THRESHOLD

    @property
    def idle(self) -> bool:
        """Whether nothing waits for its result."""
        return not self._transmissions

    def finished(self, slot: int, now: float) -> list[int]:
        """The slot's result came. Returns the slots that it shows to be overdue: they are to be sent again."""
        transmission = self._transmissions.pop(slot)
        self._flying.pop(slot, None)
        self._restarted_at = now
        self.timeouts_in_a_row = 0
        self.timer.progressed()
        if transmission.count > 1:
            return self._oldest_if_late(now)
        if transmission.sent_at >= self._expired_at:
            self.timer.sample(now - transmission.sent_at)
        threshold = THIN_REORDER_THRESHOLD if self._thin else REORDER_THRESHOLD
        overdue = []
        for other in self._flying:
            candidate = self._transmissions[other]
            if candidate.order + threshold > transmission.order:
                break
            overdue.append(other)
        for other in overdue:
            del self._flying[other]
        return overdue

    def _oldest_if_late(self, now: float) -> list[int]:
        oldest = next(iter(self._flying), None)
        if oldest is None or self._transmissions[oldest].sent_at + self.timer.timeout_s() > now:
            return []
        del self._flying[oldest]
        return [oldest]

    def withdraw(self, slot: int) -> None:
        """The slot's item will be sent again for another reason."""
        self._flying.pop(slot, None)

    def deadline(self) -> float | None:
        """When the timer expires; None while nothing flies."""
        oldest = next(iter(self._flying), None)
        if oldest is None:
            return None
        return max(self._transmissions[oldest].sent_at, self._restarted_at) + self.timer.timeout_s()

    def expire(self, now: float) -> int:
        """The timer has expired. Returns the slot to send again: the oldest."""
        if not self._thin or self.timeouts_in_a_row >= LINEAR_TIMEOUTS:
            self.timer.expired()
        self.timeouts_in_a_row += 1
        oldest = next(iter(self._flying))
        del self._flying[oldest]
        self._restarted_at = self._expired_at = now
        return oldest
