"""Arrivals of a worker's transmissions, and the receipts that tell the worker of them. Twin of
native/machine/receipts.hpp.

Rules of this file
------------------
* A worker numbers its transmissions 1, 2, ... (`order`, 32 bits, wrapping around; fanin/protocol/loss_recovery.py). The
  switch keeps the highest one that it has seen, and which of the 32 before that one have come.
* An order that has not come once REORDER_THRESHOLD later ones have (RFC 9002, section 6.1.1; RFC 5681, section 3.2) is
  a hole. A contribution that uncovers one is answered by a RECEIPT, so that this worker alone sends again.
* Every contribution gets a RECEIPT while one of these 32 is missing. On such a path results are lost, too, and a
  receipt's bits of rounds have them repeated: with one in RECEIPT_EVERY a slot could wait for many round trips for
  that, and all workers for the slot. A receipt has a thirtieth of a contribution's length.
* One contribution in RECEIPT_EVERY gets a RECEIPT, which measures the path for its worker, queues and all, and no
  peers: results wait for peers, and a packet that was sent twice measures nothing.
* A duplicate gets a RECEIPT while its round is open: nothing of this worker is missing, a peer is late.
* A receipt also has a bit for each slot: whether an odd number of its rounds has closed. Without staleness no round
  closes before its worker has had its say, so that a worker's outstanding item is of the open round or the one before:
  the bit tells whether its result has been sent. So the worker tells a lost result from a peer's lost contribution.
* One contribution has one receipt at most, no longer than itself (or without those bits), and none where an ANSWER goes
  out: a switch never sends more bytes than came in.
* A worker that says order 0 gets no receipts.
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
        return self.received | (1 << REORDER_THRESHOLD - 1) - 1 != ORDER_MASK

    def take(self, order: int) -> bool:
        """A transmission has arrived; whether it uncovers a hole that the worker has not been told of."""
        ahead = (order - self.highest) & ORDER_MASK
        if ahead == 0:
            return False
        if ahead > ORDER_MASK // 2:
            behind = ORDER_MASK + 1 - ahead
            if behind <= TRACKED:
                self.came += not self.received >> (behind - 1) & 1
                self.received |= 1 << (behind - 1)
            return False
        self.sent += ahead
        self.came += 1
        self.received = (self.received << ahead | 1 << (ahead - 1)) & ORDER_MASK if ahead <= TRACKED else 0
        self.highest = order
        newly_due = (1 << min(ahead, TRACKED)) - 1 << (REORDER_THRESHOLD - 1) & ORDER_MASK
        return self.received & newly_due != newly_due
