"""The interface of a membership in a job, whatever stands behind it.

`Session` is one at one switch, `ShardedSession` at several, `SurvivingSession` at several of which some may be lost,
and `LeasedSession` one that is joined while it is used. Their own docstrings say what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fanin.errors import FaninError
from fanin.host.session.observing import Observer
from fanin.host.session.spoilers import Spoiler
from fanin.numerics.reduction import Element, PackedReduction, Reduction
from fanin.options import SwitchAddress
from fanin.protocol.job import JobSpec

if TYPE_CHECKING:
    from fanin.host.session.session import MembershipChange, Session


class AnySession(Protocol):
    """One worker of one job. Thread safe."""

    address: SwitchAddress
    """The first switch that serves it."""
    job_name: str
    rank: int
    size: int
    newcomer: bool
    """Whether this rank came into a job that ran already (on_worker_loss="continue")."""
    first_base: int
    """The base of every slot with which a newcomer's first reduction begins."""
    observer: Observer | None
    """Told of every ticket, after its reduction was submitted, and of when the call began, in seconds of
    CLOCK_MONOTONIC: other ranks may have the sum before the call returns (host/torch/collectives/timeline.py)."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The memberships at single switches."""

    @property
    def spec(self) -> JobSpec:
        """The controller's decision on the job."""

    @property
    def flows(self) -> int:
        """Flows that chunks are dealt to."""

    @property
    def description(self) -> str:
        """One line for people."""

    @property
    def failure(self) -> FaninError | None:
        """The error that has ended this session for good, or None."""

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that joined."""

    @property
    def spoiled(self) -> bool:
        """Whether any sum so far was spoiled: by NaN or infinities of some rank."""

    def spoilers_of(self, ticket: int) -> list[Spoiler]:
        """The ranks that have spoiled that sum, which is done, in their order."""

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that rounds wait for, as far as this one has heard."""

    def submit(self, reduction: Reduction) -> int:
        """Start a reduction; its ticket: 1, 2, ... Every rank submits the same ones in the same order."""

    def submit_and_wait(self, packed: PackedReduction, owner: object) -> int:
        """Submit a reduction and wait for it a moment: 0 when it is done, otherwise its ticket, for `wait`.

        `owner` keeps the memory alive till it is done.
        """

    def wait(self, ticket: int, timeout_s: float | None = None) -> None:
        """Return when the ticket's result is in place.

        Raises the failure if it never will be, CollectiveTimeoutError after `timeout_s` seconds (None: no limit).
        """

    def done(self, ticket: int) -> bool:
        """Whether the ticket's result is in place."""

    def counts_at(self, ticket: int, count: int, element: Element, lanes: int) -> list[tuple[int, int]]:
        """Return (number of a session, elements) for each part of that reduction."""

    def take_changes(self) -> list[MembershipChange]:
        """Changes of membership since the last call, oldest first."""

    def counters(self) -> dict[str, int | float]:
        """The engines' counters by name."""

    def abandon(self, failure: FaninError) -> None:
        """Stop without a BYE to the switch, because of `failure` elsewhere. `close` must still be called."""

    def close(self, timeout_s: float = 10) -> None:
        """Leave the job and release everything. Idempotent, bounded."""
