"""How a leaf is present at its parent, in one job: HELLO, heartbeats, silence, BYE. Twin of native/uplink.hpp.

Rules
-----
A leaf is one worker of the job at its parent. What it contributes there needs no timer of its own
(switch/machine/switch_machine.py); that it is there does, as a worker's does:

| phase      | what happens                                       | becomes    | its own workers hear |
|------------|----------------------------------------------------|------------|----------------------|
| waiting    | all of the leaf's workers are registered           | connecting |                      |
| connecting | WELCOME as long as a full packet                   | member     |                      |
| member     | the parent is silent for the liveness timeout, and | over       | BRANCH_LOST          |
|            | HEARTBEATS_TO_SILENCE HELLOs went unanswered       |            |                      |
| both       | a branch is lost (WELCOME, NOTICE), or the parent  | over       | BRANCH_LOST          |
|            | refuses the leaf                                   |            |                      |
| both       | a branch has left (WELCOME, NOTICE)                |            | BRANCH_LEFT, once    |
| both       | a worker of the leaf is lost, or all have left     | leaving    |                      |
| leaving    | the parent echoes BYE, or LEAVE_TIMEOUT_S pass     | over       |                      |

* Silence counts while the leaf itself was running (fanin/protocol/own_stops.py).
* Connecting, HELLO is as long as the longest packet and goes out every HELLO_RETRY_S; a member says it once per
  heartbeat.
"""

from __future__ import annotations

import enum

from fanin.protocol.job import (
    BYE_RETRY_S,
    HEARTBEATS_TO_SILENCE,
    HELLO_RETRY_S,
    LEAVE_TIMEOUT_S,
    JobSpec,
    Uplink,
)
from fanin.protocol.wire import Reason


class Phase(enum.Enum):
    """See the table of this file."""

    WAITING = enum.auto()
    CONNECTING = enum.auto()
    MEMBER = enum.auto()
    LEAVING = enum.auto()
    OVER = enum.auto()


class UplinkPresence:
    """Phase and timers of one leaf in one job."""

    def __init__(self, uplink: Uplink, spec: JobSpec) -> None:
        self.uplink = uplink
        self.phase = Phase.WAITING
        self.hello_sequence = 0
        self._liveness_timeout_s = spec.liveness_timeout_s
        self._heartbeat_s = spec.heartbeat_s
        self._say_at = self._heard_at = self._leave_by = 0.0
        self._unanswered = 0

    def start(self, now: float) -> None:
        """All of the leaf's workers are registered."""
        if self.phase is Phase.WAITING:
            self.phase = Phase.CONNECTING
            self._say_at = self._heard_at = now

    def leave(self, now: float) -> None:
        """The leaf has no more part in the job."""
        if self.phase in (Phase.CONNECTING, Phase.MEMBER):
            self.phase = Phase.LEAVING
            self._say_at, self._leave_by = now, now + LEAVE_TIMEOUT_S

    def hello_due(self, now: float) -> bool:
        """Whether a HELLO is to be sent."""
        return self.phase in (Phase.CONNECTING, Phase.MEMBER) and now >= self._say_at

    def hello_sent(self, now: float) -> None:
        """HELLO number `hello_sequence` was sent."""
        self._say_at = now + (HELLO_RETRY_S if self.phase is Phase.CONNECTING else self._heartbeat_s)
        self._unanswered += 1
        self.hello_sequence = (self.hello_sequence + 1) & 0xFFFFFFFF

    def bye_due(self, now: float) -> bool:
        """Whether a BYE is to be sent."""
        return self.phase is Phase.LEAVING and now >= self._say_at

    def bye_sent(self, now: float) -> None:
        """BYE was sent."""
        self._say_at = now + BYE_RETRY_S

    def next_timer(self) -> float | None:
        """When something is due."""
        if self.phase is Phase.LEAVING:
            return min(self._say_at, self._leave_by)
        if self.phase is Phase.MEMBER and self._unanswered >= HEARTBEATS_TO_SILENCE:
            return min(self._say_at, self._heard_at + self._liveness_timeout_s)
        return self._say_at if self.phase in (Phase.CONNECTING, Phase.MEMBER) else None

    def handle_timer(self, now: float) -> Reason | None:
        """What time makes true; what the leaf's workers are to be told, if anything."""
        if self.phase is Phase.LEAVING and now >= self._leave_by:
            self.phase = Phase.OVER
        silent = self._unanswered >= HEARTBEATS_TO_SILENCE and now >= self._heard_at + self._liveness_timeout_s
        if self.phase is Phase.MEMBER and silent:
            self.phase = Phase.OVER
            return Reason.BRANCH_LOST
        return None

    def was_stopped(self, seconds: float) -> None:
        """The leaf's own process was stopped for so long: the parent could not be heard meanwhile."""
        self._heard_at += seconds
        self._leave_by += seconds

    def heard(self, now: float) -> None:
        """A legal packet of the job came from the parent."""
        self._heard_at = now
        self._unanswered = 0

    def welcome(self, now: float) -> None:
        """WELCOME came."""
        if self.phase is Phase.CONNECTING:
            self.phase = Phase.MEMBER
            self._say_at = now + self._heartbeat_s

    def branches_gone(self, lost: int, left: int) -> Reason | None:
        """WELCOME or NOTICE names branches that are lost or have left; what the leaf's workers are to be told."""
        if self.phase not in (Phase.CONNECTING, Phase.MEMBER):
            return None
        if lost:
            return self.refused()
        return Reason.BRANCH_LEFT if left else None

    def refused(self) -> Reason | None:
        """The parent will not act on the leaf's packets."""
        if self.phase in (Phase.LEAVING, Phase.OVER):
            self.phase = Phase.OVER
            return None
        self.phase = Phase.OVER
        return Reason.BRANCH_LOST

    def departed(self) -> None:
        """The parent has echoed BYE."""
        if self.phase is Phase.LEAVING:
            self.phase = Phase.OVER
