"""How many contributions of a flow may be under way, and how fast they go out. Twin of native/machine/congestion.hpp.

Rules of this file
------------------
* The pool bounds how many items wait for their results; this window, never larger, bounds how many may load the path.
  It counts packets in flight (RFC 6675's pipe): what the switch is known to have, what is lost and what is overdue
  takes no room in it, so a window whose items wait for a peer's repetition lets new ones out: until WINDOWS_WAITING
  windows wait for results, since where peers lose that much, more would add to it. Only items that go out for the first
  time need room, and of those the oldest unfinished one needs none: windows full of different items would wait for
  each other.
* A job whose packets are longer than any network's frames runs within one machine, or over TCP (ZeroMQ), which has a
  window of its own: there is no link to share, the window is the pool, nothing is paced, and contributions carry no
  orders.
* It starts with INITIAL_WINDOW (RFC 6928) or, if that is more, INITIAL_WINDOW_BYTES: ten small packets are no
  load, and a short job would pay for the difference in round trips. But it starts with no more than FIRST_SHARE of the
  pool where packets are as long as that: a job with many shards has a part of a pool for each, and the first windows to
  all of them meet in one link, as those of all workers do in each shard's. It grows by one for every result up to a
  threshold (slow start), and then by GROWTH for every window of results (RFC 9438, section 4.3: with one, as RFC 5681
  has it for windows that are halved, workers took more than CUBIC flows beside them). It grows only where it was full
  (RFC 7661: what was not used is not validated), and neither while one in DOUBTS_PER_WINDOW is overdue nor for what was
  under way when it was cut.
* A window that lies idle is kept: what follows is paced (RFC 7661, section 4.4), and no burst.
* Loss is the signal: a contribution that the switch says has not arrived, a result that had to be asked for. Not
  everything that is late: a round trip contains the lateness of peers, so delay alone changes nothing, and a
  transmission that the switch has is not lost.
* A loss cuts the window to DECREASE of it (RFC 9438, section 4.6), or to the share of it that does not wait in queues,
  shortest / recent round trip, if that is more: less would leave the link idle (TCP Westwood: Mascolo et al.,
  MobiCom 2001). At most once per round trip: losses of what had been sent before the cut belong to it (RFC 6582). A
  result that had to be asked for was that of the transmission before the question, so an outage is one loss, however
  many round trips its repair takes.
* Links lose frames also where they are not full. A loss is taken for that if next to nothing of this flow waits in
  queues: window * (1 - shortest / recent round trip) < QUEUED_PACKETS (the rule of TCP Veno: Fu and Liew, IEEE JSAC
  21(2), 2003); then nothing is cut. The recent round trip is the shortest one of this window of packets and the one
  before, since a full queue makes all of them long, and a peer's repetition some. The shortest one is taken for at
  most LONGEST_UNQUEUED_S: beside flows that keep a queue full all of them are long, and no loss would count. Where
  peers make all of them long, the loss counts: that errs on the side of the others on the link.
* A mark (fanin/protocol/ecn.py), on a result or told by a receipt, cuts the window to DECREASE_MARKED of it, at most
  once per round trip as well (RFC 3168 and RFC 8511). Nothing was lost, and there is no doubt: a queue is full. Not as
  DCTCP does (RFC 8257): that is for networks where everybody does, and takes the link from flows that do not.
* Where SILENT_TIMEOUTS timers in a row bring neither a result nor a receipt, the path may be gone: MIN_WINDOW.
* Pacing: one packet every round trip / (gain * window), on average, with PACING_GAIN_SLOW_START so that the window may
  double per round trip, and PACING_GAIN otherwise. A burst is what goes out in BURST_S at that rate, at least
  BURST_PACKETS: the kernel takes a burst as one train. The round trip is the smoothed one, but no longer than the
  path's, which HELLO and the receipts of losses measure without peers: a peer that was late must not slow down what
  comes after. (Receipts by rota measure it, too, but for the timer alone: they come while a queue fills, and following
  them the pace would fade to what the path is without queues, in bursts that overflow short ones.)
  Round trips below MIN_PACED_ROUND_TRIP_S are not paced: no timer is that fine, and no queue that is worth it that
  short.
  Repetitions are not paced either, but counted; they hold up what follows for one round trip at most, since the repair
  of a long outage sends many of them while the window is short.
  Passes are not paced: they are next to nothing, and what comes for them comes at the pace of whoever contributes, to
  whom all of them are needed. (Paced, they went out in bursts of a third of a train where four shards share a link of
  1 Gbit/s, each of them a timer, and results came back in as many: an all_gather took 328 ms of processor time instead
  of 260.)
"""

from __future__ import annotations

from fanin.protocol.pace import (
    BURST_PACKETS,
    BURST_S,
    DECREASE,
    DECREASE_MARKED,
    DOUBTS_PER_WINDOW,
    FIRST_SHARE,
    GROWTH,
    INITIAL_WINDOW,
    INITIAL_WINDOW_BYTES,
    LONGEST_FRAME_BYTES,
    LONGEST_UNQUEUED_S,
    MAX_PACED_ROUND_TRIP_S,
    MIN_PACED_ROUND_TRIP_S,
    MIN_WINDOW,
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
        self.shares = packet_bytes <= LONGEST_FRAME_BYTES
        """Whether the path may have links that others use."""
        initial = max(INITIAL_WINDOW, float(INITIAL_WINDOW_BYTES // packet_bytes))
        if initial == INITIAL_WINDOW:
            initial = min(initial, max(FIRST_SHARE * self._pool, 2.0 * MIN_WINDOW))
        self.window = min(initial, self._pool) if self.shares else self._pool
        self._threshold = self._pool
        """Slow start up to here."""
        self._recover = 0
        """Losses of transmissions with lower orders belong to the last cut."""
        self.limited = False
        """Whether more would have gone out, had the window or the pace allowed it."""
        self.cuts = 0
        self._silent = 0
        """Timers since anything was heard of a transmission."""
        self._shortest_s = self._shortest_before_s = float("inf")
        """Shortest round trips: since `_shortest_since`, and in the SHORTEST_FOR_S or more before that."""
        self._shortest_since = 0.0
        self._recent_s = self._recent_before_s = float("inf")
        """Shortest of this window of packets, and of the one before."""
        self._window_ends = 0
        """The order with whose result this window of packets is over."""
        self.path_s = 0.0
        """The longest round trip of the path, fading."""
        self._drained_at = 0.0
        """When all that went out will have left at the rate."""
        self._held_until = 0.0
        """After a burst: when the next may begin."""

    # --- the window ---

    def has_room(self, in_flight: int, waiting: int) -> bool:
        """Whether one more item may go out while so many are in flight, and so many wait for their results."""
        return in_flight < int(self.window) and waiting < int(WINDOWS_WAITING * self.window)

    def round_trip(self, round_trip_s: float, now: float) -> None:
        """A round trip was measured, with or without the lateness of peers."""
        if now - self._shortest_since >= SHORTEST_FOR_S:
            self._shortest_before_s, self._shortest_s = self._shortest_s, round_trip_s
            self._shortest_since = now
        self._shortest_s = min(self._shortest_s, round_trip_s)
        self._recent_s = min(self._recent_s, round_trip_s)

    def path_round_trip(self, round_trip_s: float, now: float) -> None:
        """A round trip was measured that no peer has a part in."""
        self.round_trip(round_trip_s, now)
        self.path_s = max(min(round_trip_s, MAX_PACED_ROUND_TRIP_S), PATH_DECAY * self.path_s)

    def heard(self) -> None:
        """The switch has said something about a transmission: the path is there."""
        self._silent = 0

    def result(self, order: int, next_order: int, overdue: int) -> None:
        """A result came for that transmission; how many others are overdue."""
        self._silent = 0
        if order >= self._window_ends:  # sent after the window began: a window of packets is over
            self._recent_before_s, self._recent_s = self._recent_s, float("inf")
            self._window_ends = next_order
        if DOUBTS_PER_WINDOW * overdue > self.window or order < self._recover or not self.limited:
            return
        if self.window < self._threshold:
            self.window = min(self.window + 1.0, self._pool)
        else:
            self.window = min(self.window + GROWTH / self.window, self._pool)

    def lost(self, order: int, next_order: int) -> None:
        """Take in that a transmission, or its result, was lost."""
        # Sent before the last cut, it belongs to the congestion that was answered by it; lost with empty queues, it was
        # lost to noise.
        if not self.shares or order < self._recover or not self._queues():
            return
        self._recover = next_order
        unqueued = self._unqueued_s / min(self._recent_s, self._recent_before_s)
        self._threshold = self.window = max(self.window * max(DECREASE, unqueued), min(MIN_WINDOW, self._pool))
        self.cuts += 1

    def marked(self, order: int, next_order: int) -> None:
        """Take in that a transmission, or its result, was marked by a congested queue."""
        if not self.shares or order < self._recover:
            return
        self._recover = next_order
        self._threshold = self.window = max(self.window * DECREASE_MARKED, min(MIN_WINDOW, self._pool))
        self.cuts += 1

    def expired(self, arrived: bool, next_order: int) -> None:
        """The timer expired; whether the switch is known to have what it had been waiting for."""
        if arrived or not self.shares:
            return
        self._silent += 1
        if self._silent < SILENT_TIMEOUTS:
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
        recent_s = min(self._recent_s, self._recent_before_s)
        return recent_s < float("inf") and self.window * (recent_s - self._unqueued_s) > QUEUED_PACKETS * recent_s

    # --- pacing ---

    def paced_round_trip(self, smoothed_s: float) -> float:
        """The round trip in which a window goes out."""
        return min(smoothed_s, self.path_s) if self.shares else 0.0

    def may_send(self, round_trip_s: float, now: float) -> bool:
        """Whether the pace allows a packet now; what is sent is told to `sent`. Otherwise see `held_until`."""
        return round_trip_s < MIN_PACED_ROUND_TRIP_S or self._held_until <= now

    @property
    def held_until(self) -> float:
        """When the next burst may begin."""
        return self._held_until

    def sent(self, round_trip_s: float, now: float) -> None:
        """A contribution went out, in a window per that round trip."""
        if round_trip_s < MIN_PACED_ROUND_TRIP_S:
            return
        gain = PACING_GAIN_SLOW_START if self.window < self._threshold else PACING_GAIN
        interval_s = round_trip_s / (gain * self.window)
        self._drained_at = min(max(self._drained_at, now) + interval_s, now + round_trip_s)
        if self._drained_at - now >= max(BURST_S, BURST_PACKETS * interval_s):
            self._held_until = self._drained_at
