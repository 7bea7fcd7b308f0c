"""Arrivals of a worker's transmissions, and the receipts that tell the worker of them. Twin of
native/machine/receipts.hpp.

A worker numbers its transmissions 1, 2, ... (`order`, 32 bits, wrapping around; fanin/protocol/loss_recovery.py). The
rules are R-RECEIPT in docs/protocol.md; switch_machine.py sends the receipts.
"""

from __future__ import annotations

from fanin.protocol.timers import REORDER_THRESHOLD, TRACKED
from fanin.protocol.wire import ORDER_MASK


class Arrivals:
    """The transmissions that have arrived from one worker."""

    __slots__ = ("came", "highest", "received", "sent")

    def __init__(self) -> None:
        self.highest = 0
        self.received = ORDER_MASK
        """Bit i: whether order `highest` - 1 - i has come."""
        self.sent = 0
        """Transmissions that its orders tell of, over all processes in the worker's place."""
        self.came = 0
        """Number of those transmissions that came."""

    def restart(self) -> None:
        """A new process has the worker's place, whose orders begin anew."""
        self.highest, self.received = 0, ORDER_MASK

    @property
    def incomplete(self) -> bool:
        """Whether one of those that are told apart has not come, and is a hole."""
        # R-RECEIPT-3: those among the last REORDER_THRESHOLD may only have been overtaken.
        return self.received | (1 << REORDER_THRESHOLD - 1) - 1 != ORDER_MASK

    def take(self, order: int) -> bool:
        """A transmission has arrived; whether it uncovers a hole that the worker has not been told of."""
        ahead = (order - self.highest) & ORDER_MASK
        if ahead == 0:  # a datagram that the network has doubled
            return False
        if ahead > ORDER_MASK // 2:  # R-RECEIPT-1: it was overtaken; one that is older than TRACKED is not told of
            behind = ORDER_MASK + 1 - ahead
            if behind <= TRACKED:  # an older one is not told of
                self.came += not self.received >> (behind - 1) & 1
                self.received |= 1 << (behind - 1)
            return False
        self.sent += ahead
        self.came += 1
        self.received = (self.received << ahead | 1 << (ahead - 1)) & ORDER_MASK if ahead <= TRACKED else 0
        self.highest = order
        # R-RECEIPT-2: only holes that this one uncovers, so that each is told of once by this rule.
        newly_due = (1 << min(ahead, TRACKED)) - 1 << (REORDER_THRESHOLD - 1) & ORDER_MASK
        return self.received & newly_due != newly_due
