"""The messages between a member of a job and its switch that show that both live: HELLO, heartbeats, silence, BYE.

A worker is a member at its switch (host/machine/presence.py), a leaf at its parent (switch/machine/uplink.py). Each
has the table of its phases; what both do is here. Twin of native/machine/keepalive.hpp. The rules are
R-MEMBER-1, 3, 4 and 9 in docs/protocol.md.
"""

from __future__ import annotations

import enum

from fanin.protocol.job import (
    BYE_RETRY_S,
    HEARTBEATS_TO_SILENCE,
    HELLO_RETRY_S,
    LEAVE_TIMEOUT_S,
    SUSPICION_SETTLES_S,
    SUSPICION_TIMEOUT_S,
    JobSpec,
)


class Phase(enum.Enum):
    """Phase of a membership; presence.py and uplink.py have tables of what leads from one to another."""

    WAITING = enum.auto()
    """There is nothing to join for yet."""
    CONNECTING = enum.auto()
    MEMBER = enum.auto()
    LEAVING = enum.auto()
    LEFT = enum.auto()
    FAILED = enum.auto()


class Keepalive:
    """Phase and timers of one member of one job. Times are in seconds."""

    def __init__(self, spec: JobSpec, phase: Phase, connect_timeout_s: float) -> None:
        """`connect_timeout_s`: longest silence of the switch while connecting, from `start` on."""
        self.phase = phase
        self.hello_sequence = 0
        """Number of the next HELLO."""
        self._silence_limit_s = connect_timeout_s
        self._liveness_timeout_s = spec.liveness_timeout_s
        self._heartbeat_s = spec.heartbeat_s
        self._started = False
        self._heard_at = 0.0
        """When the switch was last heard; before that, when this started."""
        self._unanswered = 0
        """Number of HELLOs since then, without those of fanin/protocol/path_watch.py."""
        self._suspected_at: float | None = None
        """When the switch was last suspected of having died; None without a suspicion."""
        self._say_at = 0.0
        """When the next HELLO or BYE is due."""
        self._leave_by = 0.0

    @property
    def joined(self) -> bool:
        """Whether the job goes on for this member: connecting or member."""
        return self.phase in (Phase.CONNECTING, Phase.MEMBER)

    def start(self, now: float) -> None:
        """Start the clock, once: the first HELLO is due, and silence counts from here."""
        if not self._started:
            self._started = True
            self._say_at = self._heard_at = now

    # --- what to say, and when ---

    def hello_due(self, now: float) -> bool:
        """Whether a HELLO is to be sent."""
        return self.joined and now >= self._say_at

    def hello_sent(self, now: float) -> None:
        """Note that HELLO number `hello_sequence` was sent, as a heartbeat."""
        # R-MEMBER-3; R-MEMBER-1 while connecting.
        self._say_at = now + (HELLO_RETRY_S if self.phase is Phase.CONNECTING else self._heartbeat_s)
        self._unanswered += 1
        self.hello_sequence = (self.hello_sequence + 1) & 0xFFFFFFFF

    def probe_sent(self) -> None:
        """Note that HELLO number `hello_sequence` was sent to try a length; unanswered, it is no sign of silence."""
        self.hello_sequence = (self.hello_sequence + 1) & 0xFFFFFFFF

    @property
    def answered(self) -> bool:
        """Whether the switch was heard since the last heartbeat but one."""
        return self._unanswered < 2

    def bye_due(self, now: float) -> bool:
        """Whether a BYE is to be sent."""
        return self.phase is Phase.LEAVING and now >= self._say_at

    def bye_sent(self, now: float) -> None:
        """Note that a BYE was sent at `now`."""
        self._say_at = now + BYE_RETRY_S

    def leave(self, now: float) -> None:
        """Begin to leave; the first BYE is due at once."""
        if self.joined:  # R-MEMBER-4
            self.phase = Phase.LEAVING
            self._say_at = now
            self._leave_by = now + LEAVE_TIMEOUT_S

    # --- what is heard ---

    def heard(self, now: float) -> None:
        """Note that a legal packet of this job came from the switch."""
        self._heard_at = now
        self._unanswered = 0

    def _welcomed(self, now: float) -> bool:
        """Take in a WELCOME; return whether it has made this end a member."""
        if self.phase is not Phase.CONNECTING:  # R-MEMBER-3: the answer to a heartbeat
            return False
        self.phase = Phase.MEMBER
        self._silence_limit_s = self._liveness_timeout_s
        self._say_at = now + self._heartbeat_s
        return True

    # --- time ---

    def suspect(self, now: float) -> None:
        """Suspect the switch of having died: unless it is heard soon, it counts as silent."""
        if self.phase is Phase.MEMBER and not self._suspicion_stands:  # R-MEMBER-7
            self._suspected_at = self._say_at = now  # the next HELLO is due at once

    @property
    def _suspicion_stands(self) -> bool:
        """Whether nothing has withdrawn the last suspicion: what comes right after it may have been on its way."""
        return self._suspected_at is not None and self._heard_at <= self._suspected_at + SUSPICION_SETTLES_S

    @property
    def _silent_at(self) -> float:
        """When the switch counts as silent, unless it is heard before, and if enough HELLOs stay unanswered."""
        at = self._heard_at + self._silence_limit_s
        if self._suspected_at is None or not self._suspicion_stands:
            return at
        # A heartbeat more than for a worker: the last of HEARTBEATS_TO_SILENCE has time for its answer.
        return min(at, self._suspected_at + self._heartbeat_s + SUSPICION_TIMEOUT_S)

    def next_timer(self) -> float | None:
        """When `hello_due`, `bye_due` or `handle_timer` has something to do."""
        if self.phase is Phase.LEAVING:
            return min(self._say_at, self._leave_by)
        if not self.joined or not self._started:
            return None
        if self._unanswered < HEARTBEATS_TO_SILENCE:  # it cannot count as silent before the next HELLO
            return self._say_at
        return min(self._say_at, self._silent_at)

    def _left_unconfirmed(self, now: float) -> bool:
        """Whether BYE has stayed unanswered for LEAVE_TIMEOUT_S."""
        return self.phase is Phase.LEAVING and now >= self._leave_by

    def _silent_s(self, now: float) -> float | None:
        """For how long the switch has been silent, if that is too long."""
        # R-MEMBER-9: a process that was stopped wakes up with the limit long past, and its answers unread: only HELLOs
        # that it has sent since then, and that stay unanswered, show silence.
        watched = self.joined and self._started and self._unanswered >= HEARTBEATS_TO_SILENCE
        return now - self._heard_at if watched and now >= self._silent_at else None
