"""One job over several shards that goes on when ranks, or shards, are lost (on_worker_loss="continue").

Rules
-----
* A rank that is lost is taken out at each shard, as at a single switch: nothing is dealt anew.
* A shard that is lost, with its host or alone, takes with it the parts that it had. The ranks agree through one of the
  others (switch/controller/regroup.py) on who is left, on the shards that are left, and on which reductions somebody
  has done; they join a new job at these shards, and deal out there what is not done everywhere. A reduction that a
  rank has done keeps that result everywhere, to the bit; another one is summed anew from the inputs, over who is left.
* For that, inputs are left alone until the result is there, and results are kept until they are everywhere
  (kept_reductions.py): one more copy of each.

    state   | what is seen                         | next    | what is submitted | what is waited for
    --------+--------------------------------------+---------+-------------------+--------------------------------
    WHOLE   | a shard is lost, others are not      | DEALING | is dealt out      | is waited for
            | anything else, or close()            | OVER    |                   |
    DEALING | the new job is there                 | WHOLE   | waits             | waits, unless it was done
            | (a thread of its own agrees, joins)  |         |                   |
            | that fails, or takes too long        | OVER    |                   |
    OVER    | (all sessions are stopped)           |         | raises            | is there if it was before, or
            |                                      |         |                   | raises

* Nobody goes on alone: whoever is not part of what was agreed on, or cannot join the new job, raises. So a second loss
  between the agreement and the new job ends the job, with an error that says so; losses at the same time do not.
* A shard that this rank alone has lost is lost to nobody else: then the others take this rank for lost, and it raises
  an error that names the pair, when nobody has joined it for the liveness timeout and AGREEMENT_GRACE_S.
"""

from __future__ import annotations

import enum
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from fanin.errors import (
    AdmissionError,
    CollectiveTimeoutError,
    FaninError,
    SwitchLostError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.session.control import ControlClient
from fanin.host.session.kept_reductions import KeptReduction, KeptReductions
from fanin.host.session.session import MAX_CHANGES, WAIT_SLICE_S, MembershipChange, Session
from fanin.host.session.shards import ShardedSession, added_up, deal, leave_all, of_the_whole
from fanin.numerics.reduction import Brief, Reduction
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.protocol.job import HEARTBEAT_INTERVAL_S, SUSPICION_TIMEOUT_S
from fanin.protocol.spread import Spread

SETTLING_S = SUSPICION_TIMEOUT_S + HEARTBEAT_INTERVAL_S
"""How long other shards that are lost at the same time, as in a rack without power, may take to be noticed."""
AGREEMENT_GRACE_S = 5.0
"""How much longer than a silent shard takes to be noticed the ranks may take to agree."""
ASK_INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 2.0
"""How long a controller that is asked may be silent before its shard counts as lost, too."""
LEAVE_TIMEOUT_S = 2.0

Rejoin = Callable[[Sequence[SwitchAddress], Spread, str, int, int], list[Session]]
"""Become worker i of n of a job at some shards, to which it is dealt like that: as join_shards does it."""

log = logging.getLogger("fanin")


class Life(enum.Enum):
    """Of such a session: see the table above."""

    WHOLE = enum.auto()
    DEALING = enum.auto()
    OVER = enum.auto()


class SurvivingSession(ShardedSession):
    """One worker of such a job. Thread safe; what ShardedSession has."""

    def __init__(
        self, sessions: Sequence[Session], job_name: str, rejoin: Rejoin, options: Options,
        spread: Spread | None = None,
    ) -> None:  # fmt: skip
        """As ShardedSession. Parts of a shard that is lost go to the others, in proportion to theirs."""
        super().__init__(sessions, job_name, spread)
        self._first_spread = self._spread
        self._rejoin, self._options = rejoin, options
        self._all_addresses = tuple(each.address for each in sessions)
        self._shards = tuple(range(len(sessions)))
        """The numbers, among all that there were, of the shards that are left."""
        self._ranks = tuple(range(self.size))
        """The ranks behind the workers of the present job."""
        self._successor = job_name
        """What the present job is called at the switches."""
        self._state = Life.WHOLE
        self._changed = threading.Condition(self._lock)
        self._kept = KeptReductions()
        self._kept.restart(self._sessions)
        self._present = set(self._ranks)
        self._news: deque[MembershipChange] = deque(maxlen=MAX_CHANGES)
        self._dealer: threading.Thread | None = None
        self._past: dict[str, int | float] = {}
        """Counters of the sessions before the present ones."""

    # --- reductions ---

    def submit(self, reduction: Reduction) -> int:
        """As Session.submit. While it is not clear who is left, it waits."""
        with self._changed:
            self._wait_until_dealt()
            ticket = self._submitted = self._submitted + 1
            kept = KeptReduction.of(ticket, reduction)
            self._kept.append(kept)
            self._deal(kept, kept.summed())
            if self._is_whole:  # what is done does not change while the ranks agree
                self._kept.forget()
            self._raise_if_over()
        if self.observer is not None:
            self.observer(ticket, reduction)
        return ticket

    def at_once(self, brief: Brief, owner: object) -> int:
        """As Session.at_once, without the short way."""
        return self.submit(Reduction.of(brief, owner))

    def _deal(self, kept: KeptReduction, reduction: Reduction) -> None:
        """Give its parts to the shards (called with the lock held). What a lost shard does not take, is dealt again."""
        packet_elements = self._packet_elements(reduction.element, reduction.lanes)
        dealt = []
        try:
            for number, part in deal(reduction, packet_elements, self._spread, kept.ticket):
                dealt.append((number, self._sessions[number].submit(part), part))
        except SwitchLostError as error:
            kept.parts = ()
            self._shard_is_lost(error)
            return
        except FaninError as error:
            self._over(error)
            return
        self._kept.dealt(kept, dealt)

    def wait(self, ticket: int, timeout_s: float | None = None) -> None:
        """As Session.wait."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = WAIT_SLICE_S if deadline is None else min(WAIT_SLICE_S, max(0.0, deadline - time.monotonic()))
            with self._changed:
                if self._done(ticket):
                    return
                self._raise_if_over()
                kept = self._kept.get(ticket)
                parts = () if kept is None or self._state is Life.DEALING else kept.parts
                if not parts:
                    self._changed.wait(left_s)
            try:
                for session, part in parts:
                    session.wait(part, left_s)
            except CollectiveTimeoutError as error:
                if deadline is not None and time.monotonic() >= deadline:
                    raise of_the_whole(error, part, ticket, left_s, timeout_s) from None
            except FaninError:
                if self.inherited:
                    raise
            if not parts and deadline is not None and time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"Timed out: reduction {ticket} of job {self.job_name!r} is not done on rank {self.rank} after "
                    f"{timeout_s:g} s: a shard is lost, and the ranks have not yet agreed on how to go on. Remedy: "
                    "allow more time"
                )
            _ = self.failure  # also where this ticket's own shards are well

    def done(self, ticket: int) -> bool:
        """As Session.done."""
        with self._lock:
            return self._done(ticket)

    def _done(self, ticket: int) -> bool:
        kept = self._kept.get(ticket)
        if kept is None:
            return ticket <= self._submitted
        if not kept.is_done and self._state is Life.WHOLE and kept.has_come:
            kept.finish()
        return kept.is_done

    # --- failure ---

    @property
    def failure(self) -> FaninError | None:
        """As Session.failure. The loss of a shard is none, as long as others are left."""
        if self._state is Life.OVER or self.inherited:
            return self._failure or self._sessions[0].failure
        if self._state is Life.DEALING:
            return None
        sessions = self._sessions
        failures = [failure for each in sessions if (failure := each.failure) is not None]
        if not failures:
            return None
        with self._lock:
            if not self._is_whole or sessions is not self._sessions:
                return self._failure
            told = next((each for each in failures if not isinstance(each, SwitchLostError)), None)
            if told is not None:
                self._over(told)
            else:
                self._shard_is_lost(failures[0])
            return self._failure

    @property
    def _is_whole(self) -> bool:
        return self._state is Life.WHOLE

    def _shard_is_lost(self, failure: FaninError) -> None:
        """Begin to deal anew (called with the lock held)."""
        if self._state is not Life.WHOLE:
            return
        if len(self._sessions) == 1:
            self._over(failure)
            return
        for kept in self._kept:
            self._done(kept.ticket)  # the last ones: from here on what is done does not change
        self._state = Life.DEALING
        self._dealer = threading.Thread(target=self._deal_anew, args=(failure,), name="fanin-dealing", daemon=True)
        self._dealer.start()

    def _over(self, failure: FaninError) -> None:
        """Stop all sessions (called with the lock held)."""
        if self._state is Life.OVER:
            return
        for kept in self._kept:
            self._done(kept.ticket)
        self._state, self._failure = Life.OVER, failure
        for each in self._sessions:
            each.abandon(failure)
        self._changed.notify_all()

    def _wait_until_dealt(self) -> None:
        while self._state is Life.DEALING:
            self._changed.wait(WAIT_SLICE_S)
        self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._state is Life.OVER:
            assert self._failure is not None
            raise self._failure.with_traceback(None)

    # --- going on with the shards that are left ---

    def _deal_anew(self, failure: FaninError) -> None:
        """In a thread of its own; never raises."""
        try:
            agreed = self._agree(failure)
            sessions = self._join_successor(agreed)
        except FaninError as error:
            with self._lock:
                self._over(error)
            return
        except Exception as error:  # a bug, which must not leave anybody waiting
            with self._lock:
                self._over(FaninError(f"job {self.job_name!r} could not be dealt anew: {error!r}"))
            return
        with self._lock:
            before = self._sessions
            if self._state is Life.OVER:
                leaving = tuple(sessions)
            else:
                leaving = before
                self._go_on(agreed, sessions, failure)
        leave_all(leaving, LEAVE_TIMEOUT_S)

    def _agree(self, failure: FaninError) -> control.Regrouped:
        """What the first shard that is left says, once all ranks that are left have asked it."""
        time.sleep(SETTLING_S)
        deadline = time.monotonic() + self.spec.liveness_timeout_s + AGREEMENT_GRACE_S
        lost = {number for number, each in zip(self._shards, self._sessions, strict=True) if _is_lost(each)}
        for number, session in zip(self._shards, self._sessions, strict=True):
            if number in lost:
                continue
            agreed = self._ask(session, lost, deadline)
            if agreed is not None:
                return agreed
            lost.add(number)
        raise SwitchLostError(
            str(self.address),
            f"job {self.job_name!r} goes on without shards that are lost, but none is left for rank {self.rank}: "
            f"{failure}",
        )

    def _ask(self, session: Session, lost: set[int], deadline: float) -> control.Regrouped | None:
        """Ask that shard until all ranks have; None when it is lost, too."""
        first, last, done = self._progress()
        waiting: tuple[int, ...] = ()
        key = self._options.curve_server_key
        try:
            with ControlClient(
                session.address, curve_server_key=key, timeout_s=ANSWER_TIMEOUT_S, credentials=session.credentials
            ) as client:
                while time.monotonic() < deadline and self._state is Life.DEALING:
                    pairs = zip(self._shards, self._sessions, strict=True)
                    lost |= {number for number, each in pairs if each is not session and _is_lost(each)}
                    said = control.Regroup(
                        job=self._successor, rank=session.rank, nonce=session.nonce, lost=tuple(sorted(lost)),
                        first=first, last=last, done=done,
                    )  # fmt: skip
                    reply = client.ask(said, ANSWER_TIMEOUT_S)
                    if isinstance(reply, control.Regrouped):
                        return reply
                    if isinstance(reply, control.Refused):
                        raise self._left_behind(reply, lost)
                    if isinstance(reply, control.Waiting):
                        waiting = tuple(self._ranks[worker] for worker in reply.missing)
                    time.sleep(ASK_INTERVAL_S)
        except SwitchUnreachableError:
            return None
        raise SwitchLostError(
            str(session.address),
            f"rank {self.rank} of job {self.job_name!r} has lost {self._named(lost)}, and ranks "
            f"{', '.join(map(str, waiting))} have not: it is the path between this rank and that shard that is lost. "
            "Remedy: look for a firewall or a broken link between the two",
        )

    def _left_behind(self, reply: control.Refused, lost: set[int]) -> FaninError:
        if reply.code != control.Refusal.MEMBER_LOST.value:
            return AdmissionError(reply.reason, reply.code)
        return WorkerLostError(
            (self.rank,),
            f"rank {self.rank} (this one) of job {self.job_name!r} has lost {self._named(lost)}, and the others go on "
            f"without it. Remedy: {reply.remedy}",
        )

    def _named(self, lost: set[int]) -> str:
        names = ", ".join(str(self._all_addresses[number]) for number in sorted(lost))
        return f"shard{'s' * (len(lost) > 1)} {names}"

    def _progress(self) -> tuple[int, int, tuple[int, ...]]:
        """The first ticket that is not done here, the last one, and ranges of those between that are done."""
        with self._lock:
            undone = [kept.ticket for kept in self._kept if not kept.is_done]
            last = self._submitted
        first = undone[0] if undone else last + 1
        ranges: list[int] = []
        for before, after in itertools.pairwise([*undone, last + 1]):
            if after - before > 1:
                ranges += (before + 1, after - 1)
        return first, last, tuple(ranges)

    def _join_successor(self, agreed: control.Regrouped) -> list[Session]:
        left = [number for number in self._shards if number not in agreed.lost]
        if not left:
            raise SwitchLostError(str(self.address), f"job {self.job_name!r}: {self._named(set(agreed.lost))} are lost")
        addresses = [self._all_addresses[number] for number in left]
        worker = agreed.ranks.index(self._ranks.index(self.rank))
        try:
            spread = self._first_spread.only(left)
            return self._rejoin(addresses, spread, agreed.successor, worker, len(agreed.ranks))
        except FaninError as error:
            raise SwitchLostError(
                str(self.address),
                f"job {self.job_name!r} has lost {self._named(set(agreed.lost))}, and more was lost before the others "
                f"were in use: {error}",
            ) from error

    def _go_on(self, agreed: control.Regrouped, sessions: list[Session], failure: FaninError) -> None:
        """Deal out at the new sessions what is not done everywhere (called with the lock held)."""
        self._past = self.counters()
        for each in self._sessions:  # before anything is written where these may still write
            each.abandon(failure)
        me = self._ranks.index(self.rank)
        ranks = tuple(self._ranks[worker] for worker in agreed.ranks)
        processes = next((each.processes for each in self._sessions if each.processes), ())
        for each in sessions:
            each.stands_for(self.rank, ranks, processes)
        gone = tuple(sorted(self._present.difference(ranks)))
        self._shards = tuple(number for number in self._shards if number not in agreed.lost)
        self._ranks, self._successor = ranks, agreed.successor
        self._use(sessions, self._first_spread.only(self._shards))
        self._note(gone, 0)
        log.warning(
            "job %r: %s lost; sums are dealt to the other %d from here on%s", self.job_name,
            self._named(set(agreed.lost)) + (" is" if len(agreed.lost) == 1 else " are"), len(sessions),
            f", over {len(ranks)} ranks" if gone else "",
        )  # fmt: skip
        self._state = Life.WHOLE
        self._kept.restart(self._sessions)
        self._kept.keep_only(agreed.again)
        for ticket, holder in zip(agreed.again, agreed.holders, strict=True):
            kept = self._kept.get(ticket)
            if not self._is_whole:  # lost another one meanwhile: that is agreed on anew
                return
            if kept is None and ticket <= self._submitted:
                self._over(FaninError(f"reduction {ticket} is needed by another rank, and rank {self.rank} forgot it"))
            elif kept is not None:
                self._deal(kept, kept.summed() if holder == control.NOBODY else kept.handed_on(holds=holder == me))
        self._changed.notify_all()

    # --- who is there ---

    @property
    def members(self) -> tuple[int, ...]:
        """As Session.members: the ranks that every shard waits for."""
        self._take_in()
        return tuple(sorted(self._present))

    def take_changes(self) -> list[MembershipChange]:
        """As Session.take_changes; `base` is that of the shard that told first, 0 where flows were dealt anew."""
        self._take_in()
        with self._lock:
            changes = list(self._news)
            self._news.clear()
        return changes

    def _take_in(self) -> None:
        told = [change for each in self._sessions for change in each.take_changes()]
        with self._lock:
            for change in told:
                self._note(change.gone, change.base)

    def _note(self, ranks: Sequence[int], base: int) -> None:
        """Ranks are gone, as one shard says (called with the lock held)."""
        gone = tuple(rank for rank in ranks if rank in self._present)
        if not gone:
            return
        self._present.difference_update(gone)
        members = tuple(sorted(self._present))
        self._news.append(MembershipChange(at_s=time.time(), gone=gone, come=(), members=members, base=base))

    def counters(self) -> dict[str, int | float]:
        """As ShardedSession.counters, with those of shards that were left or lost."""
        return added_up([self._past, super().counters()])

    def close(self, timeout_s: float = 10) -> None:
        """As Session.close."""
        if self.inherited:
            return
        with self._changed:
            closed = FaninError(f"the session of rank {self.rank} in job {self.job_name!r} is closed")
            if self._state is Life.DEALING:
                self._over(closed)
            elif self._state is Life.WHOLE:  # the sessions leave in order
                for kept in self._kept:
                    self._done(kept.ticket)
                self._state, self._failure = Life.OVER, closed
                self._changed.notify_all()
        if self._dealer is not None and self._dealer is not threading.current_thread():
            self._dealer.join()
        super().close(timeout_s)


def _is_lost(session: Session) -> bool:
    return isinstance(session.failure, SwitchLostError)
