"""A worker's membership in its job: HELLO, heartbeats, whether the switch and the peers are there, BYE.

The table has the rules R-MEMBER of docs/protocol.md, phase by phase; a phase that is not named ignores what happens.

| phase      | what happens                                             | becomes | reports                   |
|------------|----------------------------------------------------------|---------|---------------------------|
| connecting | WELCOME as long as a full packet                         | member  | Ready                     |
| connecting | silence for connect_timeout_s                            | failed  | SwitchSilent              |
| connecting | a packet of another protocol version, NOTICE of VERSION; | failed  | PacketRefused(VERSION)    |
|            | not with checksums or tags: damaged, or anybody's        |         |                           |
| member     | silence for liveness_timeout_s                           | failed  | SwitchSilent              |
| member     | long packets alone are lost for liveness_timeout_s, see  | failed  | PathNarrowed              |
|            | fanin/protocol/path_watch.py                             |         |                           |
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

When HELLO and BYE go out, and what counts as silence, is in fanin/protocol/keepalive.py.
"""

from __future__ import annotations

from collections import deque

from fanin.protocol.events import (
    Departed,
    MembersChanged,
    PacketRefused,
    PathNarrowed,
    Ready,
    SwitchSilent,
    WorkerEvent,
    WorkersGone,
)
from fanin.protocol.job import LEFT_GRACE_S, JobSpec
from fanin.protocol.keepalive import Keepalive, Phase
from fanin.protocol.wire import Reason


class Presence(Keepalive):
    """Phase, timers and masks of one worker. Events go to the queue that it shares with the machine."""

    def __init__(self, spec: JobSpec, connect_timeout_s: float, events: deque[WorkerEvent]) -> None:
        super().__init__(spec, Phase.CONNECTING, connect_timeout_s)
        self._heartbeat, self._heartbeat_at = 0, 0.0
        """Number and time of the last HELLO that was a heartbeat, not a question of the path."""
        self._protected = spec.checksum or bool(spec.data_key)
        self._events = events
        self._left = 0
        self._left_at = 0.0
        self._branch_left = False
        self._survives_loss = spec.survives_loss
        self._members = spec.full_mask
        self._change = 0

    def hello_due(self, now: float) -> bool:
        """Whether a HELLO is to be sent; the first call starts the clock."""
        self.start(now)
        return super().hello_due(now)

    def hello_sent(self, now: float) -> None:
        """HELLO number `hello_sequence` was sent."""
        self._heartbeat, self._heartbeat_at = self.hello_sequence, now
        super().hello_sent(now)

    def handle_timer(self, now: float) -> None:
        """Notice silence, and that leaving has taken long enough."""
        if self._left_unconfirmed(now):  # R-MEMBER-4
            self.phase = Phase.LEFT
            self._events.append(Departed(confirmed=False))
        elif (silent_s := self._silent_s(now)) is not None:  # R-MEMBER-9
            self._fail(SwitchSilent(silent_s))

    # --- what is heard ---

    def welcome(self, sequence: int, lost: int, left: int, now: float) -> float | None:
        """WELCOME came. Returns the round trip in seconds if it answers the last heartbeat."""
        if self._welcomed(now):  # R-MEMBER-1
            self._events.append(Ready())
        self.peers_gone(lost, left, now)
        # An answer to an earlier HELLO would measure the time since the later one.
        return now - self._heartbeat_at if sequence == self._heartbeat else None

    def peers_gone(self, lost: int, left: int, now: float) -> None:
        """WELCOME or NOTICE names peers that are lost or have left."""
        if not self.joined or self._survives_loss:  # there the controller evicts lost peers, and rounds close
            return
        if left and not self._left:  # R-MEMBER-5: the first of them starts the grace; every WELCOME repeats the mask
            self._left_at = now
        self._left = left
        if lost:  # R-MEMBER-6: no round closes without it
            self._fail(WorkersGone(lost, left))

    def missing(self, workers: int) -> None:
        """A round that needed all workers has closed without these: the controller has taken them out of the job."""
        if self.joined:  # R-RESULT-10
            self._fail(WorkersGone(workers, self._left))

    def members_are(self, change: int, members: int, base: int) -> None:
        """WELCOME or NOTICE says who the members are after `change` changes."""
        # R-MEMBER-12, only a higher count is news: packets overtake each other, and WELCOME repeats what a NOTICE has
        # said.
        if self.joined and self._survives_loss and change > self._change:
            gone, come = self._members & ~members, members & ~self._members
            self._change, self._members = change, members
            self._events.append(MembersChanged(change, members, gone, come, base))

    def path_narrowed(self, needed_bytes: int, passes_bytes: int) -> None:
        """Packets as long as this worker needs do not pass any more."""
        self._fail(PathNarrowed(needed_bytes, passes_bytes))

    def branch(self, reason: Reason, now: float) -> None:
        """WELCOME or NOTICE: in a tree, a branch is lost, or its workers have left."""
        if reason is Reason.BRANCH_LOST:  # R-LEAF-10: final
            self.refused(reason)
        elif not self._branch_left:  # R-MEMBER-5, of a branch: the first word starts the grace
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
        """When reductions that last moved at `moved_at` have waited too long for peers that left; None: none has."""
        someone_left = self._left or self._branch_left
        return max(moved_at, self._left_at) + LEFT_GRACE_S if self.joined and someone_left else None

    def peers_hold_up(self, moved_at: float, now: float) -> None:
        """Fail if reductions that LEFT_MIN_TIMEOUTS timeouts in a row did not move wait for peers that have left."""
        deadline = self.left_deadline(moved_at)
        if deadline is not None and now >= deadline:  # R-MEMBER-5
            self._fail(WorkersGone(0, self._left) if self._left else PacketRefused(Reason.BRANCH_LEFT))

    def _fail(self, event: WorkerEvent) -> None:
        self.phase = Phase.FAILED
        self._events.append(event)
