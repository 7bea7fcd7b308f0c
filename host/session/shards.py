"""One job spread over several switches: every worker is a member at each *shard*, and each shard sums a part.

A cluster of ordinary machines has no switch with a port per worker; a single process that sums for n hosts has one
link, and carries n times the tensor each way. So every host runs a switch, and sums are dealt to all of them: a link
then carries 2 (n - 1) / n of the tensor each way, a ring's bytes at any lane width, in two hops instead of 2 (n - 1)
(BytePS, OSDI 2020).

Rules
-----
* Every rank deals alike: from the reduction's number, element count and lanes, and nothing else.
* A large reduction is cut into contiguous parts, one per shard and as large as its weight says
  (fanin/protocol/spread.py), at multiples of the elements of a packet: the packets hold the same elements as at a
  single switch, so they share the same scales, and the result has the same bits.
* A small one goes whole to one shard, each to the next in turn: dealing it out would cost a packet per shard. An exact
  one goes whole as well, since its packets are not cut at elements.
* Each shard's session numbers what it is given, and all ranks give each shard the same things in the same order.
* The session over shards has one life, and the first thing that ends it ends it at all of them:

    state  | what is seen                        | next   | what is submitted | what is waited for
    -------+-------------------------------------+--------+-------------------+------------------------------------
    WHOLE  | a shard is lost                     | NAMING | is dealt out      | is waited for
           | a rank is lost, or anything else    | OVER   |                   |
    NAMING | a rank is lost, or anything else    | OVER   | waits             | is waited for
           | NAMING_GRACE_S pass                 | OVER   |                   |
    OVER   | (all sessions are stopped)          |        | raises            | is there if it was before, or raises

  A host that dies takes its shard along, which is noticed first, and a rank that is gone explains more: hence NAMING.
  In OVER no engine writes to tensors, and which tickets are done does not change any more: fallback="gloo" relies on
  both. A stopped session says no BYE, so that no other rank takes this one for a leaver while it finds out what has
  happened.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import threading
import time
from collections.abc import Iterator, Sequence

from fanin.errors import CollectiveTimeoutError, ConfigurationError, FaninError, SwitchLostError
from fanin.host.codecs.words import codec_class, codec_for
from fanin.host.session.observing import Observer, observed
from fanin.host.session.progress import Progress
from fanin.host.session.session import WAIT_SLICE_S, MembershipChange, Session
from fanin.host.session.spoilers import SpoiledSums, Spoiler
from fanin.host.session.threads import started
from fanin.numerics.reduction import Element, PackedReduction, Reduction
from fanin.options import Rounds, SwitchAddress
from fanin.protocol.events import ReductionDone, RoundHeard
from fanin.protocol.job import HEARTBEAT_INTERVAL_S, SUSPICION_TIMEOUT_S, JobSpec
from fanin.protocol.spread import MIN_PACKETS_PER_SHARD, Spread
from fanin.protocol.window import MAX_SHARDS

MAX_UNSEEN_TICKETS = 4096
"""Tickets that nobody has waited for and that are remembered; done ones beyond that are forgotten."""

NAMING_GRACE_S = SUSPICION_TIMEOUT_S + 2 * HEARTBEAT_INTERVAL_S
"""Wait, after a shard is lost, for the loss of its host's ranks to be noticed, which would explain more."""


class ShardsState(enum.Enum):
    """State of a session over shards: see the table above."""

    WHOLE = enum.auto()
    NAMING = enum.auto()
    OVER = enum.auto()


Part = tuple[Session, int]
"""A session and the ticket that it gave to a part."""


def elements_per_packet(spec: JobSpec, element: Element, lanes: int) -> int:
    """Number of elements that share a packet (docs/numerics.md); 0 for reductions that are not cut into parts."""
    if not codec_class(element, lanes).divisible:
        return 0
    return codec_for(element, lanes, 0, spec).packet_elements


def deal(reduction: Reduction, packet_elements: int, spread: Spread, turn: int) -> Iterator[tuple[int, Reduction]]:
    """The parts of the `turn`-th reduction, each with the number of its shard; all ranks get the same ones.

    A part keeps, and owns, those of its elements that the whole reduction keeps, and owns.
    """
    size, last = reduction.element.bytes, reduction.keep_first + reduction.kept
    for shard, first, end in spread.shares(reduction.count, packet_elements, turn):
        if end - first == reduction.count:
            yield shard, reduction
            return
        kept_first, kept_end = max(first, reduction.keep_first), min(end, last)
        kept = max(0, kept_end - kept_first)
        own_first, own_count, given_first = 0, -1, first
        if reduction.own_count >= 0:
            given_first = min(max(first, reduction.own_first), end)
            own_first = given_first - first
            own_count = max(0, min(end, reduction.own_first + reduction.own_count) - given_first)
        yield (
            shard,
            dataclasses.replace(
                reduction,
                source=reduction.source + (given_first - reduction.own_first) * size if own_count else reduction.source,
                own_first=own_first,
                own_count=own_count,
                destination=reduction.destination + (kept_first - reduction.keep_first) * size if kept else 0,
                counts=reduction.counts + first // packet_elements * 4 if reduction.counts else 0,
                arrivals=reduction.arrivals + first // packet_elements * 4 if reduction.arrivals else 0,
                count=end - first,
                residual=reduction.residual + first * 4 if reduction.residual else 0,  # float32, whatever the element
                keep_first=kept_first - first if kept else 0,
                keep_count=kept,
            ),
        )


class ShardedSession:
    """One worker of a job that is spread over several switches: an AnySession, with the calls of a stale job."""

    def __init__(self, sessions: Sequence[Session], job_name: str, spread: Spread | None = None) -> None:
        """Over sessions at the shards, in the same order on every rank; `job_name` is the whole job's, and `spread` how
        reductions are dealt to them (None: evenly).

        Raises ConfigurationError when the shards gave the job packets of different lengths: closes nothing then.
        """
        if not 1 <= len(sessions) <= MAX_SHARDS:
            raise ConfigurationError(
                f"{len(sessions)} shards; a job has at most {MAX_SHARDS}. Remedy: name fewer switches (FANIN_SWITCH)"
            )
        shapes = {(each.spec.words_per_packet, each.spec.codes_per_packet): each for each in sessions}
        if len(shapes) > 1:
            told = ", ".join(f"{words} words at {each.address}" for (words, _), each in shapes.items())
            raise ConfigurationError(
                f"job {job_name!r}: the shards take packets of different lengths: {told}. The paths to them have "
                f"different MTUs. Remedy: FANIN_WORDS_PER_PACKET={min(words for words, _ in shapes)} on every rank"
            )
        self.job_name = job_name
        self.rank, self.size = sessions[0].rank, sessions[0].size
        self._use(sessions, spread or Spread.evenly(len(sessions)))
        self.newcomer, self.first_base = False, 0
        self.observer: Observer | None = None
        self._lock = threading.Lock()
        """Lock of the attributes below."""
        self._submitted = 0
        self._life = ShardsState.WHOLE
        self._naming_until_s = 0.0
        self._failure: FaninError | None = None
        self._progress: Progress | None = None
        self._undone: frozenset[int] = frozenset()
        """In OVER: tickets that were not done by then, and never will be."""
        self._parts: dict[int, tuple[Part, ...]] = {}
        """Parts of tickets that no caller has seen finished, oldest first."""
        self._firsts: dict[int, tuple[int, ...]] = {}
        """The first elements of those parts, where there are several."""
        self._spoiled_sums = SpoiledSums()

    def _use(self, sessions: Sequence[Session], spread: Spread) -> None:
        """Deal reductions to these sessions from now on, and set the facts that follow: spec, flows, description."""
        self.sessions, self._spread = tuple(sessions), spread
        """The memberships at the shards, and how sums are dealt to them."""
        self.address: SwitchAddress = sessions[0].address
        # A reduction that one session would refuse is refused before any of them has a part of it.
        accumulators = all(each.spec.accumulators for each in sessions)
        self.spec = dataclasses.replace(sessions[0].spec, accumulators=accumulators)
        self.flows = sum(each.flows for each in sessions)
        where = ", ".join(in_words(each.address, number, spread) for number, each in enumerate(sessions))
        self.description = f"{sessions[0].description}; one of {len(sessions)} shards: {where}"
        self._packet_elements = functools.cache(functools.partial(elements_per_packet, self.spec))
        """By element type and lanes; cached, since every sum asks for it, and small sums are quick."""

    @observed
    def submit(self, reduction: Reduction) -> int:
        """Deal a reduction out and return its ticket.

        In NAMING nothing is dealt out, since no shard must get a part that others miss: it waits for the failure, and
        raises it.
        """
        try:
            return self._submit(reduction)
        except FaninError as error:
            raise self._settled(error).with_traceback(None) from None

    def _submit(self, reduction: Reduction) -> int:
        with self._lock:  # around all: every rank must give each shard the same things in the same order
            self._raise_unless_whole()
            ticket = self._submitted + 1
            packet_elements = self._packet_elements(reduction.element, reduction.lanes)
            dealt = deal(reduction, packet_elements, self._spread, ticket)
            parts: tuple[Part, ...] = ()
            firsts: tuple[int, ...] = (0,)
            try:
                for shard, part in dealt:
                    parts += ((self.sessions[shard], self.sessions[shard].submit(part)),)
                    firsts += (firsts[-1] + part.count,)
            except SwitchLostError:
                self._begin_naming()
                raise
            self._submitted = ticket
            self._parts[ticket] = parts
            if len(parts) > 1:
                self._firsts[ticket] = firsts
            if len(self._parts) > MAX_UNSEEN_TICKETS:
                self._forget_done()
        return ticket

    def submit_and_wait(self, packed: PackedReduction, owner: object) -> int:
        _, _, count, element, lanes, *_ = packed
        packet_elements = self._packet_elements(element, lanes)
        if self.observer is not None or (packet_elements and count > packet_elements * MIN_PACKETS_PER_SHARD):
            return self.submit(Reduction.of(packed, owner))
        try:
            with self._lock:
                self._raise_unless_whole()
                ticket = self._submitted = self._submitted + 1
            session = self.sessions[self._spread.in_turn(ticket)]
            left = session.submit_and_wait(packed, owner)
        except FaninError as error:
            raise self._settled(error).with_traceback(None) from None
        if not left:
            return 0
        with self._lock:
            self._parts[ticket] = ((session, left),)
        return ticket

    def wait(self, ticket: int, timeout_s: float | None = None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for session, part in self._parts.get(ticket, ()):
            self._wait_for(session, part, ticket, timeout_s, deadline)
        if self.spoiled:
            self._note_spoilers(ticket)
        with self._lock:
            if ticket in self._undone:
                assert self._failure is not None
                raise self._failure.with_traceback(None)
            self._parts.pop(ticket, None)
            self._firsts.pop(ticket, None)

    @property
    def spoiled(self) -> bool:
        """Whether any sum so far was spoiled, as in `Session.spoiled`."""
        return any(each.spoiled for each in self.sessions)

    def spoilers_of(self, ticket: int) -> list[Spoiler]:
        """The ranks that have spoiled that sum, as `Session.spoilers_of` says, in any of its parts."""
        self._note_spoilers(ticket)
        with self._lock:
            return self._spoiled_sums.of(ticket)

    def _note_spoilers(self, ticket: int) -> None:
        """Remember who has spoiled a sum while its parts are known."""
        parts = self._parts.get(ticket, ())
        for (session, part), first in zip(parts, self._firsts.get(ticket, (0,)), strict=False):
            found = [each._replace(first=first + each.first) for each in session.spoilers_of(part)]
            if found:
                with self._lock:
                    self._spoiled_sums.note(ticket, found)

    def _wait_for(
        self, session: Session, part: int, ticket: int, timeout_s: float | None, deadline: float | None
    ) -> None:
        """Wait for one part, in slices, since a failure at another shard ends this wait, too."""
        while True:
            left_s = WAIT_SLICE_S if deadline is None else min(WAIT_SLICE_S, max(0.0, deadline - time.monotonic()))
            try:
                return session.wait(part, left_s)
            except CollectiveTimeoutError:
                if (failure := self.failure) is not None:
                    raise failure.with_traceback(None) from None
                if deadline is not None and timeout_s is not None and time.monotonic() >= deadline:
                    raise session.late(ticket, timeout_s) from None
            except FaninError as error:
                raise self._settled(error).with_traceback(None) from None

    def done(self, ticket: int) -> bool:
        with self._lock:
            return self._done(ticket)

    def _done(self, ticket: int) -> bool:
        if self._life is ShardsState.OVER:
            return ticket not in self._undone
        return all(session.done(part) for session, part in self._parts.get(ticket, ()))

    def follow(self) -> None:
        """Follow the rounds, as `Session.follow` does, for jobs whose every reduction has a part at each shard: stale
        ones.
        """
        self._progress = Progress(self.sessions)

    def next_progress(self, timeout_s: float) -> ReductionDone | RoundHeard | None:
        """The next event, as of `Session.next_progress`: a round is reported once every shard has reported it."""
        assert self._progress is not None, "before `follow`"
        try:
            event = self._progress.next(timeout_s)
        except FaninError as error:
            raise self._settled(error).with_traceback(None) from None
        if isinstance(event, ReductionDone):
            with self._lock:
                self._parts.pop(event.ticket, None)
        return event

    def tune(self, *, quorum: int | None = None, staleness: int | None = None) -> Rounds:
        """Tune as `Session.tune` does, one shard after another: each slot has its own rounds at one switch, too."""
        first, *_ = [each.tune(quorum=quorum, staleness=staleness) for each in self.sessions]
        return first

    @property
    def failure(self) -> FaninError | None:
        if self._life is ShardsState.OVER or self.inherited:
            return self._failure or self.sessions[0].failure
        failures = [failure for each in self.sessions if (failure := each.failure) is not None]
        if not failures:
            return None
        with self._lock:
            return self._judge(failures)

    def _judge(self, failures: list[FaninError]) -> FaninError | None:
        """The failure of the whole that follows from these failures of sessions (called with the lock held)."""
        if self._life is ShardsState.OVER:  # by another thread's judgement
            return self._failure
        told = next((each for each in failures if not isinstance(each, SwitchLostError)), None)
        if told is None:
            self._begin_naming()
            told = failures[0] if time.monotonic() >= self._naming_until_s else None
        if told is not None:
            self._end(told)
        return told

    def _raise_unless_whole(self) -> None:
        if self._life is not ShardsState.WHOLE:
            raise self._failure or SwitchLostError(
                str(self.address),
                f"rank {self.rank} of job {self.job_name!r} has lost a shard of {self.address} and others. Remedy: see "
                "the output of the other ranks, then start the job again",
            )

    def _begin_naming(self) -> None:
        if self._life is ShardsState.WHOLE:
            self._life, self._naming_until_s = ShardsState.NAMING, time.monotonic() + NAMING_GRACE_S

    def _end(self, failure: FaninError) -> None:
        """Stop all sessions, and see which tickets were done by then (called with the lock held)."""
        self.abandon(failure)
        self._undone = frozenset(ticket for ticket in self._parts if not self._done(ticket))
        self._failure, self._life = failure, ShardsState.OVER

    def _settled(self, error: FaninError) -> FaninError:
        """The error to raise in a call that has met `error`: the session's failure, waiting for it while NAMING."""
        while isinstance(error, SwitchLostError) and self.failure is None:
            time.sleep(WAIT_SLICE_S / 10)
        return self.failure or error

    def counts_at(self, ticket: int, count: int, element: Element, lanes: int) -> list[tuple[int, int]]:
        """Return (number of a session, elements) for each part of that reduction."""
        packet_elements = self._packet_elements(element, lanes)
        dealt = self._spread.shares(count, packet_elements, ticket)
        return [(shard, end - first) for shard, first, end in dealt]

    @property
    def path_trouble(self) -> str:
        """Trouble of the first path that has any (Session.path_trouble)."""
        return next((trouble for each in self.sessions if (trouble := each.path_trouble)), "")

    @property
    def inherited(self) -> bool:
        return self.sessions[0].inherited

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that every shard waits for."""
        found = [set(each.members) for each in self.sessions]
        return tuple(sorted(set.intersection(*found)))

    def take_changes(self) -> list[MembershipChange]:
        """Return no changes: such a job ends with the first rank that it loses (surviving.py has one that does not)."""
        return []

    def counters(self) -> dict[str, int | float]:
        """Counters of all sessions, added up over the shards (srtt_us: the largest)."""
        return added_up([each.counters() for each in self.sessions])

    def abandon(self, failure: FaninError) -> None:
        for each in self.sessions:
            each.abandon(failure)

    def close(self, timeout_s: float = 10) -> None:
        leave_all(self.sessions, timeout_s)

    def _forget_done(self) -> None:
        for ticket in [ticket for ticket in self._parts if self._done(ticket)]:
            del self._parts[ticket]
            self._firsts.pop(ticket, None)


JoinedSession = Session | ShardedSession
"""A membership that is joined: at one switch, or at several shards."""


def in_words(address: SwitchAddress, number: int, spread: Spread) -> str:
    """Name of a shard, with its part of large sums if the parts differ."""
    return f"{address} ({spread.part(number):.1%})" if len(set(spread.weights)) > 1 else str(address)


def leave_all(sessions: Sequence[Session], timeout_s: float) -> None:
    """Close the sessions at the same time, since each waits for an answer of its switch.

    A program that ends without closing them does so at its exit, where pools start no threads any more, and Python 3.12
    starts none at all: then they are closed one after another.
    """
    ends_at = time.monotonic() + timeout_s
    waits = [(each, started(each.close, timeout_s, name="fanin leave")) for each in sessions[1:]]
    sessions[0].close(timeout_s)
    for session, leaving in waits:
        if leaving is None:
            session.close(max(0.0, ends_at - time.monotonic()))
        else:
            leaving.join()


def added_up(counters: Sequence[dict[str, int | float]]) -> dict[str, int | float]:
    """Counters of several sessions as one's (srtt_us: the largest)."""
    total: dict[str, int | float] = {}
    for each in counters:
        for name, value in each.items():
            total[name] = max(total.get(name, 0), value) if name == "srtt_us" else total.get(name, 0) + value
    return total
