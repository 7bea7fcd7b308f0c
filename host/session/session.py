"""A worker's membership in one job: it joins by name, submits reductions and waits for them, and reports failures.

`Session` is the only thing that a framework's adapter (host/torch) needs of the host stack. It owns the engine;
whatever goes wrong becomes one typed error of `fanin.errors`, which names ranks, address and remedy, and stays.

A wait goes straight to the engine, so that a small reduction costs no detour through another thread. Events are read by
whoever needs one: the thread in `next_progress`, or the first one that finds the engine failed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from types import TracebackType

from fanin.errors import (
    CollectiveMismatchError,
    ConfigurationError,
    FaninError,
    PathNarrowedError,
    SwitchLostError,
)
from fanin.host.engines.engine import Engine
from fanin.host.session import joining
from fanin.host.session.exported import EXPORTED
from fanin.host.session.failures import (
    FAILURES,
    End,
    MemberNames,
    engine_stopped,
    packet_refused,
    path_moved,
    path_narrowed,
    path_suspected,
    reduction_late,
    session_closed,
    switch_ended,
    switch_silent,
    used_in_child,
    with_forgeries,
    workers_gone,
)
from fanin.host.session.line import LOOK_INTERVAL_S
from fanin.host.session.observing import Observer, observed
from fanin.host.session.outputs import check_outputs
from fanin.host.session.path import look_again
from fanin.host.session.questions import Questions
from fanin.host.session.spoilers import SpoiledSums, Spoiler
from fanin.interruptions import interrupts
from fanin.numerics.reduction import Element, PackedReduction, Reduction
from fanin.options import Options, Rounds, SwitchAddress
from fanin.protocol.events import (
    EngineStopped,
    MembersChanged,
    PacketRefused,
    PathNarrowed,
    ReductionDone,
    RoundHeard,
    Spoiled,
    SwitchSilent,
    WorkerEvent,
    WorkersGone,
)
from fanin.protocol.job import LEAVE_TIMEOUT_S, JobSpec
from fanin.protocol.seal import OPEN, Credentials

WAIT_SLICE_S = 0.5
"""Longest wait in the engine before it returns to Python, so that Ctrl-C is noticed."""
REASON_TIMEOUT_S = 2.0
"""How long a failed engine may take to say why."""
SPOILED_TIMEOUT_S = 1.0
"""How long another thread may take between reading and noting who has spoiled a sum."""
TELL_TIMEOUT_S = 1.0
"""Longest wait to tell the other ranks, through the controller, why this rank gives up."""
MAX_CHANGES = 1024
"""Changes of membership that are remembered for `take_changes`."""

log = logging.getLogger("fanin")


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """Ranks that have gone and come, in a job that goes on without those it loses."""

    at_s: float
    """When this rank heard of it, in seconds since 1970."""
    gone: tuple[int, ...]
    come: tuple[int, ...]
    members: tuple[int, ...]
    """The ranks that rounds wait for from here on."""
    base: int
    """Base from about which on rounds have these members; how many are in a round, its contributor count says."""


class Session:
    """One worker of one job. Thread safe: any thread may submit, wait and ask; one thread calls `next_progress`.

    It belongs to the process that joined. In a forked child `close` does nothing, since the worker does not end with
    the child, and whatever needs the engine raises FaninError.
    """

    address: SwitchAddress
    """The switch that serves the job."""
    job_name: str
    rank: int
    size: int
    spec: JobSpec
    """The controller's decision on the job."""
    flows: int
    """Flows that chunks are dealt to: chunk i goes with flow i mod flows."""
    newcomer: bool
    """Whether this rank came into a job that ran already (on_worker_loss="continue")."""
    first_base: int
    """The base of every slot with which this rank's first reduction begins: 0, but for a newcomer, which passes till
    then."""
    description: str
    """One line for people: job, rank, switch, engine (native or twin), transport, packet and window sizes."""

    def __init__(self, joined: joining.Joined, options: Options, credentials: Credentials | None = None) -> None:
        """Take over what a join has brought; called by `join`, and by tests that bring their own engine."""
        self.credentials = credentials or Credentials.of_job(options.secret)
        """The keys of this rank's requests to the controller."""
        self._engine: Engine = joined.engine
        self._who: MemberNames = joined.who
        self._questions = Questions(joined.who, options, self.credentials)
        self.nonce = joined.nonce
        """Random text by which the controller knows this rank, besides its number."""
        self._joined_path = joined.path
        self._path_was_suspected = False
        self._falls_back = options.fallback == "gloo"
        """Whether the group falls back to gloo: then its ranks agree among themselves when one has lost the switch."""
        self._process = os.getpid()
        self._line = joined.line
        self.spec = joined.spec
        self.flows = joined.flows
        self.newcomer, self.first_base = joined.newcomer, joined.first_base
        self.address, self.job_name = joined.who.address, joined.who.job_name
        self.rank, self.size = joined.who.rank, joined.who.size
        spec = joined.spec
        self.description = (
            f"job {self.job_name!r} rank {self.rank} of {self.size} at {self.address}: {joined.engine.description}, "
            f"{spec.words_per_packet} words per packet ({spec.packet_bytes} bytes), {spec.slots} slots"
            f"{', accumulators for wide sums' * spec.accumulators}"
            f"{', checksums' * spec.checksum}{f', keyed tags ({spec.tag})' * bool(spec.data_key)}"
        )
        self.observer: Observer | None = None
        """Told of every ticket, after its reduction was submitted (host/torch/collectives/timeline.py)."""
        self._lock = threading.Lock()
        """Lock of the attributes below."""
        self._failure: FaninError | None = None
        self.switch_is_dead = False
        """Whether the switch's process is known to have ended: it is not just out of reach."""
        self._over = threading.Event()
        """Set once the session has failed or is closed."""
        self._closed = False
        self._followed = False
        self._members = tuple(range(self.size))
        self._changes: deque[MembershipChange] = deque(maxlen=MAX_CHANGES)
        self._spoiled_sums = SpoiledSums()
        for event in joined.events:
            self._take(event)

    @classmethod
    def join(cls, terms: joining.JoinTerms) -> Session:
        """Become rank `terms.rank` of the job's workers; returns when all of them are reachable.

        A job is known by its name and by the secret that its ranks share: terms.credentials, or options.secret
        (FANIN_SECRET). Without either, whoever knows the name may join it, take a rank before its owner, and end it; a
        warning says so where the switch is not on this machine (docs/security.md).

        Raises SwitchUnreachableError (within options.connect_timeout_s), JoinTimeoutError naming the ranks that are
        missing (after options.join_timeout_s), AdmissionError when the controller refuses, WorkerLostError when a rank
        dies meanwhile, ConfigurationError.

        Where the job runs already with options.on_worker_loss="continue", and has lost or been left by this very rank,
        this process takes its place: `newcomer` is True, and `first_base` says where its reductions begin. It passes
        all bases before that, and must get the state of training there from a peer. Its reductions need a `signature`.
        """
        options, given = terms.options, terms.credentials
        check_outputs(options, terms.rank)
        if given is None and options.secret is None and not terms.switch.is_loopback:
            log.warning(
                "job %r at %s has no secret: whoever reaches the switch and knows the name may join and end it. "
                "Remedy: give all ranks the same FANIN_SECRET",
                terms.job_name,
                terms.switch,
            )
        credentials = given or Credentials.of_job(options.secret)
        if options.authenticate and credentials.name == OPEN.name:
            raise ConfigurationError(
                f"job {terms.job_name!r} has no secret, from which authenticate=True derives the key of its packets' "
                "tags. Remedy: give all ranks the same FANIN_SECRET"
            )
        session = cls(joining.join(replace(terms, credentials=credentials)), options, credentials)
        if options.metrics is not None:
            try:
                EXPORTED.add(session, options.metrics)
            except BaseException:
                session.close()
                raise
        return session

    @observed
    def submit(self, reduction: Reduction) -> int:
        """Start a reduction; returns its ticket (1, 2, ...). Every rank submits the same ones in the same order.

        Raises the session's failure when it has failed. The memory must live until the ticket is done.
        """
        self._raise_if_over()
        return self._engine.submit(reduction)

    def wait(self, ticket: int, timeout_s: float | None = None) -> None:
        """Return when the ticket's result is in place (GIL released meanwhile).

        Raises the session's failure (WorkerLostError, SwitchLostError, CollectiveMismatchError, ...) if the ticket can
        no longer finish, CollectiveTimeoutError after `timeout_s` seconds (the reduction goes on). None: no limit.
        """
        if self.inherited:
            raise used_in_child(self._who)
        if self._engine.wait(ticket, WAIT_SLICE_S if timeout_s is None else min(timeout_s, WAIT_SLICE_S)):
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s - WAIT_SLICE_S
        while True:
            self._raise_if_over()
            trouble = self.path_trouble
            slice_s = LOOK_INTERVAL_S if self._line is not None and self._line.suspects else WAIT_SLICE_S
            slice_s = slice_s if deadline is None else min(deadline - time.monotonic(), slice_s)
            if slice_s <= 0:
                assert timeout_s is not None
                raise self.late(ticket, timeout_s, trouble)
            if self._engine.wait(ticket, slice_s):
                return

    def submit_and_wait(self, packed: PackedReduction, owner: object) -> int:
        """Submit a reduction and wait for it a moment: the fast path.

        0 when it is done; otherwise, after WAIT_SLICE_S or a failure, its ticket, for `wait`. `owner` keeps the memory
        alive till it is done.
        """
        if self.observer is not None:  # it is told of tickets, and the engine gives none to what is done at once
            return self.submit(Reduction.of(packed, owner))
        return self._engine.submit_and_wait(packed, WAIT_SLICE_S, owner)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """This session alone, for the interface of ShardedSession."""
        return (self,)

    def counts_at(self, ticket: int, count: int, element: Element, lanes: int) -> list[tuple[int, int]]:
        """All elements at this session, for the interface of ShardedSession."""
        return [(0, count)]

    def late(self, ticket: int, timeout_s: float, trouble: str | None = None) -> FaninError:
        """The error for a reduction that was not done within the time though no rank is known to be gone.

        `trouble`: `path_trouble`, if the caller has it already.
        """
        narrow = self.path_trouble if trouble is None else trouble
        return reduction_late(self.job_name, self.address, self.rank, ticket, timeout_s, narrow)

    def done(self, ticket: int) -> bool:
        """Whether the ticket's result is in place. False for ever for one that failed: see `failure`."""
        return self._engine.done(ticket)

    @property
    def spoiled(self) -> bool:
        """Whether any sum so far was spoiled: by NaN or infinities of some rank."""
        return self._engine.spoiled > 0

    def spoilers_of(self, ticket: int) -> list[Spoiler]:
        """The ranks that have spoiled that sum, which is done, in their order; of the latest MAX_SUMS such sums."""
        deadline = time.monotonic() + SPOILED_TIMEOUT_S
        self._read_events()
        while self._spoiled_sums.taken < self._engine.spoiled and time.monotonic() < deadline:
            time.sleep(0.0)  # another thread has read an event, and is about to note it
            self._read_events()
        with self._lock:
            return self._spoiled_sums.of(ticket)

    def follow(self) -> None:
        """Report every event by `next_progress` from now on, to one thread; called before the first submit."""
        self._followed = True
        self._engine.subscribe()

    def next_progress(self, timeout_s: float) -> ReductionDone | RoundHeard | None:
        """The next event of a job with staleness, or None after `timeout_s`. Raises the session's failure."""
        event = self._engine.next_event(timeout_s)
        if isinstance(event, ReductionDone | RoundHeard):
            return event
        if event is not None:
            self._take(event)
        self._raise_if_over()
        return None

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the one that joined."""
        return os.getpid() != self._process

    @property
    def failure(self) -> FaninError | None:
        """The error that has ended this session for good, or None; the first failure stays the one that is reported."""
        if self.inherited:
            return used_in_child(self._who)
        if self._failure is None and not self._closed:
            if self._engine.failed:
                self._find_failure()
            elif self._line is not None and (end := self._line.poll()) is not None:
                self._switch_is_gone(end)
        return self._failure

    def tune(self, *, quorum: int | None = None, staleness: int | None = None) -> Rounds:
        """Change K, S or both for all workers of the job while it runs; returns what is in force then.

        Each slot applies it between two packets: a round closes under what is in force when it closes. With neither,
        nothing changes. Raises AdmissionError for values that the job was not admitted for (max_staleness),
        SwitchUnreachableError within connect_timeout_s.
        """
        return self._questions.tune(quorum, staleness, self._who)

    @property
    def path_trouble(self) -> str:
        """Trouble of a path that loses long packets now while short ones pass, with the remedy; else empty.

        The log says it as well, once for each time it begins.
        """
        suspected = bool(self._engine.counters().get("path_suspected", 0))
        trouble = path_suspected(self._who, self.spec) if suspected else ""
        if suspected and not self._path_was_suspected:
            log.warning("%s. %g s of it end the job", trouble, self.spec.liveness_timeout_s)
        self._path_was_suspected = suspected
        return trouble

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that rounds wait for, as far as this one has heard."""
        self._read_events()
        return self._members

    @property
    def known_members(self) -> tuple[int, ...]:
        """The ranks that rounds wait for, by news that was read before: takes no time."""
        return self._members

    def take_changes(self) -> list[MembershipChange]:
        """Changes of membership since the last call, oldest first (the last MAX_CHANGES); on_worker_loss="continue"."""
        self._read_events()
        with self._lock:
            changes = list(self._changes)
            self._changes.clear()
        return changes

    def counters(self) -> dict[str, int | float]:
        """The engine's counters by name: packets_out, bytes_out, retransmissions, srtt_us, ..."""
        return dict(self._engine.counters())

    def close(self, timeout_s: float = 10) -> None:
        """Leave the job (the others are told) and release everything; idempotent, bounded.

        Raises nothing but what interrupts it, as a signal handler may.
        """
        if self.inherited:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        confirmed = False

        def tell_controller() -> None:
            if not confirmed and not isinstance(self._failure, SwitchLostError):
                self._questions.leave(self.nonce, self._failure, timeout_s)

        # No caller could act on a failure of one step, and it must not keep the others from being done: above all,
        # nothing may write to tensors from here on. An ExitStack runs the last callback first.
        try:
            with contextlib.ExitStack() as steps:
                steps.callback(self._over.set)
                steps.callback(tell_controller)
                if self._line is not None:
                    steps.callback(self._line.close)
                steps.callback(self._engine.close)
                steps.callback(EXPORTED.remove, self)
                confirmed = not self._engine.failed and self._engine.leave(min(timeout_s, LEAVE_TIMEOUT_S))
        except Exception as error:
            if interrupts(error):
                raise

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- events and failure ---

    def _take(self, event: WorkerEvent) -> None:
        if isinstance(event, MembersChanged):
            self._note(event)
        elif isinstance(event, Spoiled):
            # In a tree places are ranks; elsewhere workers have the places, and may stand for other ranks.
            rank = event.place if self.spec.places else self._who.ranks(1 << event.place)[0]
            with self._lock:
                self._spoiled_sums.take(event, rank)
        elif isinstance(event, FAILURES):
            error = self._explain(event)
            narrowed = isinstance(error, PathNarrowedError) and not self._falls_back
            if narrowed or isinstance(error, CollectiveMismatchError):
                # The other ranks wait for this one, and would only see that it is gone, not why.
                with contextlib.suppress(FaninError):
                    self._questions.leave(self.nonce, error, TELL_TIMEOUT_S, own=True)
            self._fail(error)

    def _note(self, event: MembersChanged) -> None:
        """Record a change of membership, and log it, so that a user sees that the job continues without a rank."""
        change = MembershipChange(
            at_s=time.time(),
            gone=self._who.ranks(event.gone),
            come=self._who.ranks(event.come),
            members=self._who.ranks(event.members),
            base=event.base,
        )
        with self._lock:
            self._members = change.members
            self._changes.append(change)
        told = [f"{self._who.name(change.gone)} is gone"] if change.gone else []
        processes = tuple("" if rank in change.come else name for rank, name in enumerate(self._who.processes))
        self._who = replace(self._who, processes=processes)  # a newcomer is another process than its predecessor
        told += [f"{self._who.name(change.come)} has come"] if change.come else []
        log.warning(
            "job %r at %s: %s; rounds from about %d on are of %d ranks",
            self.job_name,
            self.address,
            " and ".join(told) or "no change",
            change.base,
            len(change.members),
        )

    def _read_events(self) -> None:
        """Take in the engine's events, unless a thread follows progress and reads them."""
        if self._followed:
            return
        while (event := self._engine.next_event(0.0)) is not None:
            self._take(event)

    def _find_failure(self) -> None:
        """The engine has failed: read its events until one says why, or another thread has read it."""
        deadline = time.monotonic() + REASON_TIMEOUT_S
        while not self._over.is_set():
            event = self._engine.next_event(0.05)
            if event is not None:
                self._take(event)
            elif time.monotonic() >= deadline:
                self._fail(engine_stopped(self._who, self._engine.trouble or "without saying why"))

    def stands_for(self, rank: int, ranks: tuple[int, ...], processes: tuple[str, ...]) -> None:
        """Name the workers by these ranks of a larger job that this one is part of, in errors, logs and `members`."""
        self._read_events()
        with self._lock:
            self._who = who = replace(self._who, rank=rank, worker_ranks=ranks, processes=processes)
            # Changes that were heard of before name workers by their numbers in this job: rename them as well.
            self._members = tuple(ranks[worker] for worker in self._members)
            for at, change in enumerate(self._changes):
                gone, come, members = (
                    tuple(who.worker_ranks[worker] for worker in workers)
                    for workers in (change.gone, change.come, change.members)
                )
                self._changes[at] = replace(change, gone=gone, come=come, members=members)

    @property
    def processes(self) -> tuple[str, ...]:
        """`host:pid` by rank, once known."""
        return self._who.processes

    def abandon(self, failure: FaninError) -> None:
        """Stop without a BYE to the switch: `failure`, elsewhere, has ended the job that this session is a part of.

        Nothing is written to tensors any more, and `done` does not change. `close` is still to be called.
        """
        if self._failure is None and not self._closed:
            self._fail(failure)
        self._engine.close()

    def _switch_is_gone(self, end: End) -> None:
        """Fail, since the control connection has shown that the process ended: silence would show it later."""
        self.switch_is_dead = True
        self._fail(switch_ended(self._who, end))
        self._engine.close()  # from here on nothing writes to tensors

    def _explain(self, event: WorkersGone | SwitchSilent | PathNarrowed | PacketRefused | EngineStopped) -> FaninError:
        timeout_s = self.spec.liveness_timeout_s
        if isinstance(event, EngineStopped):
            return engine_stopped(self._who, event.text)
        if isinstance(event, WorkersGone):
            lost, left = self._who.ranks(event.lost), self._who.ranks(event.left)
            explanation = self._questions.explain(self.spec.generation) if lost else None
            return workers_gone(self._who, lost, left, timeout_s, explanation)
        if isinstance(event, SwitchSilent):
            trouble = with_forgeries(self._engine.trouble, self._engine.counters().get("dropped_tag", 0))
            firewall = self._line is not None and self._line.is_refused_by_others
            explanation = None if firewall else self._questions.explain(self.spec.generation)
            moved = path_moved(self._joined_path, look_again(self.address))
            return switch_silent(self._who, event.silent_s, trouble, explanation, moved=moved, firewall=firewall)
        if isinstance(event, PathNarrowed):
            return path_narrowed(self._who, event, timeout_s, self._joined_path, look_again(self.address))
        return packet_refused(self._who, event.reason, self._questions.explain(self.spec.generation), timeout_s)

    def _fail(self, error: FaninError) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error
        self._over.set()

    def _raise_if_over(self) -> None:
        if (failure := self.failure) is not None:
            raise failure.with_traceback(None)
        if self._closed:
            raise session_closed(self.job_name, self.rank, self.address)
