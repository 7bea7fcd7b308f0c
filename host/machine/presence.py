"""A worker's membership in its job: HELLO, heartbeats, whether the switch and the peers are there, BYE.

Rules of this file, as a table; a phase that is not named ignores what happens.

| phase      | what happens                                             | becomes | reports                   |
|------------|----------------------------------------------------------|---------|---------------------------|
| connecting | WELCOME as long as a full packet                         | member  | Ready                     |
| connecting | silence for connect_timeout_s                            | failed  | SwitchSilent              |
| connecting | a packet of another protocol version, NOTICE of VERSION; | failed  | PacketRefused(VERSION)    |
|            | not with checksums or tags: damaged, or anybody's        |         |                           |
| member     | silence for liveness_timeout_s                           | failed  | SwitchSilent              |
| both       | the members have changed (WELCOME, NOTICE), in a job     |         | MembersChanged            |
|            | that survives losses; the next two are for those that    |         |                           |
|            | do not                                                   |         |                           |
| both       | a peer is lost (WELCOME, NOTICE)                         | failed  | WorkersGone               |
| both       | a peer has left and nothing moves, see `peers_hold_up`   | failed  | WorkersGone               |
| both       | BRANCH_LEFT (WELCOME, NOTICE), and nothing moves         | failed  | PacketRefused(BRANCH_LEFT)|
| both       | NOTICE with any other reason                             | failed  | PacketRefused             |
| both       | leave()                                                  | leaving |                           |
| leaving    | BYE, or NOTICE that this worker is not known (any more)  | left    | Departed                  |
| leaving    | LEAVE_TIMEOUT_S pass                                     | left    | Departed(confirmed=False) |

* Connecting, HELLO is as long as the longest packet of the job and goes out every HELLO_RETRY_S; so a path that does
  not carry such packets shows at once. A member says HELLO once per heartbeat, busy or idle.
* Any legal packet of the job is a sign of life; with keyed tags, one that cannot be a repetition. Silence counts
  from the last one, and only if HEARTBEATS_TO_SILENCE HELLOs went unanswered: a process that was stopped must not take
  its own sleep for silence.
* Leaving, BYE goes out every BYE_RETRY_S. A worker that has failed or left sends nothing.
"""

from __future__ import annotations

import enum
from collections import deque

from fanin.protocol.events import Departed, MembersChanged, PacketRefused, Ready, SwitchSilent, WorkerEvent, WorkersGone
from fanin.protocol.job import (
    BYE_RETRY_S,
    HEARTBEAT_INTERVAL_S,
    HEARTBEATS_TO_SILENCE,
    HELLO_RETRY_S,
    LEAVE_TIMEOUT_S,
    LEFT_GRACE_S,
    LIVENESS_HEARTBEATS,
    JobSpec,
)
from fanin.protocol.wire import Reason


class Phase(enum.Enum):
    """See the table of this file."""

    CONNECTING = enum.auto()
    MEMBER = enum.auto()
    LEAVING = enum.auto()
    LEFT = enum.auto()
    FAILED = enum.auto()


class Presence:
    """Phase, timers and masks of one worker. Events go to the queue that it shares with the machine."""

    def __init__(self, spec: JobSpec, connect_timeout_s: float, events: deque[WorkerEvent]) -> None:
        self.phase = Phase.CONNECTING
        self.hello_sequence = 0
        """Number of the next HELLO."""
        self._hello_sent_at = 0.0
        self._silence_limit_s = connect_timeout_s
        self._protected = spec.checksum or bool(spec.data_key)
        self._liveness_timeout_s = spec.liveness_timeout_s
        self._heartbeat_s = min(HEARTBEAT_INTERVAL_S, spec.liveness_timeout_s / LIVENESS_HEARTBEATS)
        self._events = events
        self._heard_at: float | None = None
        """When the switch was last heard; before that, when the machine started; None before that."""
        self._unanswered = 0
        """HELLOs since the switch was last heard."""
        self._say_at = 0.0
        """When the next HELLO or BYE is due; the first at once."""
        self._leave_by = 0.0
        self._left = 0
        self._left_at = 0.0
        self._branch_left = False
        self._survives_loss = spec.survives_loss
        self._members = spec.full_mask
        self._change = 0

    @property
    def joined(self) -> bool:
        """Whether the job still runs for this worker: connecting or member."""
        return self.phase in (Phase.CONNECTING, Phase.MEMBER)

    # --- what to say, and when ---

    def hello_due(self, now: float) -> bool:
        """Whether a HELLO is to be sent; the first call starts the clock."""
        if self._heard_at is None:
            self._heard_at = self._say_at = now
        return self.joined and now >= self._say_at

    def hello_sent(self, now: float) -> None:
        """HELLO number `hello_sequence` was sent."""
        self._say_at = now + (HELLO_RETRY_S if self.phase is Phase.CONNECTING else self._heartbeat_s)
        self._hello_sent_at = now
        self._unanswered += 1
        self.hello_sequence = (self.hello_sequence + 1) & 0xFFFFFFFF

    def bye_due(self, now: float) -> bool:
        """Whether a BYE is to be sent."""
        return self.phase is Phase.LEAVING and now >= self._say_at

    def bye_sent(self, now: float) -> None:
        """BYE was sent."""
        self._say_at = now + BYE_RETRY_S

    def leave(self, now: float) -> None:
        """Begin to leave; the first BYE is due at once."""
        if self.joined:
            self.phase = Phase.LEAVING
            self._say_at = now
            self._leave_by = now + LEAVE_TIMEOUT_S

    def next_timer(self) -> float | None:
        """When `hello_due`, `bye_due` or `handle_timer` has something to do."""
        if self.phase is Phase.LEAVING:
            return min(self._say_at, self._leave_by)
        if not self.joined or self._heard_at is None:
            return None
        if self._unanswered < HEARTBEATS_TO_SILENCE:  # it cannot count as silent before the next HELLO
            return self._say_at
        return min(self._say_at, self._heard_at + self._silence_limit_s)

    def handle_timer(self, now: float) -> None:
        """Notice silence, and that leaving has taken long enough."""
        if self.phase is Phase.LEAVING and now >= self._leave_by:
            self.phase = Phase.LEFT
            self._events.append(Departed(confirmed=False))
        # A process that was stopped wakes up with the limit long past, and its answers unread: only HELLOs that it has
        # sent since then, and that stay unanswered, show silence.
        elif self.joined and self._heard_at is not None and self._unanswered >= HEARTBEATS_TO_SILENCE:
            silent_s = now - self._heard_at
            if now >= self._heard_at + self._silence_limit_s:
                self._fail(SwitchSilent(silent_s))

    # --- what is heard ---

    def heard(self, now: float) -> None:
        """A legal packet of this job came from the switch."""
        self._heard_at = now
        self._unanswered = 0

    def welcome(self, sequence: int, lost: int, left: int, now: float) -> float | None:
        """WELCOME came. Returns the round trip in seconds if it answers the last HELLO."""
        if self.phase is Phase.CONNECTING:
            self.phase = Phase.MEMBER
            self._silence_limit_s = self._liveness_timeout_s
            self._say_at = now + self._heartbeat_s
            self._events.append(Ready())
        self.peers_gone(lost, left, now)
        # An answer to an earlier HELLO would measure the time since the later one.
        return now - self._hello_sent_at if sequence == (self.hello_sequence - 1) & 0xFFFFFFFF else None

    def peers_gone(self, lost: int, left: int, now: float) -> None:
        """WELCOME or NOTICE names peers that are lost or have left."""
        if not self.joined or self._survives_loss:
            return
        if left and not self._left:  # the first of them starts the grace; every WELCOME repeats the mask
            self._left_at = now
        self._left = left
        if lost:
            self._fail(WorkersGone(lost, left))

    def members_are(self, change: int, members: int, base: int) -> None:
        """WELCOME or NOTICE says who the members are after `change` changes."""
        # Only a higher count is news: packets overtake each other, and WELCOME repeats what a NOTICE has said.
        if self.joined and self._survives_loss and change > self._change:
            gone, come = self._members & ~members, members & ~self._members
            self._change, self._members = change, members
            self._events.append(MembersChanged(change, members, gone, come, base))

    def branch(self, reason: Reason, now: float) -> None:
        """WELCOME or NOTICE: in a tree, a branch is lost, or its workers have left."""
        if reason is Reason.BRANCH_LOST:
            self.refused(reason)
        elif not self._branch_left:
            self._branch_left = True
            self._left_at = now

    def refused(self, reason: Reason) -> None:
        """NOTICE came: the switch will not act on this worker's packets."""
        if self.phase is Phase.LEAVING:  # the echo of BYE was lost, and the switch does not know this worker any more
            self.departed()
        elif self.joined:
            self._fail(PacketRefused(reason))

    def other_version(self) -> None:
        """One side or the other does not understand the protocol version of the other's packets."""
        # Later a peer of another version cannot be the switch; and in a job with checksums or tags, whose version byte
        # nothing has protected yet, the packet may be damaged, or anybody's.
        if self.phase is Phase.CONNECTING and not self._protected:
            self._fail(PacketRefused(Reason.VERSION))

    def departed(self) -> None:
        """The switch knows that this worker has left."""
        if self.phase is Phase.LEAVING:
            self.phase = Phase.LEFT
            self._events.append(Departed())

    # --- peers that have left ---

    def left_deadline(self, moved_at: float) -> float | None:
        """When reductions that last moved at `moved_at` will have waited long enough for peers that have left."""
        someone_left = self._left or self._branch_left
        return max(moved_at, self._left_at) + LEFT_GRACE_S if self.joined and someone_left else None

    def peers_hold_up(self, moved_at: float, now: float) -> None:
        """Reductions wait, and LEFT_MIN_TIMEOUTS retransmissions in a row brought nothing: for whom?"""
        deadline = self.left_deadline(moved_at)
        if deadline is not None and now >= deadline:
            self._fail(WorkersGone(0, self._left) if self._left else PacketRefused(Reason.BRANCH_LEFT))

    def _fail(self, event: WorkerEvent) -> None:
        self.phase = Phase.FAILED
        self._events.append(event)
