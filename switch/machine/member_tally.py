"""Counts of a switch for each worker of a job: losses each way, and time that rounds waited for it.

Twin of native/machine/member_tally.hpp. `fanin stats`, `fanin top` and metrics show them (docs/watching.md).

Rules of this file
------------------
* A worker numbers its transmissions (receipts.py). `transmissions` is the highest number seen, `lost_up` how many of
  them never came, so that losses on the way to the switch are counted without any report of the worker.
* A worker sends a contribution again when it misses the result. If the round has closed, its result was lost or is late
  on the way down: `asked_again`. If not, a peer is late: `repeated`.
* `waited_us` is the time from the last but one contribution that a round waits for to the last one, counted for the
  worker of the last one. Several slots may wait at the same time: the part of an interval that an earlier one has
  covered is not counted again, so that the sum never exceeds the time that has passed.
* A turnaround is the time from the multicast of a result to the worker's next contribution to that slot: the round trip
  of the path, queues and pace included. It counts only while the worker sends without a pause: a worker whose pause was
  longer than half of the turnaround was computing, and what it sends next answers results from before the pause.
  `turnaround_<n>`, n a power of two, counts those below n microseconds and not below n / 2.
* At a leaf of a tree the last contribution is the one that makes the round go up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fanin.switch.machine.receipts import Arrivals  # which imports numpy

TURNAROUND = "turnaround_"
TURNAROUND_BUCKETS = 25
"""The last one has everything from 8.4 s on."""
NEVER_S = float("-inf")


@dataclass(slots=True)
class SlotTimes:
    """Times of one slot, in seconds."""

    closed_s: float = NEVER_S
    """When its last round closed."""
    arrived_s: float = NEVER_S
    """When the last contribution to the open round came."""


def _no_turnarounds() -> list[int]:
    return [0] * TURNAROUND_BUCKETS


@dataclass(slots=True)
class MemberTally:
    """Counts of one worker, all of which only grow."""

    contributions: int = 0
    """Accepted contributions and passes."""
    bytes_in: int = 0
    """Bytes of its datagrams with contributions, repetitions included."""
    asked_again: int = 0
    repeated: int = 0
    marks: int = 0
    """Datagrams with contributions that met congestion (fanin/protocol/ecn.py)."""
    last: int = 0
    """Rounds that it was the last to contribute to."""
    _waited_s: float = 0.0
    _waited_until_s: float = NEVER_S
    """Time before this is not counted for this worker: it is counted already."""
    _spoke_s: float = NEVER_S
    _burst_s: float = NEVER_S
    """Start of the burst: the worker has sent without a pause since then."""
    _turnarounds: list[int] = field(default_factory=_no_turnarounds)

    def accepted(self, slot: SlotTimes, now: float, *, completes: bool) -> None:
        """Note a contribution to an open round, the last one that it waits for if `completes`."""
        self._turned_around(slot, now)
        if not completes:
            slot.arrived_s = now
            return
        self.last += 1
        since_s = max(slot.arrived_s, self._waited_until_s)
        if slot.arrived_s != NEVER_S and now > since_s:
            self._waited_s += now - since_s
        self._waited_until_s = now
        slot.arrived_s = NEVER_S

    def spoke(self, now: float) -> None:
        """Note the time at which a packet of this worker was handled."""
        self._spoke_s = now

    def as_dict(self, arrivals: Arrivals) -> dict[str, int]:
        """Counts by name; turnaround buckets only if they are not empty."""
        counts = {
            "contributions": self.contributions,
            "bytes_in": self.bytes_in,
            "transmissions": arrivals.sent,
            "lost_up": arrivals.sent - arrivals.came,
            "asked_again": self.asked_again,
            "repeated": self.repeated,
            "marks": self.marks,
            "last": self.last,
            "waited_us": int(self._waited_s * 1e6),
        }
        found = {f"{TURNAROUND}{1 << bucket}": count for bucket, count in enumerate(self._turnarounds) if count}
        return counts | found

    def _turned_around(self, slot: SlotTimes, now: float) -> None:
        if slot.closed_s == NEVER_S:
            return
        turnaround_s = now - slot.closed_s
        if 2 * (now - self._spoke_s) >= turnaround_s:  # it was silent for that long: it computed
            self._burst_s = now
        if slot.closed_s >= self._burst_s:
            microseconds = int(turnaround_s * 1e6)
            self._turnarounds[min(microseconds.bit_length(), TURNAROUND_BUCKETS - 1)] += 1


def add_up(total: dict[str, int], more: dict[str, int]) -> None:
    """Add one flow's counts to those of others; `waited_us` is the longest, since all flows wait at the same time."""
    for name, count in more.items():
        before = total.get(name, 0)
        total[name] = max(before, count) if name == "waited_us" else before + count
