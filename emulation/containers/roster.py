"""The members of a job of containers, their ranks, and how the job ended. Pure: no socket, no clock.

Rules
-----
* A member is a container. Members join in any order and number, under names that nobody knew before; ranks are given in
  the order of joining.
* The roster closes when the requested number of members has joined or, without such a number, once MIN_MEMBERS or more
  have joined and nobody has for SETTLE_S. A later container is refused, with the reason.
* A running member sends a message at least every BEAT_S, and says how it ended before it leaves. A member whose
  connection breaks first, or that is silent for SILENCE_S, is lost: its container was killed, or the network between it
  and the job is cut.
* The job has succeeded when every member ended with status 0 and with the same replica of the model. After the first
  failure the others have GRACE_S, more than any error of fanin takes, to report; then the job has failed.

    member state   changes to
    JOINED         RUNNING when the roster closes; removed if it leaves before
    RUNNING        ENDED when it reports its end; LOST when its connection breaks or it falls silent
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from fanin.errors import ConfigurationError, FaninError

MIN_MEMBERS = 2
MAX_MEMBERS = 32
"""Limit of fanin: the workers of one switch have a bitmap of 32 bits."""
SETTLE_S = 4.0
"""Quiet time after which the roster closes; containers of a job start a second or two apart, also on a busy machine."""
BEAT_S = 1.0
SILENCE_S = 10.0
GRACE_S = 60.0
"""Survivors of a worker that is cut off raise after the liveness timeout (30 s unless it is set: docs/errors.md). An
interpreter that has imported torch then takes ten seconds and more to end where several share a busy processor."""


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
    """Name of its container in the network."""
    address: str
    heard_s: float
    state: State = State.JOINED
    status: int = 0
    """Exit status; valid in state ENDED."""
    cause: str = ""
    """Error text of the member's program, or the reason why the member is lost."""
    replica: str | None = None
    """Hash of its program's parameters, if the program reports one."""

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.name}, {self.address})"


@dataclass(slots=True)
class Roster:
    """The members of one job, and what became of them. Times are seconds on any one clock."""

    wanted: int | None = None
    """Number of members to wait for; None: as many as join."""
    members: list[Member] = field(default_factory=list)
    closed: bool = False
    _latest_s: float = 0.0
    _failed_s: float | None = None

    def __post_init__(self) -> None:
        if self.wanted is not None and not 1 <= self.wanted <= MAX_MEMBERS:
            raise ConfigurationError(f"workers = {self.wanted}; must be in 1..{MAX_MEMBERS}", "the number of workers")

    def join(self, name: str, address: str, now: float) -> Member:
        """Add a member with the next rank. TooLateError if the job has begun or has enough members."""
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
        """Remove a member that left before the job began; the ranks after it move up."""
        assert not self.closed
        self.members.remove(member)
        for rank, other in enumerate(self.members):
            other.rank = rank

    def close_if_complete(self, now: float) -> bool:
        """Close the roster if it is complete, and count its members as running. Whether it has closed in this call."""
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
        """Note a record of the member's program; the record with `"event": "end"` has the replica's hash."""
        member.heard_s = now
        if record.get("event") == "end" and isinstance(record.get("replica"), str):
            member.replica = record["replica"]

    def ended(self, member: Member, status: int, cause: str, now: float) -> None:
        """Note that the member's program ended, with its exit status and, if that is not 0, the cause."""
        if member.state is State.RUNNING:
            member.state, member.status, member.cause = State.ENDED, status, cause
            if status != 0:
                self._note_failure(now)

    def vanished(self, member: Member, now: float) -> None:
        """Count the member as lost, because its connection broke before it reported its end."""
        self._lose(member, "gone without a word: its container was killed, or its machine died", now)

    def handle_timer(self, now: float) -> list[Member]:
        """Count members as lost that have been silent for SILENCE_S; returns these members."""
        silent = [m for m in self.members if m.state is State.RUNNING and now - m.heard_s >= SILENCE_S]
        for member in silent:
            self._lose(member, f"silent for {SILENCE_S:g} s: stopped, or cut off from the job", now)
        return silent

    def outcome(self, now: float) -> JobOutcome | None:
        """The job's verdict; None while it still runs."""
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
        return JobOutcome(1 if lines else 0, tuple(lines))

    def _lose(self, member: Member, cause: str, now: float) -> None:
        if member.state is State.RUNNING:
            member.state, member.cause = State.LOST, cause
            self._note_failure(now)

    def _note_failure(self, now: float) -> None:
        if self._failed_s is None:
            self._failed_s = now


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of a job."""

    status: int
    """Exit status of the job and of all its containers."""
    lines: tuple[str, ...]
    """Reasons of a failure, the lost members first; empty after a success."""
