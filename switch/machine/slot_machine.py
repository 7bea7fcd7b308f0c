"""The slot machine: how a switch handles one contribution to one slot. The reference for every other implementation.

A worker's contribution carries a base b: how many results of this slot the worker has received. The switch completes
rounds 0, 1, 2, ... of the slot one after another; V is the round now open. K is the quorum, S the staleness bound,
S_max the largest that the controller may ever set and H = S_max + 2 the depth of both rings. An entry of `arrived`
belongs to base b, one of `sums` to round V; both are indexed modulo H. All registers of an unused slot are zero.
`floor` is the number of bases that every live worker has contributed.

On a contribution (w, b), with `stale` = V - b, the first row that holds decides, and an accepted one takes the steps
below it, where R-SLOT-10 and R-SLOT-11 are step 4. These are the words of docs/slot-machine.md (R-SLOT, R-LEAF), which
has the reasons, and shows why the rules hold.

    rule         condition                                                                verdict
    -----------  -----------------------------------------------------------------------  ---------
    R-SLOT-1     b > V                                                                    FUTURE
    R-SLOT-2     stale >= H                                                               ANCIENT
    R-SLOT-3     tag = b and w's bit is set                                               DUPLICATE
    R-SLOT-4     stale > S_max                                                            ANCIENT
    R-SLOT-5     another signature, code count, word count or `lanes` than the open
                 round has; or a pass with another signature, unless that is 0            MISMATCH
    R-SLOT-6     otherwise                                                                ACCEPTED

    R-SLOT-7     If tag < b take the entry over (tag = b, no bits). Set w's bit.
    R-SLOT-8     If the bits of all live workers are now set, floor += 1.
    R-SLOT-9     If count = 0 the entry `sums[V mod H]` starts empty. Add words (32-bit wrap-around) and take the larger
                 of each code; a pass adds nothing and is no contributor.
    R-SLOT-10    count += 1, unless it is a pass with the flag LATE
    R-SLOT-11    If count >= K and V - S < floor, round V closes: it is multicast with its number of contributors and
                 the bitmap `arrived[V]` (empty if nobody has contributed base V); V += 1, count = 0.
    R-SLOT-12    If b < V before step 4, result b goes to w

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
class SlotConfig:
    """State that all slots of a job share and only the controller changes."""

    live: int
    """Bit mask of the live workers: a base counts for the floor once all of them have contributed it."""
    quorum: int
    """K as requested; rounds never wait for more than the live workers."""
    staleness: int
    """Current S: how far V may be ahead of floor when a round closes."""
    max_staleness: int
    """S_max, the largest that S may be set to."""
    history: int
    """Ring depth H, S_max + 2 except in the test that shows that S_max + 1 is not enough."""
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
    """Number of contributions in the sum: 1 for a worker, those of its round for a leaf."""
    lanes: LaneField | None = None
    """Lane field of the words if lanes are added up one by one; None: words are added whole."""


class ContributionHeader(NamedTuple):
    """Fields of a packet, with words or a pass, that a slot reads besides worker and base."""

    late: bool = False
    """Whether the sender of a pass knows that the round has closed."""
    bare: bool = False
    """Whether the sender keeps none of the round's words."""
    signature: int = 0
    """Signature of a pass; 0 if it names no collective."""


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
    """Contributions with words, by which a mean divides; passes do not count."""
    bitmap: int
    """arrived[V] when round V closed; 0 while it is open."""
    lanes: LaneField | None = None
    """Lane field of the contributions, without shift; in a result, the result's own."""
    sums: Sums | None = None
    """Accumulators of an open round with `lanes`; its `words` are then those of its first contribution."""
    bare: int = 0
    """In a result, mask of the workers that keep none of its words."""

    def without_words(self) -> Round:
        """The result for a worker that keeps none of its words."""
        return self._replace(words=EMPTY.words, lanes=None)

    def takes(self, given: Contribution) -> bool:
        """Whether `given` has the same shape and signature as the contributions added so far."""
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
        """Return the round as it is sent to workers or to the parent: its wide sums rounded to lanes of `down` bits."""
        if self.lanes is None or self.sums is None:  # words, or narrowed already
            return self
        words, shift = narrowed(self.sums, self.lanes.down)
        return self._replace(words=words, lanes=self.lanes.result._replace(shift=shift), sums=None)


EMPTY = Round(np.empty(0, np.uint32), (), 0, 0, 0)


class Answer(NamedTuple):
    """Result `base` for one worker, with the mask of all workers whose contribution of that base was accepted."""

    base: int
    result: Round
    bitmap: int


class Outcome(NamedTuple):
    """Verdict on a contribution, and the switch's duties: multicast `closed`, then send `answer` to its sender."""

    verdict: Verdict
    closed: tuple[int, Round] | None = None
    """Number and result of the round that closed, if one did."""
    answer: Answer | None = None
    ascends: bool = False
    """At a leaf: whether `partial` must be sent to the parent."""


class Slot:
    """The registers of one slot."""

    __slots__ = ("arrived", "bare", "config", "count", "floor", "open", "signature", "sums")

    def __init__(self, config: SlotConfig) -> None:
        self.config = config
        self.arrived = [Arrived(0, 0)] * config.history
        self.floor = 0
        self.open = 0
        self.count = 0
        self.sums = [EMPTY] * config.history
        self.bare = 0
        """Mask of the workers that asked for a bare result: in contributions to the open round or, before the first of
        them, to the latest closed round.
        """
        self.signature = 0
        """Signature of the open round's contributions or, before the first of them, of its passes; 0 without any."""

    def contribute(
        self, worker: int, base: int, given: Contribution | None, header: ContributionHeader = PLAIN
    ) -> Outcome:
        """Handle base `base` of `worker` by the table at the top; `given` is None for a pass."""
        history, stale = self.config.history, self.open - base
        entry, at, bit = base % history, self.open % history, 1 << worker
        tag, bitmap = self.arrived[entry]
        if stale < 0 or base >= MAX_BASE:  # R-SLOT-1: nobody who waits for results can have sent it
            return Outcome(Verdict.FUTURE)
        if stale >= history:  # R-SLOT-2: w has long had result b, and its entry may belong to a later base
            return Outcome(Verdict.ANCIENT)
        # R-SLOT-3, before the bound below: a worker whose result was lost must get it, however far the others are.
        if tag == base and bitmap & bit:
            return Outcome(Verdict.DUPLICATE, answer=self._answer(base), ascends=stale == 0 and self.complete)
        if stale > self.config.max_staleness:  # R-SLOT-4: only a worker that left out a base gets here
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
        if bitmap & self.config.live == self.config.live:  # R-SLOT-8
            self.floor += 1
        if self.count == 0:  # R-SLOT-9: the ring still holds the round of H numbers before
            self.sums[at] = EMPTY
            self.bare = self.signature = 0
        # A pass may have set the signature before the first contribution.
        if given is not None or (self.signature == 0 and self.sums[at].contributors == 0):
            self.signature = signature
        if header.bare and not stale:  # R-SLOT-16: for a late contribution, only the answer below may be bare
            self.bare |= bit
        if given is not None:
            self.sums[at] = self.sums[at].plus(given, self.config.accumulator_bytes)
        # R-SLOT-10: late passes of workers that compute would otherwise reach the quorum and close empty rounds without
        # end.
        self.count += not (header.late and given is None)
        closed = self._close_if_due()
        # R-SLOT-12: no later multicast acknowledges a late contribution. R-LEAF-1: a complete round goes up.
        return Outcome(Verdict.ACCEPTED, closed, self._answer(base) if stale else None, self.complete)

    @property
    def complete(self) -> bool:
        """At a leaf: whether the open round has all contributions that it needs, and waits for the parent's result."""
        return self.config.has_parent and self._due  # R-LEAF-1

    @property
    def all_bare(self) -> bool:
        """At a leaf, for a complete round: whether no worker keeps any of its words."""
        return self.bare & self.config.live == self.config.live

    @property
    def partial(self) -> tuple[int, Round]:
        """At a leaf, for a complete round: its number, and the sum to send to the parent."""
        return self.open, self.sums[self.open % self.config.history].narrowed()

    def descend(self, number: int, result: Round) -> tuple[int, Round] | None:
        """At a leaf: close round `number` with the parent's result; return what to multicast, None if it is not due."""
        if number != self.open or not self.complete:  # R-LEAF-4, R-LEAF-5: a repetition, or not waited for
            return None
        # R-LEAF-3: the parent's result takes the place of this leaf's part of the sum.
        self.sums[number % self.config.history] = result
        return self._close()

    def poke(self) -> tuple[int, Round] | None:
        """After a change of membership, K or S: close the open round if it is due now; return it, or None."""
        # R-SLOT-13: floor first, since the change may have completed several bases at once.
        live = self.config.live
        # Without live workers the mask test holds for every base, so that a base counts only if it has contributions.
        while (entry := self.arrived[self.floor % self.config.history]).tag == self.floor and (
            entry.bitmap & live == live and entry.bitmap
        ):
            self.floor += 1
        return self._close_if_due() if self.count else None

    def enter(self, worker: int) -> None:
        """Prepare for `worker`, which is about to be live: mark it as having passed every base from floor to V - 1."""
        for base in range(self.floor, self.open):  # R-SLOT-14
            entry = base % self.config.history
            tag, bitmap = self.arrived[entry]
            self.arrived[entry] = Arrived(base, 1 << worker | (bitmap if tag == base else 0))

    def stands(self, worker: int) -> int:
        """The base that a live worker has to contribute next: the first from floor on that it has not, at most V."""
        for base in range(self.floor, self.open):
            tag, bitmap = self.arrived[base % self.config.history]
            if tag != base or not bitmap >> worker & 1:  # R-SLOT-15
                return base
        return self.open

    def _close_if_due(self) -> tuple[int, Round] | None:
        return self._close() if self._due and not self.config.has_parent else None

    @property
    def _due(self) -> bool:
        """Whether the open round may close: the condition of R-SLOT-11."""
        enough = self.count >= self.config.arrivals_to_close
        # R-SLOT-11: with a base of S rounds ago missing, its contribution would land more than S rounds late.
        return self.count > 0 and enough and self.open - self.config.staleness < self.floor

    def _close(self) -> tuple[int, Round]:
        number, history = self.open, self.config.history
        tag, bitmap = self.arrived[number % history]
        bitmap = bitmap if tag == number else 0  # a quorum of late contributions closes a round of another base
        # R-SLOT-17: from here on, only the narrowed sum is kept and sent.
        result = self.sums[number % history].narrowed()._replace(bitmap=bitmap, bare=self.bare)
        self.sums[number % history] = result
        self.open, self.count = number + 1, 0
        return number, result

    def _answer(self, base: int) -> Answer | None:
        """Result `base` if that round has closed, else None. The ring has every result that a worker can ask for."""
        if base >= self.open:  # the multicast will come
            return None
        entry = base % self.config.history
        return Answer(base, self.sums[entry], self.arrived[entry].bitmap)
