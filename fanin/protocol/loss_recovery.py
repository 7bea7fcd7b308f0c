"""Decides when a contribution is sent again: when it is missing, and not because a peer's is.

Rules of this file
------------------
* Every transmission gets a higher order number than the one before, whether it is the first of its item or not. The
  contribution carries it, and a RECEIPT of the switch says which orders have arrived (switch/machine/receipts.py).
* A transmission that a receipt shows not to have arrived is lost, and sent again at once, if its order is at least
  REORDER_THRESHOLD below the highest that has arrived (RFC 9002, section 6.1.1), or if it was sent more than
  REORDER_SHARE of a round trip before that one (RFC 8985, section 6.2).
* A receipt also says which rounds had closed when it was sent (`settle`). Their results left the switch before it: what
  has not come is lost, and sent again at once, to be answered. An overdue item that is at the switch, in an
  open round, waits for a peer: as long as receipts say so it is not sent again.
  If none of the TRACKED that it tells of has arrived, a burst was lost, and what was sent before is in doubt (below).
* What is in doubt is asked for one at a time, since what comes back says which of the others are lost: of the last
  TRACKED orders, that is. Of a burst that was longer, one repetition at a time would cost as many round trips as it
  had packets (six seconds, where 46 were lost beside TCP). So its repair starts slowly, as a window does: two cases
  below have NEXT_ASKED more asked for at once.
* A result that comes for order o says that results for what was sent REORDER_THRESHOLD or more before it are overdue (a
  gap). Either a contribution was lost, and then the switch has told the worker whose it was, and the result will come
  one round trip later; or the result was lost on its way here. So what is overdue is in doubt, and sent again after
  `RetransmissionTimer.patience_s`, if neither its result nor a receipt has come by then. Where repetitions prove
  needless, since peers have been held up for longer, the wait grows by MORE_PATIENCE round trips each.
* The result of an item that was sent more than once shows no gap: nobody knows which transmission it is the result of
  (Karn). If it is an ANSWER, results have been lost: then the oldest is sent again, too, if it has waited for a whole
  timeout. One, since a window that is sent again when a late peer has caught up would arrive on top of the one that
  lies in the switch's socket buffer, and overflow it. And what has been in doubt for longest is asked for at once: one
  asks for all (`take_late`), but an ANSWER says nothing of the others, as a RECEIPT would. After ANSWERS_IN_A_ROW with
  nothing else in between a burst of results was lost, and each further one has NEXT_ASKED asked for: what is in doubt
  and, behind that, what has waited for a whole timeout.
* If it is a RESULT, a peer was late, or the repeated contribution was the first to arrive, and then a receipt tells
  what else is missing. One more repetition for each such result would have the next one sent twice as well, and so on:
  nothing would be lost, nothing measured (Karn again), and every packet of the job would go out twice. But unless a
  receipt has said that the repetition was needless, it has NEXT_ASKED asked for of what is in doubt and no receipt will
  tell of: not known to have arrived, and more than TRACKED orders behind the highest that has.
* If nothing comes, a timer (fanin/protocol/timers.py; RFC 6298, section 5; where receipts tell of rounds, it waits for
  no peer) sends the oldest one again, alone, and doubles. One is enough: its receipt says what else is missing. Where
  the switch had it already, a peer is late. Every other time it is the lowest item instead: of all workers' items the
  lowest one waits for none, so that workers which wait for each other's results go on however many transmissions there
  are to try.
* The flight is thin where no more than REORDER_THRESHOLD others fly: in a short transfer, and at the end of each. Three
  later results will not come there, so that one is evidence enough (THIN_REORDER_THRESHOLD), and what is in doubt is
  sent again at once: at most REORDER_THRESHOLD packets. For the last packet there is none but the timer, which does not
  double for the first LINEAR_TIMEOUTS in a row.
* A round trip is measured with items that were sent once, and since the timer last expired: one that was under way then
  measures how long somebody waited to send again. Workers that learned their timeouts from each other's timeouts would
  drive them up together. (HELLO measures the path alone: host/machine/worker_machine.py.)
* A switch that gives no receipts (hardware; told by NO_RECEIPTS_AFTER transmissions without one) leaves doubt and the
  timer, which find every loss; any result of an item that was sent more than once is then taken as an ANSWER is.

All are bounded: a transmission is sent again at most once, whatever says that it is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from fanin.protocol.timers import (
    ANSWERS_IN_A_ROW,
    LESS_PATIENCE,
    LINEAR_TIMEOUTS,
    MAX_PATIENCE,
    MORE_PATIENCE,
    NEXT_ASKED,
    NO_RECEIPTS_AFTER,
    REORDER_SHARE,
    REORDER_THRESHOLD,
    THIN_REORDER_THRESHOLD,
    TRACKED,
    RetransmissionTimer,
)
from fanin.protocol.wire import ORDER_MASK


@dataclass(slots=True)
class Transmission:
    """The latest transmission of a slot's current item."""

    order: int
    sent_at: float
    order_before: int
    """Order of the item's transmission before this one; its own, if there was none."""
    count: int = 1
    """How often it was sent."""
    arrived: bool = False
    """Whether the switch is known to have it."""
    landed: bool = False
    """Whether it therefore counts as no longer in flight."""
    needless: bool = False
    """Whether the switch had it before, from an earlier one."""


class LossRecovery:
    """Transmissions whose results have not come, oldest first, and the timer."""

    def __init__(self) -> None:
        self.timer = RetransmissionTimer()
        self.timeouts_in_a_row = 0
        """Timeouts since the last result."""
        self.next_order = 1
        """The order number of the next transmission. Its lower 32 bits are on the wire, where 0 means none."""
        self._restarted_at = 0.0
        self._expired_at = 0.0
        self._has_receipts = False
        """Whether this switch gives any."""
        self._transmissions: dict[int, Transmission] = {}
        self._flying: dict[int, None] = {}
        """Slots in order of their last transmission; those in doubt or waiting to be sent again are not in it."""
        self._landed = 0
        """How many of those that fly are known to have arrived."""
        self._patience = 0.0
        """Round trips more than `patience_s`."""
        self._doubtful: dict[int, float] = {}
        """Slots whose results are overdue, with the time until which they may still come."""
        self._answers_in_a_row = 0
        """Since the last result of something that was sent once."""
        self._highest = 0
        """Order, of what is known to have arrived."""
        self._asks = 0
        """How many of them are to be asked for at once, since others turned out to be missing; 0: one will do."""

    def sent(self, slot: int, now: float) -> bool:
        """The slot's current item was sent; True if for the first time."""
        order, self.next_order = self.next_order, self.next_order + 1
        self.withdraw(slot)
        self._flying[slot] = None
        known = self._transmissions.get(slot)
        if known is None:
            self._transmissions[slot] = Transmission(order, now, order)
            return True
        known.order_before, known.order, known.sent_at, known.count = known.order, order, now, known.count + 1
        known.arrived = known.landed = known.needless = False
        return False

    def was_sent(self, slot: int) -> bool:
        """Whether the slot's current item was ever sent."""
        return slot in self._transmissions

    def order(self, slot: int) -> int:
        """The order of the latest transmission of the slot's current item, which was sent."""
        return self._transmissions[slot].order

    def order_before(self, slot: int) -> int:
        """The order of the one before that: an ANSWER to the latest says that its result was lost."""
        return self._transmissions[slot].order_before

    @property
    def waiting(self) -> int:
        """How many items were sent and wait for their results."""
        return len(self._transmissions)

    @property
    def in_flight(self) -> int:
        """How many transmissions load the path, as far as is known: neither arrived, nor lost, nor overdue."""
        return len(self._flying) - self._landed

    @property
    def overdue(self) -> int:
        """How many results are."""
        return len(self._doubtful)

    @property
    def _thin(self) -> bool:
        return len(self._flying) + len(self._doubtful) <= REORDER_THRESHOLD

    @property
    def idle(self) -> bool:
        """Whether nothing waits for its result."""
        return not self._transmissions

    def finished(self, slot: int, now: float, *, answered: bool = False) -> float | None:
        """The slot's result came, or was sent once more because this worker asked for it (`answered`).

        Returns the round trip, if it measures one; see `take_late` for what it shows.
        """
        self.withdraw(slot)
        transmission = self._transmissions.pop(slot)
        self._restarted_at = now
        self.timeouts_in_a_row = 0
        self.timer.progressed()
        if transmission.count > 1:  # Karn: whichever transmission this answers, it neither times nor orders anything
            self._answers_in_a_row += answered
            if self.timer.told and answered and self._answers_in_a_row > ANSWERS_IN_A_ROW:
                self._ask_for_late(now)
            elif answered or (not self._has_receipts and self.next_order > NO_RECEIPTS_AFTER):
                self._doubt_oldest_if_late(now)
                if self.timer.told and self._doubtful:
                    self._doubtful[next(iter(self._doubtful))] = now
            elif self.timer.told and not transmission.needless:
                self._ask_for_untold(now)
            return None
        self._answers_in_a_row = 0
        round_trip_s = None
        # Sent before the timer expired, it would time how long some worker waited before it sent again.
        if transmission.sent_at >= self._expired_at:
            round_trip_s = now - transmission.sent_at
            self.timer.sample(round_trip_s)
        threshold = THIN_REORDER_THRESHOLD if self._thin else REORDER_THRESHOLD
        overdue = []
        for other in self._flying:
            if self._transmissions[other].order + threshold > transmission.order:
                break
            overdue.append(other)
        # In doubt, not lost: the switch may have it, and be waiting for a peer whose packet was lost.
        for other in overdue:
            self.withdraw(other)
            self._doubtful[other] = now + self._wait_s
        if self._thin:  # too few others fly to bring more evidence, and sending so few again costs little
            self._doubtful = dict.fromkeys(self._doubtful, now)
        return round_trip_s

    def _ask_for_late(self, now: float) -> None:
        """Results of a burst were lost: ask for the next ones that are in doubt, or have flown for a whole timeout."""
        self._asks += NEXT_ASKED
        while len(self._doubtful) < self._asks and (late := self._late(now)) is not None:
            self.withdraw(late)
            self._doubtful[late] = now
        self._doubtful.update(dict.fromkeys([*islice(self._doubtful, self._asks)], now))

    def _ask_for_untold(self, now: float) -> None:
        """A contribution of a burst had been lost: ask for the next ones that no receipt will tell of."""
        self._asks += NEXT_ASKED
        for slot in [*islice(self._doubtful, self._asks)]:
            transmission = self._transmissions[slot]
            if transmission.arrived or transmission.order + TRACKED >= self._highest:
                break
            self._doubtful[slot] = now

    def _doubt_oldest_if_late(self, now: float) -> None:
        if (late := self._late(now)) is not None:
            self.withdraw(late)
            # At the front: `take_late` and `deadline` rely on doubts being in the order of their times.
            self._doubtful = {late: now, **self._doubtful}

    def _late(self, now: float) -> int | None:
        """The oldest that flies, if it has waited for a whole timeout."""
        oldest = next(iter(self._flying), None)
        if oldest is None or self._transmissions[oldest].sent_at + self.timer.timeout_s() > now:
            return None
        return oldest

    def repetition_was(self, *, needed: bool) -> None:
        """Something that was sent again turned out to have been missing, or not to have been."""
        if needed:
            self._patience = max(self._patience - LESS_PATIENCE, 0.0)
        else:
            self._patience = min(self._patience + MORE_PATIENCE, MAX_PATIENCE)

    def take_late(self, now: float) -> list[int]:
        """The slots whose results have been in doubt for long enough: they are to be sent again."""
        late = []
        for slot, until in self._doubtful.items():
            if until > now:
                break
            late.append(slot)
        for slot in late:
            del self._doubtful[slot]
        if self.timer.told:  # one asks for all: what comes back says which of the others are lost
            asks = max(self._asks, 1)
            self._doubtful.update(dict.fromkeys(late[asks:], now + self._wait_s))
            del late[asks:]
        self._asks = 0
        return late

    def sent_as(self, order: int) -> int:
        """The order with these lower 32 bits: the latest one that was sent."""
        return self.next_order - 1 - (self.next_order - 1 - order & ORDER_MASK)

    def receipt(
        self,
        told: int,
        highest: int,
        received: int,
        now: float,
        *,
        measures: bool = False,
        needless: bool = False,
    ) -> tuple[list[int], float | None]:
        """The switch says which orders have arrived: the one that it answers, the highest, and those before it.

        `needless`: what it answers, the switch had before.
        `measures`: it has the receipt for the sake of the round trip. Then what has arrived still counts as in flight:
        its results are under way like all others, and a window that left it out would be half as long again.

        Returns the slots whose transmissions are lost, and the round trip of the path, if this measures one.
        """
        self._has_receipts = self.timer.begun = True
        top, answered = self.sent_as(highest), self.sent_as(told)
        self._highest = max(self._highest, top)
        missing: list[int] = []
        older: list[int] = []
        top_sent_at = round_trip_s = None
        for slot in (*self._doubtful, *self._flying):
            transmission = self._transmissions[slot]
            behind = top - transmission.order
            if transmission.order == answered:
                round_trip_s = now - transmission.sent_at
                transmission.needless = needless
            if behind == 0:
                top_sent_at = transmission.sent_at
            # Below 0 it was sent after the highest that has arrived: the receipt says nothing of it.
            if behind == 0 or (0 < behind <= TRACKED and received >> (behind - 1) & 1):
                transmission.arrived = True
                if not measures and slot in self._flying and not transmission.landed:
                    transmission.landed = True
                    self._landed += 1
            elif 0 < behind <= TRACKED:
                missing.append(slot)
            elif behind > TRACKED and not received and slot in self._flying and not transmission.arrived:
                older.append(slot)
        earlier_s = self.timer.smoothed_s * REORDER_SHARE
        lost = []
        for slot in missing:  # missing may also mean reordered: only distance in orders or time makes it lost
            transmission = self._transmissions[slot]
            far = top - transmission.order >= REORDER_THRESHOLD
            if far or (top_sent_at is not None and transmission.sent_at + earlier_s < top_sent_at):
                lost.append(slot)
                self.withdraw(slot)
        for slot in older:  # the burst that lost all of them may have begun before them
            self.withdraw(slot)
            self._doubtful[slot] = now + self._wait_s
        return lost, round_trip_s

    @property
    def _wait_s(self) -> float:
        """How long a result may be overdue."""
        return self.timer.patience_s(self._patience)

    def settle(self, highest: int, closed: Callable[[int], bool], now: float) -> list[int]:
        """The switch says which rounds were over when order `highest` had come: what is overdue is lost, or a peer's.

        The result of such a round, or its answer to what was sent by then, has left the switch before the receipt.
        Returns the slots whose results are lost.
        """
        self.timer.told = True
        top = self.sent_as(highest)
        over = [
            slot for slot in (*self._doubtful, *self._flying) if self._transmissions[slot].order <= top and closed(slot)
        ]
        for slot in over:
            self.withdraw(slot)
        waits_until = now + self._wait_s
        for slot in [slot for slot in self._doubtful if self._transmissions[slot].arrived]:
            del self._doubtful[slot]  # to the end: `take_late` and `deadline` rely on the order of their times
            self._doubtful[slot] = waits_until
        return over

    def withdraw(self, slot: int) -> None:
        """The slot's item no longer flies, or is to be sent again for another reason."""
        if slot in self._flying:
            del self._flying[slot]
            self._landed -= self._transmissions[slot].landed
        self._doubtful.pop(slot, None)

    def deadline(self) -> float | None:
        """When something is to be sent again; None while nothing flies."""
        times = [*self._doubtful.values()][:1]
        oldest = next(iter(self._flying), None)
        if oldest is not None:
            times.append(self._expires_at(oldest))
        return min(times, default=None)

    def _expires_at(self, oldest: int) -> float:
        """When the timer does, which the oldest transmission and the last result have started."""
        sent_at = self._transmissions[oldest].sent_at
        return max(sent_at, self._restarted_at) + self.timer.timeout_s(thin=self._thin)

    def expire(self, now: float, lowest: int) -> tuple[int, bool] | None:
        """If the timer has expired: the slot to send again, and whether that is known to have arrived.

        `lowest` is the slot of the lowest unfinished item.
        """
        oldest = next(iter(self._flying), None)
        if oldest is None:
            return None
        transmission = self._transmissions[oldest]
        if self._expires_at(oldest) > now:
            return None
        # Not if it was sent so recently that its result cannot be overdue.
        due = now - self.timer.patience_s(0.0)
        if self.timeouts_in_a_row % 2 == 0 and lowest in self._flying and self._transmissions[lowest].sent_at <= due:
            oldest, transmission = lowest, self._transmissions[lowest]
        # A thin flight has nothing but the timer to show a loss, so the timer stays short for a while.
        if not self._thin or self.timeouts_in_a_row >= LINEAR_TIMEOUTS:
            self.timer.expired()
        self.timeouts_in_a_row += 1
        self.timer.begun = True
        self.withdraw(oldest)
        self._restarted_at = self._expired_at = now
        return oldest, transmission.arrived
