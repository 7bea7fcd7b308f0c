"""A worker's decisions, base by base: the state machine behind stale training. No thread, no clock, no tensors.

Rules of this file
------------------
* Bases are decided one after another: each is a contribution or a pass, and the next one is decided when the round's
  result has come (the host rules of docs/slot-machine.md: in order, when the last one is known to be accepted).
* `next_action` takes the first of these rows that holds. It returns None while one is under way.

  | base b                                        | a gradient is ready, whose fate is ...  | action                |
  |-----------------------------------------------|-----------------------------------------|-----------------------|
  | is S beyond the end                           |                                         | none: done            |
  | is in a drain, or at or beyond the end        |                                         | pass, at once         |
  | of a newcomer that has no weights yet: was    |                                         | pass                  |
  | heard of, or is before `known_from`, or       |                                         |                       |
  | rounds wait for everybody                     |                                         |                       |
  | any other of such a newcomer                  |                                         | none: wait            |
  | is before those heard of when the gradient    | (any: not asked yet)                    | pass, late            |
  | was first looked at, and `passes_over`        |                                         |                       |
  | any other                                     | CONTRIBUTE                              | contribute            |
  |                                               | DROP                                    | drop it; look again   |
  |                                               | FOLD                                    | fold it; look again   |
  |                                               | FOLD_AND_PASS                           | fold it; pass, late   |
  | is one that training passes (`pass_base`)     | (none is ready)                         | pass, at once         |
  | round b was heard of, and `passes_over`       | (none is ready)                         | pass, late            |
  |                                               |                                         | none: wait            |

* The policy (policies/policy.py) decides a gradient's fate, and whether a base that is over is passed without one.
* A worker that is behind catches up before it contributes: wherever its gradient goes, it lands in the round that is
  open at the switch, and a worker that answered every base it lags by with a whole gradient would stay S rounds behind
  for ever, each of its gradients S rounds older than need be. That happens to all workers at once where links are slow.
  A gradient waits for S passes at most, since no worker is further behind; after one that got too old meanwhile, the
  next is passed on only as far as the bound allows, so that a slow link's worker is heard as well.
* The end is the first base without gradients; the S passes from there on are the *flush*: whatever is late has landed
  once they are through, and every worker has the same results. All workers must have the same end. Where it is not
  known beforehand, all have come equally far, and a policy that `lands_folded` has one base more before the end.
* The version is the number of results applied: it is b as soon as result b - 1 has come.
* A newcomer begins at some base and is *absent* until it has the weights. Where rounds close without it, it passes
  late, so that K remains the number of gradients in a step. Its state includes the results before `known_from`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fanin.host.stale.account import (
    CONTRIBUTED,
    PASSED_ABSENT,
    PASSED_DRAIN,
    PASSED_FLUSH,
    PASSED_IDLE,
    PASSED_LATE,
    Account,
)
from fanin.host.stale.policies.policy import Fate, RoundPolicy
from fanin.host.stale.scale import ScaleEpochs


class Step(enum.Enum):
    """The next thing to do."""

    CONTRIBUTE = enum.auto()
    PASS = enum.auto()
    DROP = enum.auto()
    """Throw the ready gradient away."""
    FOLD = enum.auto()
    """Put the ready gradient aside, to be added to the next one."""


@dataclass(slots=True)
class StaleRounds:
    """The rounds of one worker."""

    policy: RoundPolicy
    bound: int
    """Largest age that a gradient may have, for policies that have a bound."""
    scale: ScaleEpochs
    account: Account
    base: int = 0
    """The next base to be decided, or the one under way."""
    under_way: bool = False
    end: int | None = None
    """The first base of the flush; None until that is known."""
    age: int = 0
    """Age of the last gradient that was contributed or folded: its base minus the version that it was computed on."""
    absent: bool = False
    """Whether this is a newcomer without weights."""
    known_from: int = 0
    """The first result that a newcomer applies itself: those before it are in what it is given."""
    waited_for: bool = False
    """Whether rounds wait for every worker, an absent one too."""
    _heard: int = 0
    _ready_version: int | None = None
    _ready_gradients: int = 0
    _catch_up_to: int | None = None
    """The base that the ready gradient is held for; None until it is first looked at."""
    _was_too_old: bool = False
    """Whether the gradient before this one was dropped or folded."""
    _folded_gradients: int = 0
    _lands_folded: bool = False
    """Whether the ready gradient is what was folded before the flush: it is contributed without asking the policy."""
    _passes_next: bool = False
    """Whether this base is passed: its gradient was folded, or a flush has one more base and nothing was folded."""
    _idle_bases: int = 0
    """Bases that training passes, and that are not passed yet."""

    @property
    def ready(self) -> bool:
        """Whether a gradient waits to be contributed."""
        return self._ready_version is not None

    @property
    def idle(self) -> bool:
        """Whether bases that training passes are not passed yet."""
        return self._idle_bases > 0 and not self.ended

    @property
    def rests(self) -> bool:
        """Whether no gradient waits, no base is under way, and none is to be passed."""
        return not (self.ready or self.idle or self.under_way)

    @property
    def done(self) -> bool:
        """Whether the flush is through."""
        return self.end is not None and self.base == self.end + self.scale.staleness and not self.under_way

    @property
    def ended(self) -> bool:
        """Whether no gradient is taken any more."""
        return self.end is not None and self.base + self.under_way >= self.end

    def hand_in(self, version: int) -> None:
        """Take in a gradient that was computed on this version of the weights; no other may be ready."""
        assert self._ready_version is None
        if self.ended:
            self.refuse("at the end")
            return
        assert 0 <= version <= self.base + self.under_way, f"version {version} at base {self.base}"
        self._ready_version, self._catch_up_to = version, None
        self._ready_gradients = 1
        self.account.handed_in += 1
        self.account.in_hand += 1

    def refuse(self, reason: str) -> None:
        """Count a gradient that was handed in and cannot be contributed, by reason."""
        self.account.handed_in += 1
        self.account.dropped[reason] += 1

    def pass_base(self) -> None:
        """Pass one of the next bases at once, since training has no gradient for it."""
        self._idle_bases += 1

    def hear(self, base: int) -> None:
        """Note that round `base` is over."""
        self._heard = max(self._heard, base + 1)

    def flush(self) -> None:
        """Take no more gradients. Without an end, every worker must have come equally far; no gradient is ready."""
        if self.end is not None:
            return
        self.end = here = self.base + self.under_way
        if not self.policy.lands_folded:
            return
        # A drain takes no gradient, so the base for what was folded comes after it.
        while self.scale.drains(self.end):
            self.end += 1
        self.end += 1
        if self._folded_gradients:
            self._ready_version = here
            self._lands_folded = True
        else:
            self._passes_next = True  # at once: others may have folded, and their round needs this worker

    def next_action(self) -> Step | None:
        """The next action; carry it out, then ask again."""
        if self.under_way or self.done:
            return None
        if self.end is not None and self.base >= self.end:
            self._give_up()
            return self._decide(PASSED_FLUSH)
        if self.scale.drains(self.base):
            return self._decide(PASSED_DRAIN)
        if self.absent:
            # Passing before a round is over would take the newcomer ahead of the weights that it is being given.
            over = self.base < max(self.known_from, self._heard)
            return self._decide(PASSED_ABSENT) if over or self.waited_for else None
        if self._ready_version is not None:
            age = self.base - self._ready_version
            return self._decide(PASSED_LATE) if self._catches_up(age) else self._judge(age)
        if self._passes_next:
            self._passes_next = False
            return self._decide(PASSED_FLUSH if self.end is not None else PASSED_LATE)
        if self._idle_bases:
            self._idle_bases -= 1
            return self._decide(PASSED_IDLE)
        if self._heard > self.base and self.policy.passes_over:
            return self._decide(PASSED_LATE)
        return None

    def finished(self) -> None:
        """The result of the base under way has come and is applied."""
        assert self.under_way
        self.under_way = False
        self.base += 1

    def _catches_up(self, age: int) -> bool:
        if not self.policy.passes_over or self._lands_folded:
            return False
        if self._catch_up_to is None:
            # Rounds heard of later do not count: they may close as fast as passes are answered, and then the gradient
            # would never be sent.
            self._catch_up_to = self._heard
        return self.base < self._catch_up_to and (age < self.bound or not self._was_too_old)

    def _judge(self, age: int) -> Step:
        assert age >= 0, f"age {age}"
        fate = Fate.CONTRIBUTE
        if not self._lands_folded:
            fate = self.policy.fate(age, self.bound, over=self._heard > self.base)
        self._passes_next = fate is Fate.FOLD_AND_PASS
        self._was_too_old = fate in (Fate.DROP, Fate.FOLD)
        self.age = age
        if fate in (Fate.FOLD, Fate.FOLD_AND_PASS):
            self._ready_version = None
            self._folded_gradients += self._ready_gradients
            self._ready_gradients = 0
            self.account.folded += 1
            return Step.FOLD
        gradients = self._ready_gradients
        self._settle_ready()
        if fate is Fate.DROP:
            self.account.dropped["too old"] += gradients
            return Step.DROP
        self.account.contributed += gradients + self._folded_gradients
        self.account.in_hand -= self._folded_gradients
        self._folded_gradients = 0
        self.account.ages[age] += 1
        return self._decide(CONTRIBUTED)

    def _give_up(self) -> None:
        """Drop the ready gradient and the folded ones: no base takes them any more."""
        self.account.dropped["at the end"] += self._ready_gradients + self._folded_gradients
        self.account.in_hand -= self._folded_gradients
        self._folded_gradients = 0
        self._settle_ready()

    def _settle_ready(self) -> None:
        self._ready_version = None
        self.account.in_hand -= self._ready_gradients
        self._ready_gradients = 0

    def _decide(self, use: str) -> Step:
        self.under_way = True
        self.account.bases.append(use)
        return Step.CONTRIBUTE if use == CONTRIBUTED else Step.PASS
