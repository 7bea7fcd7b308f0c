"""The retransmission timer: RFC 6298's estimator, with bounds that fit aggregation.

A round trip here lasts until the slowest worker has contributed, so it measures the peers, too. It must not measure how
long they waited before they sent something again (fanin/protocol/loss_recovery.py says which round trips count).
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.protocol import pace

ALPHA = 1 / 8
"""Weight of a new sample in the smoothed round trip (RFC 6298, section 2.3)."""
BETA = 1 / 4
"""Weight of a new sample in its variation (RFC 6298, section 2.3)."""
VARIATION_FACTOR = 4
"""K of RFC 6298, section 2.2."""
GRANULARITY_S = 0.001
"""G of RFC 6298: what a sleeping thread's wake-up can be off by."""
INITIAL_TIMEOUT_S = 0.1
"""Before the first sample. RFC 6298 has 1 s for the Internet; a switch is in the same building."""
FIRST_TIMEOUT_S = 0.03
"""Least timeout until something has come for a contribution: HELLO has measured the path without the queues that the
first windows of all flows fill at once. If it were longer, a first window that is lost in a queue would cost more."""
MIN_TIMEOUT_S = 0.01
"""RFC 6298 has 1 s; Linux TCP 0.2 s. Gap detection finds most losses, so only a tail loss waits for this."""
PATHS_PER_TIMEOUT = 2.0
"""Round trips of the path that a timeout lasts at least. Queues grow faster than a smoothed round trip follows; and it
does not follow at all while every item is sent twice, since such items measure nothing (Karn)."""
MAX_TIMEOUT_S = 1.0
"""A worker that waits for a slow peer asks this often and no oftener (RFC 6298, section 2.5, allows 60 s)."""
REORDER_THRESHOLD = 3
"""A result overtaken by that many later ones is taken for lost (RFC 9002, section 6.1.1; RFC 5681, section 3.2)."""
THIN_REORDER_THRESHOLD = 1
"""The threshold where so few packets are in flight that three cannot overtake: in a short transfer, or at its end. It
repeats at most REORDER_THRESHOLD packets needlessly. Early retransmit (RFC 5827) counts almost alike.
"""
RECEIPT_EVERY = 16
"""One transmission in so many gets a receipt although nothing is missing, which measures the round trip of the path,
queues included, and shows what has arrived. A receipt of 36 bytes per 16 contributions is a six-hundredth of theirs."""
NO_RECEIPTS_AFTER = 4 * RECEIPT_EVERY
"""Transmissions without any receipt after which the switch is taken for one that gives none (hardware)."""
REORDER_SHARE = 1 / 4
"""Share of a round trip: a packet that was sent that much earlier than one that has arrived is lost (RFC 8985, section
6.2).
"""
OVERDUE_SHARE = 1 / 4
"""Share of a round trip by which a result may be later than one round trip before its item is sent again. If a peer's
contribution was lost, its repetition takes one round trip.
"""
MORE_WAIT, LESS_WAIT, MAX_WAIT = 0.5, 0.25, 3.0
"""Round trips by which a needless repetition prolongs that wait, by which a needed one shortens it, and the most that
it comes to (RFC 8985, section 6.2, adapts its reordering window by the same evidence)."""
TRACKED = 32
"""Orders before the highest one that a receipt tells apart."""
ANSWERS_IN_A_ROW = 3
"""Answers to repetitions, with no other result in between, after which it was a burst of results that was lost."""
NEXT_RESENT = 2
"""Number of items of a burst that are sent again at once when one more has turned out to be missing, as in slow start.
"""
LINEAR_TIMEOUTS = 6
"""Timeouts in a row that stay at the same length while few items are outstanding. One packet per timeout is no load,
but doubling would make one loss at the end of a transfer cost more than all losses before. Linux TCP has the same rule
and number for thin streams (Documentation/networking/tcp-thin.rst; TCP_THIN_LINEAR_RETRIES). After that many timeouts
in a row the cause is a late peer, not a loss, so doubling begins."""


def measures(order: int) -> bool:
    """Whether that transmission has a receipt in any case: one late in a first window, and then one in so many."""
    return order % RECEIPT_EVERY == RECEIPT_EVERY // 2


@dataclass(slots=True)
class RetransmissionTimer:
    """Smoothed round trip, its variation and the resulting timeout, all in seconds."""

    smoothed_s: float = 0.0
    variation_s: float = 0.0
    path_s: float = 0.0
    """Longest round trip of the path alone, in which no peer has a part, decaying; 0: not known."""
    backoff: int = 0
    """How many times the timeout has been doubled since the last progress."""
    begun: bool = False
    """Whether anything has come for a contribution, or none for a whole timeout."""
    tells_rounds: bool = False
    """Whether receipts say which rounds are over."""

    def sample(self, round_trip_s: float, *, idle: bool = False) -> None:
        """Take in a round trip of a packet that was sent once (Karn; RFC 6298, section 3); undoes no doubling.

        `idle`: of HELLO, which says nothing of the queues that contributions make.
        """
        self.begun = self.begun or not idle
        if self.smoothed_s == 0.0:  # RFC 6298, section 2.2
            self.smoothed_s, self.variation_s = round_trip_s, round_trip_s / 2
        else:
            self.variation_s += BETA * (abs(self.smoothed_s - round_trip_s) - self.variation_s)
            self.smoothed_s += ALPHA * (round_trip_s - self.smoothed_s)

    def path_round_trip(self, round_trip_s: float) -> None:
        """Take in a round trip of the path alone, in which no peer has a part."""
        self.path_s = max(min(round_trip_s, pace.MAX_PACED_ROUND_TRIP_S), pace.PATH_DECAY * self.path_s)

    def expired(self) -> None:
        """Double the timeout (RFC 6298, section 5.5)."""
        if self.timeout_s() < MAX_TIMEOUT_S:  # R-RECOVERY-12: a bound on the doubling keeps it from overflowing
            self.backoff += 1

    def progressed(self) -> None:
        """Something new arrived: silence is over, the doubling is undone."""
        self.backoff = 0
        self.begun = True

    def overdue_s(self, more: float) -> float:
        """How long a result may be overdue before its item is sent again: R-RECOVERY-6. `more`: round trips on top."""
        if self.smoothed_s == 0.0:
            return self.timeout_s()
        if self.tells_rounds:  # waiting for a receipt is seldom in vain: as long as a timeout of the path
            return min((PATHS_PER_TIMEOUT + more) * max(self.path_s, self.smoothed_s), MAX_TIMEOUT_S)
        wait_s = self.smoothed_s + max(self.smoothed_s * OVERDUE_SHARE, 2 * self.variation_s)
        trip_s = self.smoothed_s
        # R-RECOVERY-6: round trips that peers have a part in would drive each other's waits up.
        if self.path_s > 0.0:
            wait_s = min(wait_s, self.path_s + self.path_s * OVERDUE_SHARE)
            trip_s = min(trip_s, self.path_s)
        return min(wait_s + more * trip_s, MAX_TIMEOUT_S)

    def timeout_s(self, *, thin: bool = False) -> float:
        """How long to wait for a result before the contribution is sent again: R-RECOVERY-13. `thin`: R-RECOVERY-14."""
        if self.smoothed_s == 0.0:
            timeout_s = INITIAL_TIMEOUT_S
        # R-RECOVERY-13: timeouts that grew with the repairs of peers made the end of a reduction over shards longer
        # than all before it.
        elif self.tells_rounds and self.path_s > 0.0:
            timeout_s = 0.0 if thin else self.smoothed_s
        else:
            timeout_s = self.smoothed_s + max(GRANULARITY_S, VARIATION_FACTOR * self.variation_s)
        timeout_s = max(timeout_s, PATHS_PER_TIMEOUT * self.path_s)
        if not self.begun:  # HELLO has measured the path without the queues that first windows make
            timeout_s = max(timeout_s, FIRST_TIMEOUT_S)
        return min(max(timeout_s, MIN_TIMEOUT_S) * 2.0**self.backoff, MAX_TIMEOUT_S)
