"""Rules of a rank over shards, some of which may be lost: what it deals out, what it keeps, and how it continues.

No thread, no socket, no clock: surviving.py drives it over sessions, and the simulator over machines in virtual time.

Rules
-----
* A rank that is lost is taken out at each shard, as at a single switch: nothing is dealt anew. What is summed without
  it counts once every shard has lost it (doubt.py). If some still have it after the liveness timeout and DOUBT_GRACE_S,
  its path to the others is dead: these shards count as lost, and the rank goes on with all.
* A shard that is lost, with its host or alone, takes with it the parts that it had. The ranks agree through one of the
  others (host/machine/shard_agreement.py) on who is left, on the shards that are left, and on which reductions somebody
  has done; they join a new job at these shards, and deal out there what is not done everywhere. A reduction that a
  rank has done keeps that result everywhere, to the bit; another one is summed anew from the inputs, over who is left.
* For that, inputs are left alone until the result is there, and results are kept until they are everywhere
  (kept_reductions.py): one more copy of each.

    state   | what is seen                         | next    | what is submitted | what is waited for
    --------+--------------------------------------+---------+-------------------+--------------------------------
    WHOLE   | a shard is lost, others are not, or  | DEALING | is dealt out      | is waited for
            | a rank that handed a result on       |         |                   |
            | anything else, or the end            | OVER    |                   |
    DEALING | a member of the new job at all of    | WHOLE   | waits             | waits, unless it was done
            | its shards                           |         |                   |
            | the same, at all but those that are  | DEALING |                   |
            | lost, too: agrees anew, in that job  |         |                   |
            | no agreement, or cannot join         | OVER    |                   |
    OVER    | (all sessions are stopped)           |         | raises            | is there if it was before, or
            |                                      |         |                   | raises

* A rank that dies on the way to the new job, or in it, is taken out of that at each shard; before it begins there, as
  soon as the shard has lost the rank in the present job (switch/controller/lifecycle.py). If it had a result that it
  was to hand on to the others, they agree anew, in the new job, on what any of them has (kept_reductions.py).
* No rank goes on alone: one that is not among the ranks agreed on, or cannot join the new job, raises.
* A rank that has joined the new job at some shards, and has lost the others, is in the same state as a rank that has
  joined everywhere and loses these shards a moment later: such ranks agree with one another, in the new job. So it is
  where a shard of the new job has lost the rank before it came, and refuses it: it is a member at the others.
* If this rank alone has lost a shard, that shard loses this rank, and the others agree with it as above. So they do if
  a shard says that it has evicted this rank: packets pass in one direction alone, or pass again. This rank raises an
  error that names itself and that shard when they have not asked within twice the liveness timeout and
  AGREEMENT_GRACE_S: the shard may lose this rank one timeout later than this rank the shard, where packets pass in one
  direction alone, and the others ask another one and DOUBT_GRACE_S later.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fanin.errors import (
    AdmissionError,
    EvictedError,
    FaninError,
    SwitchLostError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.codecs.words import codec_for
from fanin.host.machine.shard_agreement import SETTLING_S, Agreement, Place, RankProgress, Stage, Whole, Why
from fanin.host.session.doubt import Doubt, Membership
from fanin.host.session.kept_reductions import Counts, KeptReduction, KeptReductions, Summing
from fanin.host.session.shards import deal, elements_per_packet
from fanin.numerics.reduction import Reduction
from fanin.protocol import control
from fanin.protocol.control import JOIN_LEASE_S
from fanin.protocol.spread import Spread

DOUBT_GRACE_S = 2.0
"""Time, beyond the liveness timeout, in which every shard has lost a rank that is dead, and all have heard of it. A
rank that alone has lost a shard gives up later than that (`Survivor._patience_s`): the others must ask before."""
LostOnTheWay = SwitchUnreachableError | SwitchLostError | EvictedError
"""Failure to join a successor at a shard that is the loss of this shard alone. Another successor that runs there is
none: then the others may have gone on in that one."""


class Member(Summing, Membership, Protocol):
    """The part of a session at a shard that is needed here."""

    @property
    def nonce(self) -> str:
        """Name of the membership, as in `Session.nonce`."""

    @property
    def switch_is_dead(self) -> bool:
        """Whether the switch's process has ended, as in `Session.switch_is_dead`."""

    def submit(self, reduction: Reduction) -> int:
        """Submit as `Session.submit` does."""

    def abandon(self, failure: FaninError) -> None:
        """Fail the membership as `Session.abandon` does."""


class SurvivorState(enum.Enum):
    """State of a rank of a job over shards: see the table above."""

    WHOLE = enum.auto()
    DEALING = enum.auto()
    OVER = enum.auto()


@dataclass(frozen=True, slots=True)
class Successor:
    """The job that a rank joins next, in place of the present one."""

    name: str
    shards: tuple[int, ...]
    spread: Spread
    worker: int
    succeeds: control.Predecessor
    """The present job, and the workers of it that go on."""
    loses_s: float = 0.0
    """Time in which a shard loses one of these that dies on the way; 0: it waits for all."""

    @property
    def workers(self) -> int:
        """Number of its workers."""
        return len(self.succeeds.ranks)


class Survivor:
    """One rank's state and decisions. Not thread safe. Shards keep the numbers that they had when the job began."""

    agreement_type = Agreement
    doubt_type = Doubt
    settling_s = SETTLING_S
    losses: tuple[type[FaninError], ...] = (SwitchLostError,)
    """Failures at a shard that are its loss, as is the loss of this rank there; others end the job."""
    leaves_out = True
    """Whether shards go on without ranks that they lose, so that sums may lack some."""

    def __init__(
        self, job: str, rank: int, size: int, members: Sequence[Member], spread: Spread, names: Sequence[str]
    ) -> None:
        """`members` by shard, `spread` how reductions are dealt to them, `names` of shards, for people."""
        self.job, self.rank = job, rank
        self.state = SurvivorState.WHOLE
        self.failure: FaninError | None = None
        """The error that later calls raise; None before OVER."""
        self.shards = tuple(range(len(members)))
        """Shards of the present job."""
        self.members: dict[int, Member] = {}
        """Memberships by shard; while DEALING, some shards may have none."""
        self.ranks = tuple(range(size))
        """The ranks behind the workers of the present job."""
        self.name = job
        """Name of the present job at the switches."""
        self.submitted = 0
        self.dealt_anew = 0
        """Number of successors that this rank has joined."""
        self.handing = False
        """Whether results that single ranks have are on their way to all, so that `take_results` must be called."""
        self.agreement: Agreement | None = None
        self.successor: Successor | None = None
        """The job that is to be joined now; None: none is."""
        self.kept = KeptReductions()
        self.spread = spread
        self._names = names
        self._first_spread = spread
        self._lost: set[int] = set()
        """Lost shards of the present job."""
        self._dead: set[int] = set()
        self._whole = Whole(workers=size, shards=self.shards)
        self._disagree_since_s: float | None = None
        """Since when the shards have been seen to have unlike members; None: they have the same."""
        self._reason: FaninError | None = None
        """The first loss of a shard since the job was WHOLE, for which reductions are dealt anew; None: none."""
        self._use(dict(enumerate(members)))

    def _use(self, members: dict[int, Member]) -> None:
        self.members, self.spread = members, self._first_spread.only(self.shards)
        specs = [each.spec for each in members.values()]
        self._doubt = self.doubt_type(self.ranks, tuple(members.values())) if self.leaves_out else None
        self.kept.restart(tuple(members.values()), self._doubt)
        # A reduction that one session would refuse is refused before any of them has a part of it.
        spec = dataclasses.replace(specs[0], accumulators=all(each.accumulators for each in specs))
        self._liveness_timeout_s = spec.liveness_timeout_s
        self._packet_elements: Callable[..., int] = functools.cache(functools.partial(elements_per_packet, spec))
        self._spec = spec

    # --- reductions ---

    def submit(self, reduction: Reduction, now: float) -> int:
        """Deal a reduction out and return its ticket; only while WHOLE."""
        ticket = self.submitted = self.submitted + 1
        kept = KeptReduction.of(ticket, reduction, self.kept.room_for(reduction), self._room_for_arrivals(reduction))
        self.kept.append(kept)
        self._deal(kept, kept.summed(), now)
        if self.state is SurvivorState.WHOLE:  # what is done does not change while the ranks agree
            self.kept.forget()
        return ticket

    def _room_for_arrivals(self, given: Reduction) -> Counts | None:
        if not self.leaves_out or given.own_count >= 0:
            return None
        codec = codec_for(given.element, given.lanes, given.count, self._spec, operator=given.operator)
        return np.zeros(codec.packets, np.uint32) if codec.packets else None

    def _deal(self, kept: KeptReduction, reduction: Reduction, now: float) -> None:
        """Submit a reduction's parts to the shards. If one is lost, the reduction is dealt out again later."""
        packet_elements = self._packet_elements(reduction.element, reduction.lanes)
        dealt = []
        try:
            for at, part in deal(reduction, packet_elements, self.spread, kept.ticket):
                dealt.append((at, self.members[self.shards[at]].submit(part), part))
        except FaninError as error:
            kept.parts = ()
            if self._is_loss(error):
                self.lose({self.shards[at]: error}, now)
            else:
                self.end(error)
            return
        self.kept.dealt(kept, dealt)

    def done(self, ticket: int) -> bool:
        """Whether the result is in the reduction's destination; it is copied there if all of its parts have come."""
        kept = self.kept.get(ticket)
        if kept is None:
            return ticket <= self.submitted
        if not kept.is_done and not kept.torn and self.state is SurvivorState.WHOLE and kept.has_come:
            kept.finish()
        return kept.is_done

    def take_results(self, now: float) -> None:
        """Finish what has come, also where no caller waits for it; agree anew if a result handed on is torn, or if
        shards have been without a rank that others have."""
        if self.state is SurvivorState.WHOLE and self.handing:
            self.kept.forget()
            self.handing = self.kept.handing
            if self.kept.torn:
                self._agree(now)
        if self.state is SurvivorState.WHOLE:
            self._look_at_members(now)

    @property
    def shards_disagree(self) -> bool:
        """Whether some shards have lost ranks that others have."""
        return self._doubt is not None and bool(self._doubt.dissenters)

    def _look_at_members(self, now: float) -> None:
        """Count shards that others disagree with as lost, once the others would have lost a rank that is dead."""
        dissenters = () if self._doubt is None else self._doubt.dissenters
        if not dissenters:
            self._disagree_since_s = None
            return
        if self._disagree_since_s is None:
            self._disagree_since_s = now
        if now - self._disagree_since_s < self._liveness_timeout_s + DOUBT_GRACE_S:
            return
        numbers = list(self.members)
        failures = {}
        for number in (numbers[at] for at in dissenters):
            missed = sorted(set(self.ranks).difference(self.members[number].known_members))
            failures[number] = SwitchLostError(
                self._names[number],
                f"rank {self.rank} of job {self.job!r}: {self.shard_names({number})} has lost ranks "
                f"{', '.join(map(str, missed))}, and others have not: the path between them is dead. Remedy: look for "
                "a firewall, or a broken card or link, between the two",
            )
        self._lose_shards(failures, now)

    def progress(self) -> RankProgress:
        """How far this rank is with its reductions."""
        undone = {kept.ticket for kept in self.kept if not kept.is_done}
        last = self.submitted
        first = min(undone, default=last + 1)
        return RankProgress(
            first=first, last=last, done=_ranges(each for each in range(first, last + 1) if each not in undone),
            held_back=_ranges(kept.ticket for kept in self.kept if kept.held_back),
        )  # fmt: skip

    # --- failures ---

    def lose(self, failures: Mapping[int, FaninError], now: float) -> None:
        """Take in failures of sessions, by shard: agree on how to go on if shards are lost, and end for others."""
        if self.state is SurvivorState.OVER or not failures:
            return
        told = next((each for each in failures.values() if not self._is_loss(each)), None)
        if told is not None and self.state is SurvivorState.WHOLE:
            self.end(told)
            return
        self._lose_shards({at: each for at, each in failures.items() if self._is_loss(each)}, now)

    def _is_loss(self, failure: FaninError) -> bool:
        """Whether a failure at a shard is its loss: so it is where the shard has evicted this rank, which others may
        still have."""
        return isinstance(failure, self.losses) or (isinstance(failure, WorkerLostError) and self.rank in failure.ranks)

    def _lose_shards(self, failures: Mapping[int, FaninError], now: float) -> None:
        """Count these shards as lost, and agree with the others, unless they are at it."""
        for number, failure in failures.items():
            dead = number in self.members and self.members[number].switch_is_dead
            self._reason = self._reason or failure
            self._lost.add(number)
            self._dead.update({number} if dead else ())
            if self.agreement is not None:
                self.agreement.lose(number, now, dead=dead)
        if self.state is SurvivorState.WHOLE:
            self._agree(now)

    def end(self, failure: FaninError) -> None:
        """Stop at all shards; later calls raise `failure`."""
        if self.state is SurvivorState.OVER:
            return
        self._settle()
        self.state, self.failure = SurvivorState.OVER, failure
        self.agreement = self.successor = None
        for each in self.members.values():
            each.abandon(failure)

    def leave(self, failure: FaninError) -> None:
        """Be over, since the sessions are about to leave in order; later calls raise `failure`."""
        self._settle()
        self.state, self.failure = SurvivorState.OVER, failure

    def _settle(self) -> None:
        """Finish all reductions whose parts have come: from here on the set of those that are done does not change."""
        for kept in self.kept:
            self.done(kept.ticket)

    # --- going on with the shards that are left ---

    def _agree(self, now: float) -> None:
        if len(self.shards) == 1 and self._reason is not None:
            self.end(self._reason)
            return
        self._settle()
        self.kept.hold_back()
        self.state, self.successor = SurvivorState.DEALING, None
        self._disagree_since_s = None
        places = {number: Place(worker=self._me, nonce=each.nonce) for number, each in self.members.items()}
        self.agreement = self.agreement_type(
            self.name, self.shards, places, self._workers_at, self.progress(), lost=self._lost, dead=self._dead,
            whole=self._whole, patience_s=self._patience_s, now=now, settling_s=self.settling_s,
        )  # fmt: skip

    @property
    def _patience_s(self) -> float:
        """Time in which the others lose what this rank has lost, but for AGREEMENT_GRACE_S: the time in which the shard
        loses this rank, which at most has asked to join there, and the time in which the shards disagree."""
        loses_s = max(self._liveness_timeout_s, JOIN_LEASE_S) if self.dealt_anew else self._liveness_timeout_s
        return loses_s + self._liveness_timeout_s

    def _workers_at(self, shard: int) -> tuple[int, ...]:
        """The workers of the present job that a shard has, as far as this rank knows."""
        return tuple(self.ranks.index(rank) for rank in self.members[shard].known_members)

    def after_turn(self) -> None:
        """Act on the agreement after it was given replies or time: name the successor, or end if it is stranded.

        The agreement is kept until the successor is joined.
        """
        agreement = self.agreement
        if (
            self.state is not SurvivorState.DEALING
            or agreement is None
            or self.successor is not None
            or not agreement.over
        ):
            return
        if agreement.stage is Stage.STRANDED:
            self.end(self._stranded(agreement))
            return
        agreed = agreement.agreed
        assert agreed is not None
        left = tuple(number for number in self.shards if number not in agreed.lost)
        loses_s = self._liveness_timeout_s if self.leaves_out else 0.0
        self.successor = Successor(
            agreed.successor, left, self._first_spread.only(left), agreed.ranks.index(self._me),
            control.Predecessor(job=self.name, ranks=agreed.ranks), loses_s,
        )  # fmt: skip

    @property
    def _me(self) -> int:
        """The worker that this rank is in the present job."""
        return self.ranks.index(self.rank)

    @property
    def successors_ranks(self) -> tuple[int, ...]:
        """The ranks behind the workers of the successor."""
        assert self.agreement is not None
        assert self.agreement.agreed is not None
        return tuple(self.ranks[worker] for worker in self.agreement.agreed.ranks)

    def joined(self, members: Mapping[int, Member], now: float) -> None:
        """Go over to the successor, which this rank has joined at these of its shards; its others are lost, too.

        The members of the job before must not write to memory any more.
        """
        assert self.agreement is not None
        assert self.successor is not None
        agreed, successor = self.agreement.agreed, self.successor
        assert agreed is not None
        holding = [holder != control.NOBODY and self.holds(holder) for holder in agreed.holders]
        self.ranks = self.successors_ranks
        self.name, self.shards, self.state = successor.name, successor.shards, SurvivorState.WHOLE
        self._lost = self.lost_with(set(self.shards).difference(members))
        self._dead &= self._lost  # as far as the sessions of the job before have seen
        self.dealt_anew += 1
        self.successor = self.agreement = None
        self.kept.keep_only(agreed.again)
        self._use(dict(members))
        if self._lost:
            living = tuple(number for number in self._whole.shards if number not in agreed.dead)
            self._whole = dataclasses.replace(self._whole, shards=living)
            self._agree(now)
            return
        self._whole = Whole(workers=len(self.ranks), shards=self.shards)
        self._reason, self.handing = None, True
        for ticket, holder, holds in zip(agreed.again, agreed.holders, holding, strict=True):
            kept = self.kept.get(ticket)
            if self.state is not SurvivorState.WHOLE:  # another shard was lost meanwhile, so the ranks agree anew
                return
            if kept is None and ticket <= self.submitted:
                self.end(
                    FaninError(
                        f"reduction {ticket} of job {self.job!r} is needed by another rank, and rank {self.rank} keeps "
                        f"it no more. Remedy: start the job again"
                    )
                )
            elif kept is not None:
                nobody = holder == control.NOBODY
                self._deal(kept, kept.summed() if nobody else kept.handed_on(holds=holds), now)

    @property
    def lost(self) -> frozenset[int]:
        """Lost shards of the present job."""
        return frozenset(self._lost)

    def lost_with(self, shards: set[int]) -> set[int]:
        """The shards of the present job that count as lost where these are."""
        return shards

    def going_on(self, shards: Collection[int]) -> str:
        """News of this rank, for the log: it is about to go over to the successor, which it has joined at `shards`."""
        lost, who = set(self.shards).difference(shards), "a rank that had a result is"
        if lost:
            who = f"{self.shard_names(lost)} {'is' if len(lost) == 1 else 'are'}"
        ranks = self.successors_ranks
        over = f", over {len(ranks)} ranks" if len(ranks) < len(self.ranks) else ""
        return f"{who} lost; sums are dealt to {len(shards)} shards from here on{over}"

    def holds(self, holder: int) -> bool:
        """Whether this rank is the worker of the present job that holds a result."""
        return holder == self._me

    def cannot_join(self, error: FaninError) -> None:
        """End, since this rank cannot join the successor."""
        assert self.successor is not None
        gone = set(self.shards).difference(self.successor.shards)
        if isinstance(error, WorkerLostError) and self.successor.worker in error.ranks:
            lost = self.shard_names(gone)
            self.end(
                WorkerLostError(
                    (self.rank,), f"rank {self.rank} (this one) of job {self.job!r} has lost {lost}: {error}"
                )
            )
            return
        self.end(
            SwitchLostError(
                self._names[self.shards[0]],
                f"rank {self.rank}: job {self.job!r} has lost {self.shard_names(gone)}, and more was lost before the "
                f"others were in use: {error}",
            )
        )

    def _stranded(self, agreement: Agreement) -> FaninError:
        """The error of a rank whose agreement is stranded."""
        lost = self.shard_names(agreement.lost)
        where = self._names[self.shards[0] if agreement.asked is None else agreement.asked]
        match agreement.why:
            case Why.REFUSED:
                refused = agreement.refused
                assert refused is not None
                if refused.code != control.Refusal.MEMBER_LOST.value:
                    return AdmissionError(
                        f"rank {self.rank} of job {self.job!r} has lost {lost}, and {where} refuses to deal its sums "
                        f"anew: {refused.reason}. Remedy: {refused.remedy}",
                        refused.code,
                    )
                return WorkerLostError(
                    (self.rank,),
                    f"rank {self.rank} (this one) of job {self.job!r} has lost {lost}, and the others go on without "
                    f"it. Remedy: {refused.remedy}",
                )
            case Why.ALONE:
                waiting = ", ".join(str(self.ranks[worker]) for worker in agreement.waiting)
                if not agreement.lost:
                    return SwitchLostError(
                        where,
                        f"rank {self.rank} of job {self.job!r} knows that a rank is lost whose result it needs, and "
                        f"ranks {waiting} do not say what they have. Remedy: look at these ranks' output",
                    )
                return SwitchLostError(
                    where,
                    f"rank {self.rank} of job {self.job!r} has lost {lost}, and ranks {waiting} have not: it is the "
                    "path between this rank and that shard that is lost. Remedy: look for a firewall or a broken link "
                    "between the two",
                )
            case Why.TOO_FEW:
                return SwitchLostError(
                    where,
                    f"rank {self.rank} of job {self.job!r} has lost {lost}, which do not answer and may be the larger "
                    "part of a network that fell into two: the job does not go on here, since it may there. Remedy: "
                    "look at these hosts and the links to them, then start the job again",
                )
            case Why.NONE_LEFT if isinstance(self._reason, WorkerLostError):  # every shard has lost this rank
                return self._reason
        return SwitchLostError(
            where,
            f"job {self.job!r} goes on without shards that are lost, but none is left for rank {self.rank}. Its "
            f"first loss: {self._reason}",
        )

    def shard_names(self, lost: set[int]) -> str:
        """Names of shards, for people."""
        names = ", ".join(self._names[number] for number in sorted(lost))
        return f"shard{'s' * (len(lost) > 1)} {names}"


def _ranges(tickets: Iterable[int]) -> tuple[int, ...]:
    """Ascending tickets as ranges: first, last, first, last, ..."""
    ranges: list[int] = []
    for ticket in tickets:
        if ranges and ranges[-1] == ticket - 1:
            ranges[-1] = ticket
        else:
            ranges += (ticket, ticket)
    return tuple(ranges)
