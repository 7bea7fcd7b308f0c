"""Transmissions of a leaf to its parent: order, window and loss recovery. Twin of native/machine/ascents.hpp.

The rules are R-LEAF-6 to R-LEAF-9 in docs/protocol.md: a leaf has a congestion window and loss recovery like a worker,
but no retransmission timer. At most one complete round per slot waits for its turn, since a slot has one open round.
"""

from __future__ import annotations

from collections.abc import Callable

from fanin.protocol.congestion import Congestion
from fanin.protocol.loss_recovery import LossRecovery
from fanin.protocol.timers import MIN_TIMEOUT_S, RECEIPT_EVERY, measures
from fanin.protocol.wire import ORDER_MASK

NEVER = float("inf")


class Ascents:
    """Rounds of one job, from the leaf's last contribution to the parent's result. Seconds of one monotonic clock."""

    __slots__ = (
        "_again", "_before_s", "_congestion", "_hello", "_recovery", "_rounds", "_sent_at", "_shortest_s", "_under_way",
        "_waiting",
    )  # fmt: skip

    def __init__(self, slots: int, packet_bytes: int) -> None:
        """`packet_bytes`: length of the longest packets to the parent."""
        self._congestion = Congestion(slots, packet_bytes)
        self._recovery = LossRecovery()
        self._waiting: dict[int, int] = {}
        """By slot, the number of a complete round that was not sent to the parent yet."""
        self._under_way: dict[int, int] = {}
        """By slot, the number of a complete round that was sent and waits for the parent's result."""
        self._again: dict[int, bool] = {}
        """Slots of `_under_way` whose rounds are to be sent again, in the order in which that became known; by slot,
        whether the packet must be as long as a result."""
        self._sent_at: dict[int, tuple[float, bool]] = {}
        """By slot: when its open round was last sent, and whether it was sent only once."""
        self._shortest_s = self._before_s = NEVER
        self._rounds = 0
        """Number of rounds that `_shortest_s` was measured over."""
        self._hello = -1, 0.0
        """Sequence number and time of the last HELLO that measures the path."""

    # --- what is to go up ---

    def complete(self, slot: int, number: int) -> None:
        """Queue the slot's complete round, `number`, for the parent; if it was sent already, send it again."""
        if slot in self._under_way:  # an eviction has poked the slot, and its round is complete as before
            self._again.setdefault(slot, False)
        else:
            self._waiting[slot] = number

    def asked(self, slot: int, now: float) -> bool:
        """Whether to send the slot's complete round again, because a worker repeats its contribution to it."""
        # R-LEAF-8: not if the round still waits for its turn, or was sent less than a round trip ago.
        if slot not in self._under_way or slot in self._again:
            return False
        shortest_s = min(self._shortest_s, self._before_s)
        if now < self._sent_at[slot][0] + (MIN_TIMEOUT_S if shortest_s == NEVER else shortest_s):
            return False
        self._again[slot] = False
        return True

    def acknowledged(self, slot: int) -> None:
        """Handle a bare answer: the parent has the round, so ask again in a packet as long as the result."""
        if slot in self._under_way:
            self._again[slot] = True

    def take(self, now: float) -> tuple[int, int, bool] | None:
        """The slot whose round to send now, its packet's order number, and whether to make it as long as a result.

        None if nothing is to be sent now.
        """
        round_trip_s = self._congestion.paced_round_trip(self._recovery.timer.smoothed_s)
        slot, long = next(iter(self._again), None), False
        if slot is not None:  # R-CONGESTION-3, R-CONGESTION-13: it replaces a transmission that has left the path
            long = self._again.pop(slot)
        elif (slot := self._first()) is None or not self._congestion.may_send(round_trip_s, now):
            self._congestion.limited = bool(self._waiting)
            return None
        else:
            self._under_way[slot] = self._waiting.pop(slot)
        # R-LEAF-6; 0 asks for no receipts (R-CONGESTION-1).
        order = self._recovery.next_order & ORDER_MASK if self._congestion.shares else 0
        self._congestion.sent(round_trip_s, now)
        self._sent_at[slot] = now, self._recovery.sent(slot, now)
        return slot, order, long

    def _first(self) -> int | None:
        """Slot of the lowest waiting round, if the window has room or no lower round is under way; else None."""
        slot = min(self._waiting, key=lambda each: (self._waiting[each], each), default=None)
        # R-CONGESTION-2: the window is the leaf's own.
        if slot is None or self._congestion.has_room(self._recovery.in_flight, self._recovery.waiting):
            return slot
        # R-LEAF-7: leaves whose windows were full of different rounds would wait for each other.
        lowest = min(((number, each) for each, number in self._under_way.items()), default=None)
        return slot if lowest is None or (self._waiting[slot], slot) < lowest else None

    @property
    def oldest(self) -> tuple[int, int] | None:
        """Number and slot of the lowest round that was sent and waits for the parent's result; None without one."""
        return min(((number, slot) for slot, number in self._under_way.items()), default=None)

    def next_timer(self) -> float | None:
        """Time at which pacing lets `take` send the next round; None if nothing waits, or not for pacing alone."""
        return self._congestion.held_until if not self._again and self._first() is not None else None

    # --- what comes down ---

    def came(self, slot: int, now: float, *, answered: bool, marked: bool = False) -> None:
        """Note the parent's result of the slot's open round; `answered`: it answers this leaf's repetition alone."""
        self._again.pop(slot, None)
        self._waiting.pop(slot, None)
        if self._under_way.pop(slot, None) is None:  # the round was not sent yet, so there is nothing to time
            return
        order = self._recovery.order(slot)
        if marked:  # R-CONGESTION-10
            self._congestion.marked(order, self._recovery.next_order)
        if answered:  # the parent had closed the round before, so its result was lost on the way down
            self._recovery.repetition_was(needed=True)
            self._congestion.lost(self._recovery.order_before(slot), self._recovery.next_order)
        round_trip_s = self._recovery.finished(slot, now, answered=answered)
        if round_trip_s is not None:
            self._congestion.round_trip(round_trip_s, now)
        self._congestion.result(order, self._recovery.next_order, self._recovery.overdue)
        sent_at, once = self._sent_at.pop(slot)
        if not once:  # R-RECOVERY-11
            return
        self._shortest_s = min(self._shortest_s, now - sent_at)
        self._rounds += 1
        if self._rounds == RECEIPT_EVERY:  # R-LEAF-9: the shortest of several is the path's, without late peers
            self._before_s, self._shortest_s, self._rounds = self._shortest_s, NEVER, 0

    def receipt(self, answers: int, highest: int, received: int, now: float, *, spurious: bool) -> None:
        """Handle a receipt; arguments as of LossRecovery.receipt. `spurious`: order `answers` is a repetition."""
        by_rota = not spurious and measures(answers)
        lost, round_trip_s = self._recovery.receipt(
            answers, highest, received, now, measures=by_rota, spurious=spurious
        )
        self._congestion.heard()
        if round_trip_s is not None:
            self._recovery.timer.path_round_trip(round_trip_s)
            if not by_rota:  # R-CONGESTION-12
                self._congestion.path_round_trip(round_trip_s, now)
        if spurious:  # R-RECOVERY-6
            self._recovery.repetition_was(needed=False)
        for slot in lost:  # R-LEAF-6
            self._congestion.lost(self._recovery.order(slot), self._recovery.next_order)
            self._again.setdefault(slot, False)

    def settle(self, highest: int, odd: Callable[[int], bool], now: float) -> None:
        """Send rounds again whose results were lost. `odd(slot)`: whether the parent has closed an odd number there."""
        # R-RECOVERY-2: the parent's result was lost on its way down.
        for slot in self._recovery.settle(highest, lambda slot: odd(slot) != bool(self._under_way[slot] & 1), now):
            self._again.setdefault(slot, False)

    def hello_sent(self, sequence: int, now: float) -> None:
        """Note that the HELLO of that sequence number was sent to the parent."""
        self._hello = sequence, now

    def welcome(self, sequence: int, now: float) -> None:
        """Measure the path by a WELCOME that answers the last HELLO; ignore one that answers an earlier HELLO."""
        if sequence != self._hello[0]:  # the time of an earlier HELLO is not kept
            return
        round_trip_s = now - self._hello[1]
        self._recovery.timer.sample(round_trip_s, idle=True)
        self._recovery.timer.path_round_trip(round_trip_s)
        self._congestion.path_round_trip(round_trip_s, now)

    @property
    def round_trip_us(self) -> int:
        """Shortest recent time from sending a round to its result, in microseconds; 0 while it is not known."""
        shortest_s = min(self._shortest_s, self._before_s)
        return 0 if shortest_s == NEVER else min(int(shortest_s * 1e6), ORDER_MASK)
