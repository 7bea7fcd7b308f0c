"""Arrivals of a worker's transmissions, and the receipts that tell the worker of them. Twin of
native/machine/receipts.hpp.

A worker numbers its transmissions 1, 2, ... (`order`, 32 bits, wrapping around; fanin/protocol/loss_recovery.py). The
rules are R-RECEIPT in docs/protocol.md; switch_machine.py sends the receipts.
"""

from __future__ import annotations

from fanin.protocol.timers import REORDER_THRESHOLD, TRACKED
from fanin.protocol.wire import ORDER_MASK


class Arrivals:
    """Record of the transmissions that have arrived from one worker."""

    __slots__ = ("came", "highest", "received", "sent")

    def __init__(self) -> None:
        self.highest = 0
        self.received = ORDER_MASK
        """Bit i: whether order `highest` - 1 - i has come."""
        self.sent = 0
        """Transmissions sent, as the highest order numbers show, over all processes in the worker's place."""
        self.came = 0
        """Number of those transmissions that came."""

    def restart(self) -> None:
        """Reset for a new process in the worker's place, whose order numbers begin anew."""
        self.highest, self.received = 0, ORDER_MASK

    @property
    def incomplete(self) -> bool:
        """Whether one of the tracked transmissions is a hole: missing, and not just overtaken."""
        # R-RECEIPT-3: those among the last REORDER_THRESHOLD may only have been overtaken.
        return self.received | (1 << REORDER_THRESHOLD - 1) - 1 != ORDER_MASK

    def take(self, order: int) -> bool:
        """Note an arrived transmission; return whether it uncovers a hole that no receipt has reported yet."""
        ahead = (order - self.highest) & ORDER_MASK
        if ahead == 0:  # a datagram that the network has duplicated
            return False
        if ahead > ORDER_MASK // 2:  # R-RECEIPT-1: it was overtaken by later ones
            behind = ORDER_MASK + 1 - ahead
            if behind <= TRACKED:  # older ones are not tracked
                self.came += not self.received >> (behind - 1) & 1
                self.received |= 1 << (behind - 1)
            return False
        self.sent += ahead
        self.came += 1
        self.received = (self.received << ahead | 1 << (ahead - 1)) & ORDER_MASK if ahead <= TRACKED else 0
        self.highest = order
        # R-RECEIPT-2: only holes that this transmission uncovers, so that this rule reports each hole once.
        newly_due = (1 << min(ahead, TRACKED)) - 1 << (REORDER_THRESHOLD - 1) & ORDER_MASK
        return self.received & newly_due != newly_due
