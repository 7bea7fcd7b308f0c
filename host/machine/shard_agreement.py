"""One rank's agreement with the others on how a job over several shards continues, once it has lost some shards.

The rank asks a shard that it has not lost (Regroup), again and again: the one that still has most ranks, and the first
of several. That shard's controller hears all ranks, and answers all alike (switch/controller/regroup.py). No socket, no
clock: requests and times come out, replies and losses go in.

    state    | what is seen                              | next
    ---------+-------------------------------------------+---------------------------------------------------------
    SETTLING | SETTLING_S have passed                    | ASKING a shard that is left; STRANDED without any
    ASKING   | Regrouped, with enough shards             | AGREED
             | Regrouped, and too few are left           | STRANDED
             | the shard is lost, silent for             | ASKING the next one; STRANDED without any
             | ANSWER_TIMEOUT_S, or has evicted the rank |
             | another shard has more ranks              | ASKING that one
             | Refused for another reason, or nothing    | STRANDED
             | else for the patience of the rank and     |
             | AGREEMENT_GRACE_S                         |
    AGREED   | the shard is lost, or has fewer ranks     | AGREED: passes it on to the next one
             | than another                              |

Ranks that some shards have lost
--------------------------------
* A rank that one shard has lost may be alive, and a member at others: its network card, or a path, is dead. All ask at
  one of these then, as soon as they know, and a shard that has lost a rank decides nothing while a rank that asks it
  knows of another shard that has not. So nobody is left out whom any shard still has.

Passing on
----------
* A shard may die when it has told some ranks of its decision, and not the others. The others then ask the next shard,
  which waits for all ranks. So the ranks that know the decision tell it to that shard, which answers all alike. It
  decides anew only if no rank that knows is left.

Enough shards
-------------
* Where the network falls into two parts, the ranks of each part lose the shards of the other. Only one part may go on:
  the one with more than half of the shards or, of two halves, with the lowest one.
* A shard that is known to have died (nothing listens at its port any more) is in no part, and does not count.
* Where no rank is left out, there is nobody who could go on in another part.
* These rules count the shards of the last job that this rank was in at all of its shards (`Whole`). A later job that
  the rank could not join at some shards may never have begun there: these may be in the other part of the network, and
  continue as another job.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fanin.protocol.control import Refusal, Refused, Regroup, Regrouped, Reply, Waiting
from fanin.protocol.job import HEARTBEAT_INTERVAL_S, SUSPICION_TIMEOUT_S

SETTLING_S = SUSPICION_TIMEOUT_S + HEARTBEAT_INTERVAL_S
"""Wait before asking. In this time the rank notices other losses with the same cause, such as a rack without power."""
AGREEMENT_GRACE_S = 5.0
"""Time that the ranks may take to agree, beyond that in which all lose what one of them has lost."""
ASK_INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 2.0
"""A controller that is asked and stays silent for so long counts as lost, with its shard."""


class Stage(enum.Enum):
    """Stage of an agreement: see the table above."""

    SETTLING = enum.auto()
    ASKING = enum.auto()
    AGREED = enum.auto()
    STRANDED = enum.auto()


class Why(enum.Enum):
    """Reason for which this rank cannot go on."""

    NONE_LEFT = "no shard is left"
    TOO_FEW = "the shards that are left may be the smaller part of a network that fell into two"
    REFUSED = "the others go on without it, or the shard has another objection"
    ALONE = "others have not lost what this rank has lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank's identity at one shard."""

    worker: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """How far a rank is with its reductions, by their tickets, as it says in Regroup."""

    first: int
    """The first reduction that is not done."""
    last: int
    """The last reduction that was submitted."""
    done: tuple[int, ...] = ()
    """Reductions in between that are done, as ranges: first, last, first, last, ..."""
    held_back: tuple[int, ...] = ()
    """Reductions in between, as ranges, whose sums have come and are not done: they lack a rank that some shard may
    have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The last job that a rank was in at all of its shards: ranks that continue elsewhere are members of it, too."""

    workers: int
    shards: tuple[int, ...]
    """Its shards, without those that were known to have died when it ended."""

    def may_go_on(self, workers: int, left: Sequence[int], dead: Collection[int]) -> bool:
        """Whether so many workers may go on at the shards that are `left`: see the head of this file."""
        if workers == self.workers:  # nobody is left who could go on in another part
            return True
        living = [number for number in self.shards if number not in dead]
        if 2 * len(left) == len(living):  # of two halves one must be chosen, alike by all
            return min(living) in left
        return 2 * len(left) > len(living)


class Agreement:
    """One rank's part in the agreement. Shards have the numbers that they had when the job began."""

    def __init__(
        self,
        job: str,
        shards: Sequence[int],
        places: dict[int, Place],
        members: Callable[[int], Collection[int]],
        progress: RankProgress,
        *,
        lost: Collection[int],
        dead: Collection[int],
        whole: Whole,
        patience_s: float,
        now: float,
        settling_s: float = SETTLING_S,
    ) -> None:
        """`shards`: those of the present job. `places`: by shard, where this rank is in it. `members`: workers that
        a shard has now, as far as this rank knows. `whole`: the present job, or one before it. `patience_s`: the
        time in which the others lose what this rank has lost."""
        self.stage = Stage.SETTLING
        self.why: Why | None = None
        self.agreed: Regrouped | None = None
        self.refused: Refused | None = None
        self.waiting: tuple[int, ...] = ()
        """Workers that had not asked when the shard last answered."""
        self.asked: int | None = None
        """The shard that is asked."""
        self.lost, self.dead = set(lost), set(dead)
        self._job, self._shards, self._whole = job, tuple(shards), whole
        self._places, self._members, self._progress = places, members, progress
        self._settled_at = now + settling_s
        self._ends_at = self._settled_at + patience_s + AGREEMENT_GRACE_S
        self._ask_at = self._settled_at
        self._silent_at = float("inf")
        """When the shard that is asked counts as lost."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.stage in {Stage.AGREED, Stage.STRANDED}

    def lose(self, shard: int, now: float, *, dead: bool = False) -> None:
        """Note that this rank has lost another shard; `dead`: the shard is known to have died."""
        self.lost.add(shard)
        if dead:
            self.dead.add(shard)
        # The next shard is asked, or told what this one had decided.
        if shard == self.asked and self.stage in {Stage.ASKING, Stage.AGREED}:
            self._ask_next(now)

    def receive(self, shard: int, reply: Reply, now: float) -> None:
        """Take in a shard's answer. An answer of one that is not asked any more does not count."""
        if shard != self.asked or self.stage is Stage.STRANDED:  # R-JOB-12: one shard decides at a time
            return
        self._silent_at = float("inf")
        if self.stage is Stage.AGREED:
            self._ask_at = float("inf")  # the shard has the decision now
            return
        match reply:
            case Waiting():
                self.waiting = reply.missing
            case Refused(code=Refusal.EVICTED.value):  # as if it was silent: others may still have this rank
                self.refused = reply
                self.lose(shard, now)
            case Refused():  # the others have gone on, and wait for nobody
                self.refused = reply
                self._strand(Why.REFUSED)
            case Regrouped() if reply.job == self._job:
                self.lost.update(reply.lost)
                left = [number for number in self._shards if number not in reply.lost]
                if not left:
                    self._strand(Why.NONE_LEFT)
                # The other part of a network may go on at the same time.
                elif self._whole.may_go_on(len(reply.ranks), left, reply.dead):
                    self.stage, self.agreed, self._ask_at = Stage.AGREED, reply, float("inf")
                else:
                    self._strand(Why.TOO_FEW)

    def requests(self, now: float) -> list[tuple[int, Regroup]]:
        """The requests that are due, each with its shard."""
        if self.stage not in {Stage.ASKING, Stage.AGREED}:
            return []
        if self.asked != self._first_choice():
            self._ask_next(now)
        if self.asked is None or now < self._ask_at:
            return []
        self._ask_at = now + ASK_INTERVAL_S
        self._silent_at = min(self._silent_at, now + ANSWER_TIMEOUT_S)
        place, progress = self._places[self.asked], self._progress
        said = Regroup(
            job=self._job, rank=place.worker, nonce=place.nonce, shard=self.asked, lost=tuple(sorted(self.lost)),
            dead=tuple(sorted(self.dead)), members=self._present(), first=progress.first, last=progress.last,
            done=progress.done, held_back=progress.held_back, decided=self.agreed,
        )  # fmt: skip
        return [(self.asked, said)]

    def next_timer(self) -> float | None:
        """When to call `handle_timer`, and then `requests`; None: not before something else happens."""
        match self.stage:
            case Stage.SETTLING:
                return self._settled_at
            case Stage.ASKING:
                return min(self._ask_at, self._silent_at, self._ends_at)
            case Stage.AGREED if min(self._ask_at, self._silent_at) < float("inf"):
                return min(self._ask_at, self._silent_at)
        return None

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        if self.stage is Stage.SETTLING and now >= self._settled_at:
            self._ask_next(now)
        elif self.stage is Stage.ASKING and now >= self._ends_at:  # the other ranks have not lost these shards
            self._strand(Why.ALONE)
        elif now >= self._silent_at and self.asked is not None:  # R-JOB-12: it may have died after telling some ranks
            self.lose(self.asked, now)

    def _ask_next(self, now: float) -> None:
        self.asked = self._first_choice()
        self._ask_at, self._silent_at, self.waiting = now, float("inf"), ()
        if self.stage is Stage.AGREED:
            self._ask_at = now if self.asked is not None else float("inf")
            return
        self.stage = Stage.ASKING
        if self.asked is None:
            self._strand(Why.NONE_LEFT if self.refused is None else Why.REFUSED)

    @property
    def _left(self) -> list[int]:
        """The shards that may be asked."""
        return [number for number in self._places if number not in self.lost]

    def _first_choice(self) -> int | None:
        return max(self._left, key=lambda number: len(self._members(number)), default=None)

    def _present(self) -> tuple[int, ...]:
        return tuple(sorted({worker for number in self._left for worker in self._members(number)}))

    def _strand(self, why: Why) -> None:
        self.stage, self.why = Stage.STRANDED, why
