"""One job over several shards that goes on when ranks, or shards, are lost (on_worker_loss="continue").

What is dealt out, kept and agreed on is decided in survivor.py, which has the rules. Here are its threads: a lock, the
waits of the program's threads, and a thread that carries the agreement's questions and joins the new job.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import cast

from fanin.errors import CollectiveTimeoutError, FaninError, SwitchUnreachableError
from fanin.host.session.card_survivor import CardSurvivor, Ways
from fanin.host.session.control import ControlClient
from fanin.host.session.failures import MemberNames, broken, session_closed
from fanin.host.session.observing import observed
from fanin.host.session.session import MAX_CHANGES, WAIT_SLICE_S, MembershipChange, Session
from fanin.host.session.shards import Part, ShardedSession, added_up, leave_all
from fanin.host.session.survivor import LostOnTheWay, Successor, Survivor, SurvivorState
from fanin.numerics.reduction import PackedReduction, Reduction
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.protocol.seal import Credentials
from fanin.protocol.spread import Spread

LEAVE_TIMEOUT_S = 2.0
DOUBT_INTERVAL_S = 0.01
"""Longest time between two looks at whether a sum is still in doubt."""
LOOK_INTERVAL_S = 0.1
"""Longest time between two checks for further losses while the ranks agree."""
CONNECT_TIMEOUT_S = 2.0
"""Time limit for connecting to the shard that is asked how to go on."""

Rejoin = Callable[
    [Sequence[SwitchAddress], Successor, Callable[[], None]],
    list[Session | LostOnTheWay],
]
"""Joins the successor at its shards, which have these addresses (made by join_shards).

Returns a session per shard, or the error in its place where that shard is lost, too, or has lost this rank; at least
one is a session. The last argument is `JoinTerms.interrupted`.
"""

log = logging.getLogger("fanin")


class SurvivingSession(ShardedSession):
    """One worker of a job over shards that goes on without lost ranks and shards."""

    def __init__(
        self, sessions: Sequence[Session], job_name: str, rejoin: Rejoin, options: Options,
        spread: Spread | None = None, ways: Ways | None = None,
    ) -> None:  # fmt: skip
        """`rejoin` joins a successor. Parts of a lost shard go to the others, in proportion to `spread`. `ways`: this
        rank's to the shards, in a job that goes on without a network, and with all of its ranks (card_survivor.py);
        None: in one that goes on without lost ranks."""
        super().__init__(sessions, job_name, spread)
        self._first_spread = self._spread
        self._rejoin, self._options = rejoin, options
        self._all_addresses = tuple(each.address for each in sessions)
        self._ways = ways
        self._asked = self._all_addresses if ways is None else ways.shards
        """The switch to ask how to go on, by shard: a leaf decides nothing."""
        self._at = dict(enumerate(sessions))
        """Sessions by shard; a change replaces the dictionary, so that its identity shows whether it changed."""
        self._changed = threading.Condition(self._lock)
        kept_by = Survivor if ways is None else functools.partial(CardSurvivor, cards=ways.cards)
        self._survivor = kept_by(
            job_name, self.rank, self.size, sessions, self._spread, [str(each) for each in self._asked]
        )
        self._present = set(self._survivor.ranks)
        self._news: deque[MembershipChange] = deque(maxlen=MAX_CHANGES)
        self._dealer: threading.Thread | None = None
        self._past: dict[str, int | float] = {}
        """Counters of the sessions before the present ones."""

    # --- reductions ---

    @observed
    def submit(self, reduction: Reduction) -> int:
        """Deal a reduction out and return its ticket; waits while the ranks agree on who is left."""
        with self._changed:
            while self._survivor.state is SurvivorState.DEALING:
                self._changed.wait(WAIT_SLICE_S)
            self._raise_if_over()
            ticket = self._survivor.submit(reduction, time.monotonic())
            self._follow()
            self._raise_if_over()
        return ticket

    def submit_and_wait(self, packed: PackedReduction, owner: object) -> int:
        """Submit, and return the ticket: all reductions are kept, so there is no fast path."""
        return self.submit(Reduction.of(packed, owner))

    def wait(self, ticket: int, timeout_s: float | None = None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = WAIT_SLICE_S if deadline is None else min(WAIT_SLICE_S, max(0.0, deadline - time.monotonic()))
            with self._changed:
                if self._survivor.done(ticket):
                    return
                self._raise_if_over()
                kept = self._survivor.kept.get(ticket)
                dealing = kept is None or self._survivor.state is SurvivorState.DEALING
                in_doubt = kept is not None and not dealing and kept.is_summed and kept.is_in_doubt
                parts = () if kept is None or dealing or in_doubt else cast("tuple[Part, ...]", kept.parts)
                if not parts:
                    self._changed.wait(min(left_s, DOUBT_INTERVAL_S) if in_doubt else left_s)
            try:
                for session, part in parts:
                    session.wait(part, left_s)
            except CollectiveTimeoutError:
                if deadline is not None and timeout_s is not None and time.monotonic() >= deadline:
                    raise session.late(ticket, timeout_s) from None
            except FaninError:
                if self.inherited:
                    raise
            if not parts and deadline is not None and time.monotonic() >= deadline:
                why = "a shard is lost, and the ranks have not yet agreed on how to go on"
                if in_doubt:
                    why = "it lacks a rank that some shards have lost, and others have not yet"
                raise CollectiveTimeoutError(
                    f"Timed out: reduction {ticket} of job {self.job_name!r} is not done on rank {self.rank} after "
                    f"{timeout_s:g} s: {why}. Remedy: allow more time"
                )
            _ = self.failure  # look for failures of shards that have no part of this ticket, too

    @property
    def spoiled(self) -> bool:
        """False: what is dealt anew when a shard is lost has other parts, and nobody is named (docs/nonfinite.md)."""
        return False

    def done(self, ticket: int) -> bool:
        with self._lock:
            return self._survivor.done(ticket)

    # --- failure ---

    @property
    def failure(self) -> FaninError | None:
        """The error that has ended this session, or None; a lost shard is no failure as long as others are left."""
        if self.inherited:
            return self.sessions[0].failure
        if self._survivor.state is SurvivorState.WHOLE:
            self._take_failures()
        return self._survivor.failure

    def _take_failures(self) -> None:
        """Tell the survivor which sessions have failed, and let it see which results have come."""
        sessions, gone = self._at, set(self._survivor.lost)
        homes = () if self._ways is None else self._ways.homes
        failures: dict[int, FaninError] = {}
        # A switch out of reach is asked for a second why a session has failed. So it is not asked once its loss is
        # known, and those on this host, which answer and name ranks, are asked first.
        for number in sorted(sessions, key=lambda each: each not in homes):
            _ = sessions[number].members  # reads news, by which doubts about sums end
            if (number not in gone or number in homes) and (failure := sessions[number].failure) is not None:
                failures[number] = failure
                gone = self._survivor.lost_with(gone | {number})
        with self._lock:
            if sessions is self._at and (failures or self._survivor.handing or self._survivor.shards_disagree):
                self._survivor.lose(failures, time.monotonic())
                self._survivor.take_results(time.monotonic())
                self._follow()

    def _follow(self) -> None:
        """Do what the survivor's state asks for: start the thread that deals anew, or wake all waits (lock held)."""
        if self._survivor.state is SurvivorState.DEALING and self._dealer is None:
            self._dealer = threading.Thread(target=self._deal_anew, name="fanin-dealing", daemon=True)
            self._dealer.start()
        elif self._survivor.state is SurvivorState.OVER:
            self._changed.notify_all()

    def _interrupted(self) -> None:
        """Cancel a join of the successor by raising, if this session is over."""
        with self._lock:
            self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._survivor.state is SurvivorState.OVER:
            assert self._survivor.failure is not None
            raise self._survivor.failure.with_traceback(None)

    # --- going on with the shards that are left ---

    def _deal_anew(self) -> None:
        """Agree with the other ranks and join the successor, until the job is whole or over; a thread, never raises."""
        questions = _Questions(self._options)
        joining: threading.Thread | None = None
        try:
            while self._dealing():
                self._take_failures()
                with self._lock:
                    survivor, now = self._survivor, time.monotonic()
                    if (agreement := survivor.agreement) is not None:
                        agreement.handle_timer(now)
                        survivor.after_turn()
                    self._follow()
                    successor = survivor.successor
                    requests = [] if agreement is None else agreement.requests(now)
                    at = None if agreement is None else agreement.next_timer()
                if successor is not None and (joining is None or not joining.is_alive()):
                    joining = threading.Thread(target=self._join, args=(successor,), name="fanin-joining", daemon=True)
                    joining.start()
                lost = [shard for shard, request in requests if not self._ask(questions, shard, request)]
                left_s = LOOK_INTERVAL_S if at is None else min(max(at - time.monotonic(), 0.0), LOOK_INTERVAL_S)
                reply = None if lost else questions.answer(left_s)
                with self._lock:
                    if agreement is not None and agreement is survivor.agreement:
                        for shard in lost:
                            agreement.lose(shard, time.monotonic())
                        if reply is not None:
                            agreement.receive(*reply, time.monotonic())
        except Exception as error:  # what a shard refuses, or a bug, which must not leave anybody waiting
            with self._lock:
                self._survivor.end(self._error_for(error, "the thread that deals anew"))
                self._dealer = None
                self._follow()
        finally:
            questions.close()
            if joining is not None:
                joining.join()

    def _ask(self, questions: _Questions, shard: int, request: control.Regroup) -> bool:
        return questions.ask(self._asked[shard], self._at[shard].credentials, shard, request)

    def _dealing(self) -> bool:
        with self._lock:
            if self._survivor.state is SurvivorState.DEALING:
                return True
            self._dealer = None
            self._changed.notify_all()
            return False

    def _join(self, successor: Successor) -> None:
        """Join the successor; runs in a thread of its own."""
        addresses = [self._all_addresses[number] for number in successor.shards]
        try:
            found = self._rejoin(addresses, successor, self._interrupted)
        except Exception as error:
            with self._lock:
                if self._survivor.state is not SurvivorState.OVER:
                    self._survivor.cannot_join(self._error_for(error, "the thread that joins again"))
                self._follow()
            return
        sessions = {
            number: each for number, each in zip(successor.shards, found, strict=True) if isinstance(each, Session)
        }
        with self._lock:
            if self._survivor.state is SurvivorState.OVER:
                leaving = tuple(sessions.values())
            else:
                leaving = self.sessions
                self._go_on(sessions)
        leave_all(leaving, LEAVE_TIMEOUT_S)

    def _error_for(self, error: Exception, what: str) -> FaninError:
        """`error`, or where it is none of fanin's, the error of this session for it."""
        if isinstance(error, FaninError):
            return error
        who = MemberNames(address=self.address, job_name=self.job_name, rank=self.rank, size=self.size)
        return broken(who, what, error)

    def _go_on(self, sessions: dict[int, Session]) -> None:
        """Go over to the sessions at the successor, which this rank has joined (called with the lock held)."""
        survivor = self._survivor
        self._past = self.counters()
        news = survivor.going_on(sessions.keys())
        superseded = FaninError(
            f"rank {self.rank}: job {self.job_name!r} goes on at other shards. Remedy: none is needed"
        )
        for each in self.sessions:  # first, since they may still write to memory that is reduced anew
            each.abandon(superseded)
        processes = next((each.processes for each in self.sessions if each.processes), ())
        self._at = sessions
        if self._ways is None:  # else its workers are the same ranks
            for each in sessions.values():
                each.stands_for(self.rank, survivor.successors_ranks, processes)
        survivor.joined(sessions, time.monotonic())
        self._use(tuple(sessions.values()), self._first_spread.only(tuple(sessions)))
        self._note(self._present.difference(survivor.ranks), 0)
        log.warning("job %r: %s", self.job_name, news)
        self._changed.notify_all()

    # --- who is there ---

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that any shard waits for: one that some have lost may go on without these (doubt.py)."""
        self._take_in()
        return tuple(sorted(self._present))

    def take_changes(self) -> list[MembershipChange]:
        """Changes of the membership, as in `Session.take_changes`: a rank is gone once every shard has lost it. `base`
        is that of the shard that told last, 0 where flows were dealt anew.
        """
        self._take_in()
        with self._lock:
            changes = list(self._news)
            self._news.clear()
        return changes

    def _take_in(self) -> None:
        sessions = self.sessions
        told = [change for each in sessions for change in each.take_changes()]
        with self._lock:
            if told and sessions is self.sessions:
                left = {rank for each in sessions for rank in each.known_members}
                self._note(self._present - left, max(change.base for change in told))

    def _note(self, ranks: Collection[int], base: int) -> None:
        """Record that ranks are gone (called with the lock held)."""
        gone = tuple(sorted(self._present.intersection(ranks)))
        if not gone:
            return
        self._present.difference_update(gone)
        members = tuple(sorted(self._present))
        self._news.append(MembershipChange(at_s=time.time(), gone=gone, come=(), members=members, base=base))

    def counters(self) -> dict[str, int | float]:
        """Counters of the present shards, with those of shards that were left or lost."""
        return added_up([self._past, super().counters()])

    def close(self, timeout_s: float = 10) -> None:
        if self.inherited:
            return
        with self._changed:
            closed = session_closed(self.job_name, self.rank, self.address)
            if self._survivor.state is SurvivorState.DEALING:
                self._survivor.end(closed)
            elif self._survivor.state is SurvivorState.WHOLE:
                self._survivor.leave(closed)
            self._changed.notify_all()
            dealer = self._dealer
        ends_at = time.monotonic() + timeout_s
        super().close(timeout_s)
        if dealer is not None and dealer is not threading.current_thread():
            # No longer than `timeout_s`: a join under way is cancelled, and a session that it still yields is closed.
            dealer.join(max(0.0, ends_at - time.monotonic()))


class _Questions:
    """The connection to the shard that is asked. One thread uses it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: ControlClient | None = None
        self._shard = -1

    def ask(self, address: SwitchAddress, credentials: Credentials, shard: int, request: control.Regroup) -> bool:
        """Whether the shard could be asked."""
        if self._client is None or self._client.address != address:
            self.close()
            try:
                self._client = ControlClient(
                    address, curve_server_key=self._options.curve_server_key, timeout_s=CONNECT_TIMEOUT_S,
                    credentials=credentials,
                )  # fmt: skip
            except SwitchUnreachableError:
                return False
            self._shard = shard
        self._client.send(request)
        return True

    def answer(self, timeout_s: float) -> tuple[int, control.Reply] | None:
        """The next reply of a shard, or None."""
        if self._client is None:
            time.sleep(timeout_s)
            return None
        reply = self._client.receive(timeout_s)
        return None if reply is None else (self._shard, reply)

    def close(self) -> None:
        """Close the connection to the shard."""
        if self._client is not None:
            self._client.close()
            self._client = None
