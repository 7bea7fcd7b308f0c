"""The slot machine: what a switch does with one contribution to one slot. The oracle for every other implementation.

A worker's contribution carries a base b: how many results of this slot the worker has received. The switch completes
rounds 0, 1, 2, ... of the slot one after another; V is the round now open. K is the quorum, S the staleness bound,
S_max the largest that the controller may ever set and H = S_max + 2 the depth of both rings. An entry of `arrived`
belongs to base b, one of `sums` to round V; both are indexed modulo H. Registers that are all zero: a slot that has
seen nothing. `floor` is the number of bases that every live worker has contributed.

On a contribution (w, b), with `stale` = V - b, the first row that holds decides. The rules, with their reasons, are
R-SLOT and R-LEAF in docs/slot-machine.md, which also shows why they hold.

    rule         condition                                                verdict
    -----------  -------------------------------------------------------  ---------
    R-SLOT-1     b > V                                                    FUTURE
    R-SLOT-2     stale >= H                                               ANCIENT
    R-SLOT-3     tag = b and w's bit is set                               DUPLICATE
    R-SLOT-4     stale > S_max                                            ANCIENT
    R-SLOT-5     another shape or signature than the open round has       MISMATCH
    R-SLOT-6     otherwise                                                ACCEPTED

    R-SLOT-7     1. tag < b: take the entry over (tag = b, no bits); set w's bit
    R-SLOT-8     2. all live workers' bits are now set: floor += 1
    R-SLOT-9     3. count = 0: start sums[V mod H] empty; add (a pass adds nothing)
    R-SLOT-10    4. count += 1, unless it is a late pass
    R-SLOT-11       if count >= K and V - S < floor: close round V (it is multicast), V += 1, count = 0
    R-SLOT-12    5. b < the V of step 3: answer result b to w

R-SLOT-1 and R-SLOT-4 restate what the host rules imply, so that the staleness bound and the lanes' head room (at most
M = N (S_max + 1) contributions in a round) hold even against a worker that breaks them. A target that reads its
registers in the order of steps 1 to 4, where V comes last, may leave them out and compare the tag in R-SLOT-2.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fanin.numerics.wide_sums import Sums, accumulated, narrowed
from fanin.protocol.wire import MAX_BASE, LaneField

Words = npt.NDArray[np.uint32]
"""Words in host order."""


class Verdict(enum.Enum):
    """Verdict on a contribution: the second column of the table."""

    FUTURE = enum.auto()
    ANCIENT = enum.auto()
    DUPLICATE = enum.auto()
    MISMATCH = enum.auto()
    ACCEPTED = enum.auto()


@dataclass(slots=True)
class Membership:
    """Facts that all slots of a job share and only the controller changes."""

    live: int
    """Bit mask of the workers that a base must have from before it counts for the floor."""
    quorum: int
    """K as asked for; no more than there are live workers are ever waited for."""
    staleness: int
    """S now: how far V may be ahead of floor when a round closes."""
    max_staleness: int
    """S_max, the largest that S may be set to."""
    history: int
    """Ring depth H. Anything but S_max + 2 is for the test which shows that S_max + 1 is not enough."""
    accumulator_bytes: int = 4
    """Bytes of one accumulator of a wide sum: JobSpec.accumulator_bytes."""
    has_parent: bool = False
    """Whether this is a leaf of a tree, whose rounds close at its parent."""

    @property
    def arrivals_to_close(self) -> int:
        """The quorum, or the number of live workers when fewer are left."""
        return min(self.quorum, self.live.bit_count())


class Contribution(NamedTuple):
    """A worker's addition to a round; a pass is None instead."""

    words: Words
    """Host order, shape (n,); the sum wraps around at 32 bits."""
    codes: tuple[int, ...] = ()
    """Scale codes; a round keeps the largest of each."""
    signature: int = 0
    contributors: int = 1
    """Contributions that this one holds: of a switch in a tree, those of its round."""
    lanes: LaneField | None = None
    """Lane field of the words if lanes are added up one by one; None: words are added whole."""


class ContributionHeader(NamedTuple):
    """Fields of the packet, a pass or one with words, that a slot looks at besides worker and base."""

    late: bool = False
    """Whether the sender of a pass has seen that the round is over."""
    bare: bool = False
    """The sender keeps none of the round's words."""
    signature: int = 0
    """A pass's; 0 says nothing."""


PLAIN = ContributionHeader()


class Arrived(NamedTuple):
    """Mask of the workers that have contributed base `tag`; an entry of the first ring."""

    tag: int
    bitmap: int


class Round(NamedTuple):
    """Contents of a round; an entry of the second ring."""

    words: Words
    codes: tuple[int, ...]
    signature: int
    contributors: int
    """Arrivals that were no pass: what a mean divides by."""
    bitmap: int
    """arrived[V] when round V closed; 0 while it is open."""
    lanes: LaneField | None = None
    """Lane field of the contributions, without a shift; in a result, its own."""
    sums: Sums | None = None
    """Accumulators of an open round with `lanes`, whose `words` are then those of its first contribution."""
    bare: int = 0
    """Mask, in a result, of the workers that keep none of its words."""

    def without_words(self) -> Round:
        """The result for a worker that keeps none of its words."""
        return self._replace(words=EMPTY.words, lanes=None)

    def takes(self, given: Contribution) -> bool:
        """Whether `given` has the shape of what is here already."""
        return self.contributors == 0 or (
            self.signature == given.signature
            and len(self.codes) == len(given.codes)
            and len(self.words) == len(given.words)
            and self.lanes == (given.lanes and given.lanes._replace(shift=0))
        )

    def plus(self, given: Contribution, accumulator_bytes: int) -> Round:
        """This round with `given` added."""
        lanes = given.lanes and given.lanes._replace(shift=0)
        sums = accumulated(given.words, given.lanes, accumulator_bytes) if given.lanes else None
        if self.contributors == 0:  # the first one gives the round its shape
            return Round(given.words, given.codes, given.signature, given.contributors, 0, lanes, sums)
        # R-SLOT-9: words wrap around, so sums do not depend on the order of arrival.
        codes = tuple(max(pair) for pair in zip(self.codes, given.codes, strict=True))
        words = self.words if lanes else self.words + given.words
        sums = None if self.sums is None or sums is None else self.sums + sums
        return Round(words, codes, self.signature, self.contributors + given.contributors, 0, lanes, sums)

    def narrowed(self) -> Round:
        """The round in the form that is sent, down as its result or up as a contribution: wide sums in lanes of `down`
        bits.
        """
        if self.lanes is None or self.sums is None:  # words, or narrowed already
            return self
        words, shift = narrowed(self.sums, self.lanes.down)
        return self._replace(words=words, lanes=self.lanes.result._replace(shift=shift), sums=None)


EMPTY = Round(np.empty(0, np.uint32), (), 0, 0, 0)


class Answer(NamedTuple):
    """Result `base` for one worker, with everybody whose contribution of that base is accepted by now."""

    base: int
    result: Round
    bitmap: int


class Outcome(NamedTuple):
    """Duties of the switch after a contribution: multicast `closed`, then send `answer` to its sender."""

    verdict: Verdict
    closed: tuple[int, Round] | None = None
    """The number and the result of the round that closed."""
    answer: Answer | None = None
    ascends: bool = False
    """At a leaf: `partial` is to be sent to the parent."""


class Slot:
    """The registers of one slot."""

    __slots__ = ("arrived", "bare", "count", "floor", "membership", "open", "signature", "sums")

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.arrived = [Arrived(0, 0)] * membership.history
        self.floor = 0
        self.open = 0
        self.count = 0
        self.sums = [EMPTY] * membership.history
        self.bare = 0
        """Mask of the workers whose contribution to the open round, or to the last one that closed, asked for a bare
        result.
        """
        self.signature = 0
        """Signature of the open round's contributions; without contributions the first signature of a pass, or 0."""

    def contribute(
        self, worker: int, base: int, given: Contribution | None, header: ContributionHeader = PLAIN
    ) -> Outcome:
        """Take in base `base` of `worker`; `given` is None for a pass. See the table at the top."""
        history, stale = self.membership.history, self.open - base
        entry, at, bit = base % history, self.open % history, 1 << worker
        tag, bitmap = self.arrived[entry]
        if stale < 0 or base >= MAX_BASE:  # R-SLOT-1: nobody who waits for results can have sent it
            return Outcome(Verdict.FUTURE)
        if stale >= history:  # R-SLOT-2: w has long had result b, and its entry may belong to a later base
            return Outcome(Verdict.ANCIENT)
        # R-SLOT-3, before the bound below: a worker whose result was lost must get it, however far the others are.
        if tag == base and bitmap & bit:
            return Outcome(Verdict.DUPLICATE, answer=self._answer(base), ascends=stale == 0 and self.complete)
        if stale > self.membership.max_staleness:  # R-SLOT-4: only a worker that left out a base gets here
            return Outcome(Verdict.ANCIENT)
        # R-SLOT-5: words of another shape or collective must not meet in a sum; a pass may tell the collective, too.
        signature = header.signature if given is None else given.signature
        if given is not None and self.count and not self.sums[at].takes(given):
            return Outcome(Verdict.MISMATCH)
        if self.count and signature and self.signature and signature != self.signature:
            return Outcome(Verdict.MISMATCH)
        # R-SLOT-6 and R-SLOT-7: an older base in this entry is one whose result every worker has had.
        bitmap = bit | (bitmap if tag == base else 0)
        self.arrived[entry] = Arrived(base, bitmap)
        if bitmap & self.membership.live == self.membership.live:  # R-SLOT-8
            self.floor += 1
        if self.count == 0:  # R-SLOT-9: the ring still holds the round of H numbers before
            self.sums[at] = EMPTY
            self.bare = self.signature = 0
        # A pass may have spoken before the first contribution.
        if given is not None or (self.signature == 0 and self.sums[at].contributors == 0):
            self.signature = signature
        if header.bare and not stale:  # R-SLOT-16: of a late contribution the answer, sent below, is bare or not
            self.bare |= bit
        if given is not None:
            self.sums[at] = self.sums[at].plus(given, self.membership.accumulator_bytes)
        # R-SLOT-10: late passes of workers that compute would otherwise reach the quorum and close empty rounds without
        # end.
        self.count += not (header.late and given is None)
        closed = self._close_if_due()
        # R-SLOT-12: no later multicast acknowledges a late contribution. R-LEAF-1: a complete round goes up.
        return Outcome(Verdict.ACCEPTED, closed, self._answer(base) if stale else None, self.complete)

    @property
    def complete(self) -> bool:
        """At a leaf: whether the open round holds all that it waits for, and waits for the parent's result."""
        return self.membership.has_parent and self._due  # R-LEAF-1

    @property
    def all_bare(self) -> bool:
        """At a leaf, of a complete round: whether no worker keeps any of its words."""
        return self.bare & self.membership.live == self.membership.live

    @property
    def partial(self) -> tuple[int, Round]:
        """At a leaf, of a complete round: its number, and what goes up."""
        return self.open, self.sums[self.open % self.membership.history].narrowed()

    def descend(self, number: int, result: Round) -> tuple[int, Round] | None:
        """At a leaf: the parent's result of a round. Returns what to multicast, or None when nobody waits for it."""
        if number != self.open or not self.complete:  # R-LEAF-4, R-LEAF-5: it came before, or nobody waits for it
            return None
        # R-LEAF-3: the parent's result takes the place of this leaf's part of the sum.
        self.sums[number % self.membership.history] = result
        return self._close()

    def poke(self) -> tuple[int, Round] | None:
        """After a change of membership, K or S: close the open round if that was all it waited for."""
        # R-SLOT-13: floor first, since the change may have completed several bases at once.
        live = self.membership.live
        # Without any live worker a base that nobody has contributed lacks nobody, but is none that counts.
        while (entry := self.arrived[self.floor % self.membership.history]).tag == self.floor and (
            entry.bitmap & live == live and entry.bitmap
        ):
            self.floor += 1
        return self._close_if_due() if self.count else None

    def enter(self, worker: int) -> None:
        """`worker` is about to be live: whatever the others may still wait for below V, they do not wait for it."""
        for base in range(self.floor, self.open):  # R-SLOT-14: as if it had passed each of them
            entry = base % self.membership.history
            tag, bitmap = self.arrived[entry]
            self.arrived[entry] = Arrived(base, 1 << worker | (bitmap if tag == base else 0))

    def stands(self, worker: int) -> int:
        """The base that a live worker has to contribute next: the first that it has not, V at most."""
        for base in range(self.floor, self.open):
            tag, bitmap = self.arrived[base % self.membership.history]
            if tag != base or not bitmap >> worker & 1:  # R-SLOT-15
                return base
        return self.open

    def _close_if_due(self) -> tuple[int, Round] | None:
        return self._close() if self._due and not self.membership.has_parent else None

    @property
    def _due(self) -> bool:
        """The condition of step 4."""
        enough = self.count >= self.membership.arrivals_to_close
        # R-SLOT-11: with a base of S rounds ago missing, its contribution would land more than S rounds late.
        return self.count > 0 and enough and self.open - self.membership.staleness < self.floor

    def _close(self) -> tuple[int, Round]:
        number, history = self.open, self.membership.history
        tag, bitmap = self.arrived[number % history]
        bitmap = bitmap if tag == number else 0  # a quorum of late contributions closes a round of another base
        # R-SLOT-17: what is sent and answered from here on is the narrowed sum.
        result = self.sums[number % history].narrowed()._replace(bitmap=bitmap, bare=self.bare)
        self.sums[number % history] = result
        self.open, self.count = number + 1, 0
        return number, result

    def _answer(self, base: int) -> Answer | None:
        """Result `base` if that round has closed; what is asked for is always still in the ring."""
        if base >= self.open:  # the multicast will come
            return None
        entry = base % self.membership.history
        return Answer(base, self.sums[entry], self.arrived[entry].bitmap)
