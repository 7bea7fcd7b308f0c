"""How many contributions of a flow may be in flight, and how fast they go out. Twin of native/machine/congestion.hpp.

The rules are R-CONGESTION in docs/protocol.md. The pool bounds how many items wait for their results; this window,
never larger, bounds how many may load the path. Losses and marks cut it. Lateness does not, since a round trip contains
the lateness of peers, and a transmission that the switch has is not lost. Where peers make all round trips long, a loss
cuts the window all the same, in favour of the other flows on the link.
"""

from __future__ import annotations

from fanin.protocol.pace import (
    BURST_PACKETS,
    BURST_S,
    DECREASE,
    DECREASE_MARKED,
    FIRST_SHARE,
    GROWTH,
    INITIAL_WINDOW,
    INITIAL_WINDOW_BYTES,
    LONGEST_FRAME_BYTES,
    LONGEST_UNQUEUED_S,
    MAX_PACED_ROUND_TRIP_S,
    MIN_PACED_ROUND_TRIP_S,
    MIN_WINDOW,
    OVERDUE_PER_WINDOW,
    PACING_GAIN,
    PACING_GAIN_SLOW_START,
    PATH_DECAY,
    QUEUED_PACKETS,
    SHORTEST_FOR_S,
    SILENT_TIMEOUTS,
    WINDOWS_WAITING,
)


class Congestion:
    """Window and pacing of one flow. Times in seconds of one monotonic clock, the window in packets."""

    def __init__(self, slots: int, packet_bytes: int) -> None:
        """`packet_bytes` is the length of the job's longest packets."""
        self._pool = float(slots)
        # R-CONGESTION-1: longer packets are loopback's, or go over TCP, which has a window of its own.
        self.shares = packet_bytes <= LONGEST_FRAME_BYTES
        """Whether the path may have links that others use."""
        # R-CONGESTION-4: ten small packets are no load, and a short job would pay for them in round trips.
        initial = max(INITIAL_WINDOW, float(INITIAL_WINDOW_BYTES // packet_bytes))
        if initial == INITIAL_WINDOW:  # of a job with many shards all first windows meet in one link
            initial = min(initial, max(FIRST_SHARE * self._pool, 2.0 * MIN_WINDOW))
        self.window = min(initial, self._pool) if self.shares else self._pool
        self._threshold = self._pool
        """Window up to which it grows by slow start."""
        self._recover = 0
        """Losses of transmissions with lower orders belong to the last cut."""
        self.limited = False
        """Whether more would have gone out, had the window or the pace allowed it."""
        self.cuts = 0
        self._silent = 0
        """Timeouts since anything was heard of a transmission."""
        self._shortest_s = self._shortest_before_s = float("inf")
        """Shortest round trips: since `_shortest_since`, and in the SHORTEST_FOR_S or more before that."""
        self._shortest_since = 0.0
        self._recent_s = self._recent_before_s = float("inf")
        """Shortest round trips of this window of packets, and of the one before."""
        self._window_ends = 0
        """The order with whose result this window of packets is over."""
        self.path_s = 0.0
        """Longest round trip of the path, which decays with every measurement."""
        self._drained_at = 0.0
        """When all that was sent would have left at the paced rate."""
        self._held_until = 0.0
        """After a burst: when the next may begin."""

    # --- the window ---

    def has_room(self, in_flight: int, waiting: int) -> bool:
        """Whether one more item may go out while so many are in flight, and so many wait for their results."""
        # R-CONGESTION-2: where peers lose so much that items wait, more of them would add to it.
        return in_flight < int(self.window) and waiting < int(WINDOWS_WAITING * self.window)

    def round_trip(self, round_trip_s: float, now: float) -> None:
        """Take in a round trip, with or without the lateness of peers."""
        if now - self._shortest_since >= SHORTEST_FOR_S:  # R-CONGESTION-9: paths change
            self._shortest_before_s, self._shortest_s = self._shortest_s, round_trip_s
            self._shortest_since = now
        self._shortest_s = min(self._shortest_s, round_trip_s)
        self._recent_s = min(self._recent_s, round_trip_s)

    def path_round_trip(self, round_trip_s: float, now: float) -> None:
        """Take in a round trip of the path alone, in which no peer has a part."""
        self.round_trip(round_trip_s, now)
        self.path_s = max(min(round_trip_s, MAX_PACED_ROUND_TRIP_S), PATH_DECAY * self.path_s)

    def heard(self) -> None:
        """Note that the switch has answered for a transmission, so the path works."""
        self._silent = 0

    def result(self, order: int, next_order: int, overdue: int) -> None:
        """Take in the result of that transmission; `overdue`: how many others have overdue results."""
        self._silent = 0
        if order >= self._window_ends:  # R-CONGESTION-9: sent after the window began, so a window of packets is over
            self._recent_before_s, self._recent_s = self._recent_s, float("inf")
            self._window_ends = next_order
        # R-CONGESTION-6: what was not used is not validated (RFC 7661), and what was sent before a cut says nothing of
        # it.
        if OVERDUE_PER_WINDOW * overdue > self.window or order < self._recover or not self.limited:
            return
        if self.window < self._threshold:  # R-CONGESTION-5: slow start
            self.window = min(self.window + 1.0, self._pool)
        else:
            self.window = min(self.window + GROWTH / self.window, self._pool)

    def lost(self, order: int, next_order: int) -> None:
        """Take in that a transmission, or its result, was lost."""
        # R-CONGESTION-8, at most one cut per round trip: what was sent before the last cut met the queue that this cut
        # answers. R-CONGESTION-9: lost with empty queues, it was lost by chance.
        if not self.shares or order < self._recover or not self._queues():
            return
        self._recover = next_order
        # R-CONGESTION-7: less than what does not wait in queues would leave the link idle.
        unqueued = self._unqueued_s / min(self._recent_s, self._recent_before_s)
        self._threshold = self.window = max(self.window * max(DECREASE, unqueued), min(MIN_WINDOW, self._pool))
        self.cuts += 1

    def marked(self, order: int, next_order: int) -> None:
        """Take in that a transmission, or its result, was marked by a congested queue."""
        if not self.shares or order < self._recover:  # R-CONGESTION-8
            return
        self._recover = next_order
        # R-CONGESTION-10: a queue is full, and nothing was lost yet.
        self._threshold = self.window = max(self.window * DECREASE_MARKED, min(MIN_WINDOW, self._pool))
        self.cuts += 1

    def expired(self, arrived: bool, next_order: int) -> None:
        """Take in that the timer expired; `arrived`: the switch is known to have what was waited for."""
        if arrived or not self.shares:
            return
        self._silent += 1
        if self._silent < SILENT_TIMEOUTS:  # R-CONGESTION-11: fewer may be a peer's lateness
            return
        if self._silent == SILENT_TIMEOUTS:  # once: each later timer would halve the threshold again
            self._threshold = max(self.window / 2.0, min(MIN_WINDOW, self._pool))
            self.cuts += 1
        self._recover = next_order
        self.window = min(MIN_WINDOW, self._pool)

    @property
    def _unqueued_s(self) -> float:
        """The round trip of the path without queues, as far as it is known."""
        return min(self._shortest_s, self._shortest_before_s, LONGEST_UNQUEUED_S)

    def _queues(self) -> bool:
        """Whether this flow's packets wait in queues, as far as round trips tell."""
        # R-CONGESTION-9: of a full queue every packet of a window has a long round trip, of a late peer only some.
        recent_s = min(self._recent_s, self._recent_before_s)
        return recent_s < float("inf") and self.window * (recent_s - self._unqueued_s) > QUEUED_PACKETS * recent_s

    # --- pacing ---

    def paced_round_trip(self, smoothed_s: float) -> float:
        """The round trip over which a window is paced, in seconds; 0: no pacing."""
        # R-CONGESTION-12: a peer that was late must not slow down what comes after.
        return min(smoothed_s, self.path_s) if self.shares else 0.0

    def may_send(self, round_trip_s: float, now: float) -> bool:
        """Whether the pace allows a packet now, which is then reported to `sent`; otherwise it does at `held_until`."""
        return round_trip_s < MIN_PACED_ROUND_TRIP_S or self._held_until <= now

    @property
    def held_until(self) -> float:
        """When the next burst may begin."""
        return self._held_until

    def sent(self, round_trip_s: float, now: float) -> None:
        """Note that a contribution went out, at a pace of one window per round trip."""
        if round_trip_s < MIN_PACED_ROUND_TRIP_S:  # R-CONGESTION-12: no timer is that fine
            return
        gain = PACING_GAIN_SLOW_START if self.window < self._threshold else PACING_GAIN
        interval_s = round_trip_s / (gain * self.window)
        # R-CONGESTION-13: the repair of a long outage sends many while the window is short.
        self._drained_at = min(max(self._drained_at, now) + interval_s, now + round_trip_s)
        # The kernel takes a burst as one train.
        if self._drained_at - now >= max(BURST_S, BURST_PACKETS * interval_s):
            self._held_until = self._drained_at
