"""Decides when a contribution is sent again: when it is missing itself, not when a peer's is.

The rules are R-RECOVERY in docs/protocol.md. Three words (docs/glossary.md) say where an outstanding transmission is:
*in flight*, it may load the path; *overdue*, results of later transmissions have come, and its own has not; *lost*, it
is known to be missing, and is sent again at once.

Three kinds of evidence tell them apart. A RECEIPT of the switch says which orders had arrived, and which rounds had
closed. The result of a later transmission leaves a gap. If nothing comes, a timer (fanin/protocol/timers.py) sends one
item again.

Every transmission has a higher order number than the one before, whether it is the first of its item or not. Repetition
is bounded: a transmission is sent again at most once, however many kinds of evidence say that it is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from fanin.protocol.timers import (
    ANSWERS_IN_A_ROW,
    LESS_WAIT,
    LINEAR_TIMEOUTS,
    MAX_WAIT,
    MORE_WAIT,
    NEXT_RESENT,
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
    off_path: bool = False
    """Whether it therefore counts as no longer in flight."""
    spurious: bool = False
    """Whether the switch had the item before, from an earlier transmission."""


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
        """Whether this switch gives receipts."""
        self._transmissions: dict[int, Transmission] = {}
        self._on_time: dict[int, None] = {}
        """Slots in order of their last transmission, without those that are overdue or wait to be sent again."""
        self._off_path = 0
        """How many of these count as no longer in flight, since they are known to have arrived."""
        self._more_wait = 0.0
        """Round trips that are added to `overdue_s`."""
        self._resend_at: dict[int, float] = {}
        """Slots whose results are overdue, in the order of the times at which their items are sent again."""
        self._answers_in_a_row = 0
        """Answers to repetitions since the last result of an item that was sent once."""
        self._highest = 0
        """Highest order that is known to have arrived."""
        self._resends = 0
        """How many overdue items are sent again at once, since others turned out to be missing; 0: one will do."""

    def sent(self, slot: int, now: float) -> bool:
        """Note a transmission of the slot's current item; return whether it is the first."""
        order, self.next_order = self.next_order, self.next_order + 1
        self.withdraw(slot)
        self._on_time[slot] = None
        known = self._transmissions.get(slot)
        if known is None:  # R-RECOVERY-11: only such a transmission measures and shows gaps
            self._transmissions[slot] = Transmission(order, now, order)
            return True
        known.order_before, known.order, known.sent_at, known.count = known.order, order, now, known.count + 1
        known.arrived = known.off_path = known.spurious = False
        return False

    def was_sent(self, slot: int) -> bool:
        """Whether the slot's current item was ever sent."""
        return slot in self._transmissions

    def order(self, slot: int) -> int:
        """The order of the latest transmission of the slot's current item, which was sent."""
        return self._transmissions[slot].order

    def order_before(self, slot: int) -> int:
        """The order of the transmission before the latest, whose result was lost if the latest gets an ANSWER."""
        return self._transmissions[slot].order_before

    @property
    def waiting(self) -> int:
        """How many items were sent and wait for their results."""
        return len(self._transmissions)

    @property
    def in_flight(self) -> int:
        """How many transmissions load the path, as far as is known: neither arrived, nor lost, nor overdue."""
        # R-CONGESTION-2
        return len(self._on_time) - self._off_path

    @property
    def overdue(self) -> int:
        """How many results are overdue."""
        return len(self._resend_at)

    @property
    def _thin(self) -> bool:  # R-RECOVERY-14: too few are outstanding for three to overtake one
        return len(self._on_time) + len(self._resend_at) <= REORDER_THRESHOLD

    @property
    def idle(self) -> bool:
        """Whether nothing waits for its result."""
        return not self._transmissions

    def finished(self, slot: int, now: float, *, answered: bool = False) -> float | None:
        """Note that the slot's result came; `answered`: it was sent once more, because this worker had asked for it.

        Returns the round trip in seconds, or None if it measures none; `take_due` then has the slots that it shows to
        be overdue.
        """
        self.withdraw(slot)
        transmission = self._transmissions.pop(slot)
        self._restarted_at = now
        self.timeouts_in_a_row = 0
        self.timer.progressed()
        if transmission.count > 1:  # R-RECOVERY-11, Karn: nobody knows which transmission this is the result of
            self._answers_in_a_row += answered
            if self.timer.tells_rounds and answered and self._answers_in_a_row > ANSWERS_IN_A_ROW:  # R-RECOVERY-9
                self._resend_more_results(now)
            # R-RECOVERY-8: results have been lost. R-RECOVERY-15: without receipts nothing else would ever say so.
            elif answered or (not self._has_receipts and self.next_order > NO_RECEIPTS_AFTER):
                self._resend_oldest_if_timed_out(now)
                if self.timer.tells_rounds and self._resend_at:  # R-RECOVERY-8
                    self._resend_at[next(iter(self._resend_at))] = now
            elif self.timer.tells_rounds and not transmission.spurious:  # R-RECOVERY-10
                self._resend_more_contributions(now)
            return None
        self._answers_in_a_row = 0
        round_trip_s = None
        # R-RECOVERY-11: sent before the timer expired, it would time how long some worker waited before it sent again.
        if transmission.sent_at >= self._expired_at:
            round_trip_s = now - transmission.sent_at
            self.timer.sample(round_trip_s)
        # R-RECOVERY-5: this result has overtaken those of transmissions that are `threshold` or more behind it.
        threshold = THIN_REORDER_THRESHOLD if self._thin else REORDER_THRESHOLD
        overdue = []
        for other in self._on_time:
            # They are in order: none behind it is overdue either.
            if self._transmissions[other].order + threshold > transmission.order:
                break
            overdue.append(other)
        # R-RECOVERY-6: overdue, not lost, since the switch may have it, and wait for a peer whose packet was lost.
        for other in overdue:
            self.withdraw(other)
            self._resend_at[other] = now + self._wait_s
        if self._thin:  # R-RECOVERY-14: too few are left to bring more evidence, and sending so few again costs little
            self._resend_at = dict.fromkeys(self._resend_at, now)
        return round_trip_s

    def _resend_more_results(self, now: float) -> None:
        """R-RECOVERY-9: send more of a burst of lost results again, overdue ones and those that have timed out."""
        self._resends += NEXT_RESENT
        # Lost results leave nothing overdue: what has timed out joins.
        while len(self._resend_at) < self._resends and (late := self._oldest_if_timed_out(now)) is not None:
            self.withdraw(late)
            self._resend_at[late] = now
        self._resend_at.update(dict.fromkeys([*islice(self._resend_at, self._resends)], now))

    def _resend_more_contributions(self, now: float) -> None:
        """R-RECOVERY-10: send more of a burst of lost contributions again, which no receipt will tell of."""
        self._resends += NEXT_RESENT
        for slot in [*islice(self._resend_at, self._resends)]:
            transmission = self._transmissions[slot]
            # Receipts tell of it, or a peer is late.
            if transmission.arrived or transmission.order + TRACKED >= self._highest:
                break
            self._resend_at[slot] = now

    def _resend_oldest_if_timed_out(self, now: float) -> None:
        if (late := self._oldest_if_timed_out(now)) is not None:
            self.withdraw(late)
            # R-RECOVERY-8, at the front: `take_due` and `deadline` rely on the order of the times.
            self._resend_at = {late: now, **self._resend_at}

    def _oldest_if_timed_out(self, now: float) -> int | None:
        """The oldest that is not overdue, if it has waited for a whole timeout."""
        oldest = next(iter(self._on_time), None)
        if oldest is None or self._transmissions[oldest].sent_at + self.timer.timeout_s() > now:
            return None
        return oldest

    def repetition_was(self, *, needed: bool) -> None:
        """Adapt the wait for overdue results: a repetition turned out to be needed, or not to be."""
        # R-RECOVERY-6: peers that are held up for longer are waited for longer.
        if needed:
            self._more_wait = max(self._more_wait - LESS_WAIT, 0.0)
        else:
            self._more_wait = min(self._more_wait + MORE_WAIT, MAX_WAIT)

    def take_due(self, now: float) -> list[int]:
        """The slots whose results have been overdue for long enough: their items are to be sent again."""
        late = []
        for slot, until in self._resend_at.items():
            if until > now:  # they are in the order of their times
                break
            late.append(slot)
        for slot in late:
            del self._resend_at[slot]
        if self.timer.tells_rounds:  # R-RECOVERY-7: what comes back says which of the others are lost
            asks = max(self._resends, 1)
            self._resend_at.update(dict.fromkeys(late[asks:], now + self._wait_s))
            del late[asks:]
        self._resends = 0
        return late

    def sent_as(self, order: int) -> int:
        """The order with these lower 32 bits: the latest one that was sent."""
        return self.next_order - 1 - (self.next_order - 1 - order & ORDER_MASK)

    def receipt(
        self,
        answers: int,
        highest: int,
        received: int,
        now: float,
        *,
        measures: bool = False,
        spurious: bool = False,
    ) -> tuple[list[int], float | None]:
        """Take in which orders have arrived: the one that the receipt answers, the highest, and those before that.

        `spurious`: the switch had the item of the answered transmission before.
        `measures`: the receipt was sent for the round trip alone. Then what has arrived still counts as in flight: its
        results are under way like all others, and a window that left it out would be half as long again.

        Returns the slots whose transmissions are lost, and the round trip of the path, if this measures one.
        """
        self._has_receipts = self.timer.begun = True
        top, answered = self.sent_as(highest), self.sent_as(answers)
        self._highest = max(self._highest, top)
        missing: list[int] = []
        older: list[int] = []
        top_sent_at = round_trip_s = None
        for slot in (*self._resend_at, *self._on_time):
            transmission = self._transmissions[slot]
            behind = top - transmission.order
            if transmission.order == answered:  # it was sent so long ago, whatever became of the others
                round_trip_s = now - transmission.sent_at
                transmission.spurious = spurious
            if behind == 0:
                top_sent_at = transmission.sent_at
            # Below 0 it was sent after the highest that has arrived: the receipt says nothing of it.
            if behind == 0 or (0 < behind <= TRACKED and received >> (behind - 1) & 1):
                transmission.arrived = True
                if not measures and slot in self._on_time and not transmission.off_path:  # R-CONGESTION-2
                    transmission.off_path = True
                    self._off_path += 1
            elif 0 < behind <= TRACKED:  # missing, or only overtaken: see below
                missing.append(slot)
            # R-RECOVERY-4: the burst that lost all of the 32 may have begun before them.
            elif behind > TRACKED and not received and slot in self._on_time and not transmission.arrived:
                older.append(slot)
        earlier_s = self.timer.smoothed_s * REORDER_SHARE
        lost = []
        # R-RECOVERY-1: packets overtake each other, so only distance in orders or time makes it lost.
        for slot in missing:
            transmission = self._transmissions[slot]
            far = top - transmission.order >= REORDER_THRESHOLD
            if far or (top_sent_at is not None and transmission.sent_at + earlier_s < top_sent_at):
                lost.append(slot)
                self.withdraw(slot)
        for slot in older:
            self.withdraw(slot)
            self._resend_at[slot] = now + self._wait_s
        return lost, round_trip_s

    @property
    def _wait_s(self) -> float:
        """How long a result may be overdue before its item is sent again."""
        return self.timer.overdue_s(self._more_wait)

    def settle(self, highest: int, closed: Callable[[int], bool], now: float) -> list[int]:
        """Take in which rounds were over when order `highest` had arrived: there, what is outstanding is lost.

        The result of such a round, or the answer to what was sent by then, left the switch before the receipt. Where
        the round is open, a peer is late. Returns the slots whose results are lost.
        """
        self.timer.tells_rounds = True
        # R-RECOVERY-2: of a later transmission the switch may say more than this receipt knows.
        top = self.sent_as(highest)
        outstanding = (*self._resend_at, *self._on_time)
        over = [slot for slot in outstanding if self._transmissions[slot].order <= top and closed(slot)]
        for slot in over:
            self.withdraw(slot)
        waits_until = now + self._wait_s
        # R-RECOVERY-3: it is at the switch, in an open round, so a peer is late.
        for slot in [slot for slot in self._resend_at if self._transmissions[slot].arrived]:
            del self._resend_at[slot]  # to the end: `take_due` and `deadline` rely on the order of the times
            self._resend_at[slot] = waits_until
        return over

    def withdraw(self, slot: int) -> None:
        """Take a slot out of both lists: its item is neither in flight nor overdue, or will be sent again anyway."""
        if slot in self._on_time:
            del self._on_time[slot]
            self._off_path -= self._transmissions[slot].off_path
        self._resend_at.pop(slot, None)

    def deadline(self) -> float | None:
        """When something is to be sent again; None while nothing is outstanding."""
        times = [*self._resend_at.values()][:1]
        oldest = next(iter(self._on_time), None)
        if oldest is not None:
            times.append(self._expires_at(oldest))
        return min(times, default=None)

    def _expires_at(self, oldest: int) -> float:
        """When the timer expires, which runs from the oldest transmission or the last result, whichever came later."""
        sent_at = self._transmissions[oldest].sent_at
        return max(sent_at, self._restarted_at) + self.timer.timeout_s(thin=self._thin)

    def expire(self, now: float, lowest: int) -> tuple[int, bool] | None:
        """If the timer has expired, return the slot to send again, and whether the switch is known to have its item.

        `lowest` is the slot of the lowest unfinished item.
        """
        oldest = next(iter(self._on_time), None)
        if oldest is None:
            return None
        transmission = self._transmissions[oldest]
        if self._expires_at(oldest) > now:  # a result since has restarted it
            return None
        # R-RECOVERY-12: not the lowest if it was sent so recently that its result cannot be overdue.
        due = now - self.timer.overdue_s(0.0)
        if self.timeouts_in_a_row % 2 == 0 and lowest in self._on_time and self._transmissions[lowest].sent_at <= due:
            oldest, transmission = lowest, self._transmissions[lowest]
        # R-RECOVERY-14: a thin flight has nothing but the timer to show a loss, so the timer stays short for a while.
        if not self._thin or self.timeouts_in_a_row >= LINEAR_TIMEOUTS:
            self.timer.expired()
        self.timeouts_in_a_row += 1
        self.timer.begun = True
        self.withdraw(oldest)
        self._restarted_at = self._expired_at = now
        return oldest, transmission.arrived
