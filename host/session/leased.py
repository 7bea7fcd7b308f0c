"""A membership for as long as it is used: joined at the first reduction, given back to the switch when idle.

A job holds a pool of slots at its switch, and in every rank sockets and buffers. A program with a mesh has a dozen
groups, and sums over few of them at a time.

    state   | what is seen                                  | next
    --------+-----------------------------------------------+--------
    ABSENT  | a reduction                                   | JOINING
    JOINING | the ranks have joined (a thread of its own)   | LEASED
    LEASED  | nothing is under way, and was for `idle_s`    | IDLE
    IDLE    | a reduction                                   | ASKING
            | every rank was idle at this point             | ABSENT
    ASKING  | some rank was not (a thread of its own asks)  | LEASED
            | every rank was idle at this point             | JOINING
    any     | a failure, or close()                         | OVER

Rules
-----
* What is submitted while JOINING or ASKING waits in a queue, and goes to the switch in order: submitting never waits
  for other ranks, so ranks may use their groups in any order that a group that has joined allows.
* Tickets count 1, 2, ... through all leases.
* Which lease a reduction belongs to is the same on every rank, whatever the order of events (`Ballot`): a rank that is
  idle after n reductions says so, and from there on submits nothing before it has asked. The lease ends there if every
  rank says so before any asks; the one who asks first, or completes the number, decides it once for all.
* So a member that leaves is told from one that is lost: a lease is given up only after it was decided that it ends.
* Each lease is a job of its own at the switch, since the name of the one before may be held by a rank that has not
  yet left it.
* A failure to join, to ask, or of the job while it is leased, is this group's failure, for good. The same holds for any
  other exception in a thread of the session, since nothing else would complete its work.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from fanin.errors import CollectiveTimeoutError, FaninError, WorkerLostError
from fanin.host.session.failures import MemberNames, broken, session_closed, used_in_child
from fanin.host.session.observing import Observer, observed
from fanin.host.session.session import WAIT_SLICE_S, MembershipChange, Session
from fanin.host.session.shards import JoinedSession, added_up
from fanin.host.session.spoilers import Spoiler
from fanin.interruptions import interrupts
from fanin.numerics.reduction import Element, PackedReduction, Reduction
from fanin.options import SwitchAddress
from fanin.protocol.job import JobSpec

log = logging.getLogger("fanin")

CLOSE_TIMEOUT_S = 5.0
"""How long `close` waits for a join that it interrupts; the join looks about twice per second."""
MIN_LOOK_INTERVAL_S = 1.0
"""Least time between two looks of an idle rank at whether the lease has ended."""


class LeaseState(enum.Enum):
    """State of a leased membership: see the table above."""

    ABSENT = enum.auto()
    JOINING = enum.auto()
    LEASED = enum.auto()
    IDLE = enum.auto()
    ASKING = enum.auto()
    OVER = enum.auto()


class BallotOverError(FaninError):
    """The ranks cannot decide on anything any more: the store through which they vote has ended."""


class Ballot(Protocol):
    """Vote of a job's ranks on whether a lease has ended after so many reductions; one answer for all of them.

    Any method may raise a FaninError where the answer cannot be known now, and BallotOverError where it never will be.
    """

    def idle(self, lease: int, count: int) -> bool:
        """Say that this rank is idle after `count` reductions, and will ask `goes_on` before its next one. Returns
        whether the lease has ended there."""

    def has_ended(self, lease: int, count: int) -> bool | None:
        """Whether the lease ended there; None while that is not decided."""

    def goes_on(self, lease: int, count: int) -> bool:
        """Ask before submitting more: False if the lease has ended there; True, if it ends there for no rank."""


class Worker(Protocol):
    """A thread that can be waited for."""

    def join(self, timeout: float | None = None) -> None:
        """Return once it has ended."""


class Found(NamedTuple):
    """State of a reduction: at a session, in the queue, refused, or, with none of these, done."""

    session: JoinedSession | None = None
    ticket: int = 0
    """Ticket that the session gave it."""
    queued: bool = False
    refusal: Exception | None = None


class LeasedSession:
    """One worker of a job that is joined when needed (AnySession)."""

    def __init__(
        self,
        join: Callable[[str, Callable[[], None]], JoinedSession],
        who: MemberNames,
        *,
        ballot: Ballot | None = None,
        idle_s: float = 0.0,
        elsewhere: Callable[[], FaninError | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None], str], Worker] | None = None,
    ) -> None:
        """`join(name, interrupted)` joins the job of that name; it calls `interrupted` about twice per second, which
        raises to cancel. `who`: the switch, and this rank's names.

        With a `ballot`, `return_if_idle` gives the lease back after `idle_s` seconds without a reduction.
        `elsewhere` returns a failure of this group's ranks that was noticed elsewhere; asked while there is no lease.
        """
        self._who = who
        self.address: SwitchAddress = who.address
        self.job_name, self.rank, self.size = who.job_name, who.rank, who.size
        self.newcomer, self.first_base = False, 0
        self.observer: Observer | None = None
        self._join, self._ballot, self._idle_s, self._elsewhere = join, ballot, idle_s, elsewhere or _nothing
        self._clock = clock
        self._start = start or _thread
        self._process = os.getpid()
        self._changed = threading.Condition()
        """Lock of the attributes below, notified when they change."""
        self._state = LeaseState.ABSENT
        self._leases = 0
        self._session: JoinedSession | None = None
        self._spec: JobSpec | None = None
        self._submitted = 0
        """Tickets that were given out."""
        self._settled = 0
        """Tickets up to this one are known to be done."""
        self._queue: deque[tuple[int, Reduction]] = deque()
        self._early: dict[int, int | Exception] = {}
        """Results of queued tickets: the session's ticket, or the exception with which it refused."""
        self._offset = 0
        """Difference between a ticket here and the session's."""
        self._direct = 0
        """Threads that are inside the session's `submit_and_wait`."""
        self._seen_at = (0, clock())
        """The number of tickets when it was last seen to change, and the time of that."""
        self._goes_on_at = -1
        """Count of reductions at which the ranks have decided that the lease does not end; -1: none."""
        self._next_look_s = 0.0
        self._failure: FaninError | None = None
        self._closing = False
        self._worker: Worker | None = None
        self._past: list[dict[str, int | float]] = []
        """Counters of the leases before, added up."""

    # --- reductions ---

    @observed
    def submit(self, reduction: Reduction) -> int:
        """Start a reduction, or queue it until there is a lease; never waits for other ranks."""
        self._refuse_children()
        with self._changed:
            if self._state is LeaseState.LEASED and self._session is not None:
                ticket = self._session.submit(reduction) + self._offset
                self._submitted += 1
            else:
                if self._state is not LeaseState.IDLE or self._failure is not None:  # idle: the thread that asks looks
                    self._raise_if_over()
                ticket = self._enqueue(reduction)
        return ticket

    def submit_and_wait(self, packed: PackedReduction, owner: object) -> int:
        """Submit and wait as `Session.submit_and_wait` does; without a lease, queue and return the ticket at once."""
        self._refuse_children()
        with self._changed:
            session = self._session if self._state is LeaseState.LEASED and self.observer is None else None
            if session is not None:
                self._direct += 1
                self._submitted += 1
        if session is None:
            return self.submit(Reduction.of(packed, owner))
        taken = True
        try:
            left = session.submit_and_wait(packed, owner)
        except BaseException as error:
            taken = interrupts(error)  # an interrupted reduction continues at the switch
            raise
        finally:
            with self._changed:
                self._direct -= 1
                if not taken:  # what is refused has no ticket
                    self._submitted -= 1
        return left + self._offset if left else 0

    def wait(self, ticket: int, timeout_s: float | None = None) -> None:
        """Wait as `Session.wait` does; for a queued reduction first for the lease, within the same time."""
        self._refuse_children()
        left_s, deadline = timeout_s, None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            found = self._find(ticket)
            while found.queued:
                self._raise_if_over()
                if left_s is not None and left_s <= 0:
                    raise self._late(timeout_s)
                self._changed.wait(WAIT_SLICE_S if left_s is None else min(left_s, WAIT_SLICE_S))
                left_s = None if deadline is None else deadline - time.monotonic()
                found = self._find(ticket)
        if found.refusal is not None:
            raise found.refusal
        if found.session is not None:
            found.session.wait(found.ticket, None if left_s is None else max(left_s, 0.0))

    def done(self, ticket: int) -> bool:
        """Whether a reduction has ended, as `Session.done` says. One that the session refused after it had waited
        counts as ended: `wait` raises the refusal.
        """
        if self.inherited:
            return False
        with self._changed:
            found = self._find(ticket)
        return not found.queued if found.session is None else found.session.done(found.ticket)

    @property
    def spoiled(self) -> bool:
        """Whether any sum of the present lease was spoiled."""
        session = self._session
        return session is not None and session.spoiled

    def spoilers_of(self, ticket: int) -> list[Spoiler]:
        """The ranks that have spoiled that sum, which was of the present lease; of an earlier one nobody is known."""
        with self._changed:
            found = self._find(ticket)
        return [] if found.session is None else found.session.spoilers_of(found.ticket)

    def joined(self) -> JoinedSession:
        """The membership of the present lease; without one, join, which waits for the other ranks to join, too."""
        self._refuse_children()
        with self._changed:
            while self._session is None or self._state not in (LeaseState.LEASED, LeaseState.IDLE):
                self._raise_if_over()
                if self._state is LeaseState.ABSENT:
                    self._begin(LeaseState.JOINING, self._take_lease, "fanin-join")
                self._changed.wait(WAIT_SLICE_S)
            return self._session

    # --- description ---

    @property
    def spec(self) -> JobSpec:
        """The spec of the latest lease; joins if there has been none."""
        return self._spec if self._spec is not None else self.joined().spec

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions of the present lease; joins if there is none."""
        return self.joined().sessions

    def counts_at(self, ticket: int, count: int, element: Element, lanes: int) -> list[tuple[int, int]]:
        """Counts at the lease's sessions, for groups that never give it back: `ticket` is taken as the session's."""
        return self.joined().counts_at(ticket, count, element, lanes)

    @property
    def flows(self) -> int:
        """Flows of the present lease; 0 while there is none."""
        session = self._session
        return 0 if session is None else session.flows

    @property
    def description(self) -> str:
        """Description of the session, or of the state without one."""
        with self._changed:
            session, state = self._session, self._state
        if session is not None:
            return session.description
        told = {
            LeaseState.ABSENT: "not yet joined: the first sum joins it",
            LeaseState.JOINING: "joining, at its first sum",
            LeaseState.OVER: "over",
        }[state]
        if self._leases and state is LeaseState.ABSENT:
            told = f"given back after {self._idle_s:g} s without a sum: the next one joins it anew"
        return f"job {self.job_name!r} rank {self.rank} of {self.size} at {self.address}: {told}"

    @property
    def members(self) -> tuple[int, ...]:
        session = self._session
        return tuple(range(self.size)) if session is None else session.members

    def take_changes(self) -> list[MembershipChange]:
        """Return no changes: such a job ends with the first rank that it loses."""
        return []

    @property
    def inherited(self) -> bool:
        return os.getpid() != self._process

    @property
    def failure(self) -> FaninError | None:
        """The error that has ended this session, or None; without a lease, also a failure noticed elsewhere."""
        if self.inherited:
            return used_in_child(self._who)
        if self._failure is not None or self._state is LeaseState.OVER:
            return self._failure
        session = self._session
        failure = None if session is None else session.failure
        if failure is not None and self._left_in_order(failure):
            failure = None
        if failure is None and self._state is not LeaseState.LEASED:
            failure = self._elsewhere()
        if failure is not None:
            self._fail(failure)
        return self._failure

    def counters(self) -> dict[str, int | float]:
        """Counters of all leases; `leases` is their number."""
        with self._changed:
            session, past, leases = self._session, list(self._past), self._leases
        present = [] if session is None else [session.counters()]
        return added_up(past + present) | {"leases": leases}

    # --- its end ---

    def abandon(self, failure: FaninError) -> None:
        if (session := self._session) is not None:
            session.abandon(failure)

    def close(self, timeout_s: float = 10) -> None:
        if self.inherited:
            return
        with self._changed:
            self._closing, self._state = True, LeaseState.OVER
            session, worker = self._session, self._worker
            self._queue.clear()
            self._changed.notify_all()
        if session is not None:
            session.close(timeout_s)
        if worker is not None and worker is not threading.current_thread():
            worker.join(min(timeout_s, CLOSE_TIMEOUT_S))
        # These refer back to the owner of this session: without the cycle, its descriptors are closed at once.
        no_more = session_closed(self.job_name, self.rank, self.address)
        self._join, self._elsewhere = partial(_join_no_more, no_more), _nothing

    def return_if_idle(self) -> None:
        """Begin to give the lease back if this rank was idle long enough; called again and again, by one thread.

        Never waits.

        The ballot is asked in a thread of its own.
        """
        if self.inherited or self._ballot is None:
            return
        with self._changed:
            now = self._clock()
            if self._worker is not None or self._failure is not None:
                return
            if self._state is LeaseState.IDLE and now >= self._next_look_s:
                self._next_look_s = now + max(MIN_LOOK_INTERVAL_S, self._idle_s / 4)
                self._worker = self._started(self._see_whether_it_has_ended, "fanin-idle")
            elif self._state is LeaseState.LEASED:
                if self._submitted != self._seen_at[0] or self._direct:
                    self._seen_at = (self._submitted, now)
                elif now - self._seen_at[1] >= self._idle_s and self._goes_on_at != self._submitted:
                    self._worker = self._started(self._become_idle, "fanin-idle")

    def _refuse_children(self) -> None:
        if self.inherited:  # before the lock, which may be locked for ever here
            raise used_in_child(self._who)

    # --- below: with the lock held ---

    def _enqueue(self, reduction: Reduction) -> int:
        if self._state is LeaseState.ABSENT:
            self._begin(LeaseState.JOINING, self._take_lease, "fanin-join")
        elif self._state is LeaseState.IDLE:
            self._begin(LeaseState.ASKING, self._ask, "fanin-join")
        self._submitted += 1  # what raises above, where no thread can be started, has no ticket
        self._queue.append((self._submitted, reduction))
        return self._submitted

    def _begin(self, state: LeaseState, work: Callable[[], None], name: str) -> None:
        """Enter `state`, and start `work` in a thread, after the thread before it has ended."""
        before = self._worker

        def after_the_one_before() -> None:
            if before is not None:
                before.join()
            work()

        self._worker = self._started(after_the_one_before, name)
        self._state = state

    def _started(self, work: Callable[[], None], name: str) -> Worker:
        """Start a thread for `work`, whose exception becomes this group's failure, so that no call waits for ever."""

        def contained() -> None:
            try:
                work()
            except FaninError as error:
                self._fail(error)
            except Exception as error:
                log.exception("%s of rank %d in job %r", name, self.rank, self.job_name)
                self._fail(broken(self._who, name, error))

        return self._start(contained, name)

    def _find(self, ticket: int) -> Found:
        if not 1 <= ticket <= self._submitted:
            raise ValueError(f"ticket {ticket} was never given out; the last one is {self._submitted}")
        early = self._early.get(ticket)
        if isinstance(early, Exception):
            return Found(refusal=early)
        if ticket <= self._settled:
            return Found()
        if self._session is None or (self._queue and self._queue[0][0] <= ticket):
            return Found(queued=True)
        return Found(self._session, ticket - self._offset if early is None else early)

    def _raise_if_over(self) -> None:
        if (failure := self.failure) is not None:
            raise failure.with_traceback(None)
        if self._state is LeaseState.OVER:
            raise session_closed(self.job_name, self.rank, self.address)

    def _late(self, timeout_s: float | None) -> CollectiveTimeoutError:
        return CollectiveTimeoutError(
            f"Timed out: job {self.job_name!r} at {self.address} is joined at its first sum, and not every rank has "
            f"joined it in the {timeout_s:g} s that rank {self.rank} has waited. Remedy: find the rank that does not "
            "call this collective, or allow more time"
        )

    # --- below: in threads of its own ---

    def _take_lease(self) -> None:
        name = self.job_name if not self._leases else f"{self.job_name}.{self._leases}"
        session = self._join(name, self._raise_if_closing)
        with self._changed:
            closed = self._closing
            if not closed:
                self._leases += 1
                self._spec, self._session = session.spec, session
                self._hand_over(0)
        if closed:
            session.close()

    def _hand_over(self, last: int) -> None:
        """Submit the queue to the session, whose last ticket is `last`; then LEASED (called with the lock held)."""
        assert self._session is not None
        while self._queue:
            ticket, reduction = self._queue[0]
            try:
                last = self._session.submit(reduction)
                self._early[ticket] = last
            except Exception as error:  # not only ours: see WorkerMachine.submit
                if self._session.failure is not None:
                    break  # the session has failed, and every wait raises that
                self._early[ticket] = error  # refused, as by the session of every rank
            self._queue.popleft()
        self._offset = self._submitted - last
        self._seen_at = (self._submitted, self._clock())
        self._state, self._worker = LeaseState.LEASED, None
        self._changed.notify_all()

    def _become_idle(self) -> None:
        """Say that this rank is idle, if all reductions are done and none is submitted meanwhile."""
        assert self._ballot is not None
        with self._changed:
            count = self._submitted
            if self._direct:  # a ticket that the session has not yet given
                self._worker = None
                return
        done = all(self.done(ticket) for ticket in range(self._settled + 1, count + 1))
        with self._changed:
            if not done or self._submitted != count or self._state is not LeaseState.LEASED:
                self._seen_at = (self._submitted, self._clock())
                self._worker = None
                return
            self._settled = count
            self._early = {ticket: own for ticket, own in self._early.items() if isinstance(own, Exception)}
            self._state = (
                LeaseState.IDLE
            )  # before the ballot is told: from here on nothing is submitted without asking it
            lease = self._leases
        ended: bool | None = None
        try:
            ended = self._ballot.idle(lease, count) or None
        except BallotOverError as error:
            # No rank can learn of this vote, so the lease ends for none of them: the group keeps it from here on.
            log.info("job %r keeps its lease: %s", self.job_name, error)
            self._idle_s, ended = math.inf, False
        except FaninError:
            pass  # unknown for now: `has_ended` and `goes_on` ask again
        self._finish_looking(ended)

    def _see_whether_it_has_ended(self) -> None:
        assert self._ballot is not None
        ended = None
        with contextlib.suppress(FaninError):
            ended = self._ballot.has_ended(self._leases, self._settled)
        self._finish_looking(ended)

    def _finish_looking(self, ended: bool | None) -> None:
        with self._changed:
            if self._state is not LeaseState.IDLE:  # ASKING, whose thread goes on from here; or it is over
                return
            if not ended:
                if ended is not None:
                    self._state, self._goes_on_at = LeaseState.LEASED, self._settled
                self._worker = None
                return
            session = self._forget_lease()
            self._state = LeaseState.ABSENT
        session.close()
        log.info("%s", self.description)
        with self._changed:
            if self._state is LeaseState.ABSENT:  # else another thread of ours waits for this one
                self._worker = None

    def _forget_lease(self) -> JoinedSession:
        """Give up the session, whose reductions are all done, and return it to be closed (with the lock held)."""
        session, self._session = self._session, None
        assert session is not None
        self._past = [added_up([*self._past, session.counters()])]
        return session

    def _ask(self) -> None:
        """Ask whether the lease goes on, for a reduction that came while this rank was idle; else take a new one."""
        assert self._ballot is not None
        goes_on = self._ballot.goes_on(self._leases, self._settled)
        with self._changed:
            if self._state is not LeaseState.ASKING or self._failure is not None:
                return
            if goes_on:
                self._hand_over(self._settled - self._offset)
                return
            session = self._forget_lease()
            self._state = LeaseState.JOINING
        session.close()
        self._take_lease()

    def _left_in_order(self, failure: FaninError) -> bool:
        """Whether a failure of the session only means that other ranks have given the lease back."""
        if not isinstance(failure, WorkerLostError) or self._ballot is None:
            return False
        if self._state is LeaseState.ASKING:
            return True  # the thread that asks finds out whether the lease has ended
        if self._state is not LeaseState.IDLE:
            return False  # this rank has not said that it is idle, so nobody has left in order
        with contextlib.suppress(FaninError):
            if self._ballot.has_ended(self._leases, self._settled):
                self._next_look_s = 0.0
                return True
        return False

    def _raise_if_closing(self) -> None:
        if self._closing:
            raise session_closed(self.job_name, self.rank, self.address)

    def _fail(self, failure: FaninError) -> None:
        with self._changed:
            if self._failure is None and not self._closing:
                self._failure = failure
            if self._session is None:
                self._state = LeaseState.OVER
            self._worker = None
            self._changed.notify_all()


def _join_no_more(closed: FaninError, _name: str, _interrupted: Callable[[], None]) -> JoinedSession:
    raise closed


def _nothing() -> FaninError | None:
    return None


def _thread(work: Callable[[], None], name: str) -> threading.Thread:
    # A daemon: it never keeps an interpreter from ending, and `close` interrupts it.
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
