"""The members of a job of containers, their ranks, and how the job ended. Pure: no socket, no clock.

Rules
-----
* A member is a container. Members come in any order and number, under names that nobody knew before; the rank is the
  order in which they joined.
* The roster closes when as many are there as were asked for or, where no number was asked for, once MIN_MEMBERS or more
  are there and nobody has come for SETTLE_S. A later container is refused, with the reason.
* A running member says something at least every BEAT_S, and how it ended before it goes. One that goes without a word,
  or is silent for SILENCE_S, is lost: its container was killed, or the network between it and the job is cut.
* The job has succeeded when every member ended with status 0 and with the same replica of the model. After the first
  failure the others have GRACE_S, more than any error of fanin takes, to say what they saw; then the job has failed.

    member state    join      close    said its end   vanished or silent   verdict
    joined       -> joined -> running -> ended         lost                 (of all)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from fanin.errors import ConfigurationError, FaninError

MIN_MEMBERS = 2
MAX_MEMBERS = 32
"""fanin's own limit: one switch, one 32-bit bitmap."""
SETTLE_S = 4.0
"""A container starts within a second or two of the one before it, also on a busy machine."""
BEAT_S = 1.0
SILENCE_S = 10.0
GRACE_S = 30.0
"""Survivors of a worker or of a switch raise within 10 s (docs/errors.md), and an interpreter that has imported torch
takes seconds to end where several share a processor."""


class State(enum.Enum):
    """State of a member."""

    JOINED = "joined"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


class TooLateError(FaninError):
    """A member came when the roster was closed or full."""


@dataclass(slots=True)
class Member:
    """One container of the job."""

    rank: int
    name: str
    """The container's, as the network knows it."""
    address: str
    heard_s: float
    state: State = State.JOINED
    status: int = 0
    """Exit status; legal once it ended."""
    cause: str = ""
    """The member's own error text, or the reason why it counts as lost."""
    replica: str | None = None
    """Hash of its parameters, if its program reports one."""

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.name}, {self.address})"


@dataclass(slots=True)
class Roster:
    """The job. Times are seconds on any one clock."""

    wanted: int | None = None
    """How many members; None: as many as come."""
    members: list[Member] = field(default_factory=list)
    closed: bool = False
    _latest_s: float = 0.0
    _failed_s: float | None = None

    def __post_init__(self) -> None:
        if self.wanted is not None and not 1 <= self.wanted <= MAX_MEMBERS:
            raise ConfigurationError(f"workers = {self.wanted}; must be in 1..{MAX_MEMBERS}")

    def join(self, name: str, address: str, now: float) -> Member:
        """One more. TooLateError when the job has begun without it, or there are enough."""
        if self.closed or len(self.members) == (self.wanted or MAX_MEMBERS):
            raise TooLateError(
                f"{name} came too late: the job has its {len(self.members)} workers. Remedy: start all of them at "
                "once, and say how many with WORKERS where they take long to start"
            )
        member = Member(len(self.members), name, address, now)
        self.members.append(member)
        self._latest_s = now
        return member

    def withdraw(self, member: Member) -> None:
        """It went before the job began: the ranks after it move up."""
        assert not self.closed
        self.members.remove(member)
        for rank, other in enumerate(self.members):
            other.rank = rank

    def close_if_complete(self, now: float) -> bool:
        """Whether the job begins now: everybody is running from here on."""
        if self.closed:
            return False
        count = len(self.members)
        settled = self.wanted is None and count >= MIN_MEMBERS and now - self._latest_s >= SETTLE_S
        if not (settled or count in (self.wanted, MAX_MEMBERS)):
            return False
        self.closed = True
        for member in self.members:
            member.state, member.heard_s = State.RUNNING, now
        return True

    def heard(self, member: Member, now: float) -> None:
        """Note that the member sent a message at `now`."""
        member.heard_s = now

    def report(self, member: Member, record: dict[str, Any], now: float) -> None:
        """Its program printed a record; the last one has the replica's hash."""
        member.heard_s = now
        if record.get("event") == "end" and isinstance(record.get("replica"), str):
            member.replica = record["replica"]

    def ended(self, member: Member, status: int, cause: str, now: float) -> None:
        """It said that its program ended, and how."""
        if member.state is State.RUNNING:
            member.state, member.status, member.cause = State.ENDED, status, cause
            if status != 0:
                self._note_failure(now)

    def vanished(self, member: Member, now: float) -> None:
        """Its connection broke before it said how it ended."""
        self._lose(member, "gone without a word: its container was killed, or its machine died", now)

    def handle_timer(self, now: float) -> list[Member]:
        """Members that count as lost from now on because they are silent."""
        silent = [m for m in self.members if m.state is State.RUNNING and now - m.heard_s >= SILENCE_S]
        for member in silent:
            self._lose(member, f"silent for {SILENCE_S:g} s: stopped, or cut off from the job", now)
        return silent

    def verdict(self, now: float) -> Verdict | None:
        """How the job ended; None while it goes on."""
        running = [member for member in self.members if member.state in (State.JOINED, State.RUNNING)]
        waited = self._failed_s is not None and now - self._failed_s >= GRACE_S
        if not self.closed or (running and not waited):
            return None
        lost = [f"{member} is lost: {member.cause}" for member in self.members if member.state is State.LOST]
        failed = [f"{member} failed: {member.cause}" for member in self.members if member.status != 0]
        stuck = [f"{member} neither ended nor said why {GRACE_S:g} s after the first failure" for member in running]
        lines = lost + failed + stuck
        replicas = {member.replica for member in self.members}
        if not lines and len(replicas) > 1:
            lines = ["the workers ended with different parameters; please report this"]
        return Verdict(1 if lines else 0, tuple(lines))

    def _lose(self, member: Member, cause: str, now: float) -> None:
        if member.state is State.RUNNING:
            member.state, member.cause = State.LOST, cause
            self._note_failure(now)

    def _note_failure(self, now: float) -> None:
        if self._failed_s is None:
            self._failed_s = now


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job ended."""

    status: int
    """Exit status of the job, and of every container of it."""
    lines: tuple[str, ...]
    """Reasons of a failure, the lost members first; empty after a success."""
