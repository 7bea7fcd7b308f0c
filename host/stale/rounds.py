"""What a worker sends in which round: the state machine behind stale training. No thread, no clock, no memory.

Rules of this file
------------------
* Bases are decided one after another: each is a contribution or a pass, and the next one is decided when the round's
  result has come (the host rules of docs/slot-machine.md: in order, when the last one is known to be accepted).
* `next_action` takes the first of these rows that holds. It returns None while one is under way.

  | base b                                        | a gradient is ready                     | action                |
  |-----------------------------------------------|-----------------------------------------|-----------------------|
  | is S beyond the end                           |                                         | none: done            |
  | is in a drain, or at or beyond the end        |                                         | pass, at once         |
  | of a newcomer that has no weights yet: was    |                                         | pass                  |
  | heard of, or is before `known_from`, or       |                                         |                       |
  | rounds wait for everybody                     |                                         |                       |
  | any other of such a newcomer                  |                                         | none: wait            |
  | round b was heard of, `wait`                  | yes, and the one before was not folded  | fold it; pass, late   |
  |                                               | yes, and it is not too old, or `wait`   | contribute            |
  |                                               | yes, too old, `skip`                    | drop it; look again   |
  |                                               | yes, too old, `fold`                    | fold it; look again   |
  | round b was heard of, and not `wait`          | no                                      | pass, late            |
  |                                               |                                         | none: wait            |

* Why `wait` folds: N contributions come per iteration, and K < N of them close a round. If all workers always
  contributed, rounds would run ahead of all workers as far as the bound lets them, and each gradient would land S
  rounds late, even with equally fast workers. A late pass closes nothing, so late workers slow the rounds down again.
  There are never two in a row: a worker that stays behind contributes every other time, late if need be.
* The end is the first base without gradients; the S passes from there on are the *flush*: whatever is late has landed
  once they are through, and every worker has the same results. All workers must have the same end. Where it is not
  known beforehand, all have come equally far, and there is one base more before it, for what `wait` has folded.
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
    PASSED_LATE,
    Account,
)
from fanin.host.stale.policy import Fate, Policy, fate, passes_for
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
    """One worker's rounds."""

    policy: Policy
    bound: int
    """Largest age that a gradient may have under `skip` and `fold`."""
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
    _folded_gradients: int = 0
    _held_back: bool = False
    """Under `wait`: whether the last gradient was folded."""
    _passes_next: bool = False
    """Under `wait`: whether this base is to be passed, since its gradient was folded."""

    @property
    def ready(self) -> bool:
        """Whether a gradient waits to be contributed."""
        return self._ready_version is not None

    @property
    def done(self) -> bool:
        """Whether the flush is through."""
        return self.end is not None and self.base == self.end + self.scale.staleness and not self.under_way

    @property
    def ended(self) -> bool:
        """Whether no gradient is taken any more."""
        return self.end is not None and self.base + self.under_way >= self.end

    def hand_in(self, version: int) -> None:
        """A gradient computed on this version of the weights is ready; none was."""
        assert self._ready_version is None
        if self.ended:
            self.refuse("at the end")
            return
        assert 0 <= version <= self.base + self.under_way, f"version {version} at base {self.base}"
        self._ready_version = version
        self._ready_gradients = 1
        self.account.handed_in += 1
        self.account.in_hand += 1

    def refuse(self, reason: str) -> None:
        """A gradient was handed in that is not fit to be contributed."""
        self.account.handed_in += 1
        self.account.dropped[reason] += 1

    def hear(self, base: int) -> None:
        """Round `base` is over."""
        self._heard = max(self._heard, base + 1)

    def flush(self) -> None:
        """Take no more gradients. Without an end, every worker must have come equally far; no gradient is ready."""
        if self.end is not None:
            return
        self.end = here = self.base + self.under_way
        if self.policy != "wait":
            return
        # A drain takes no gradient, so the base for what was folded comes after it.
        while self.scale.drains(self.end):
            self.end += 1
        self.end += 1
        if self._folded_gradients:
            self._ready_version = here
            self._held_back = True
        else:
            self._passes_next = True

    def next_action(self) -> Step | None:
        """What to do now; do it, then ask again."""
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
            return self._judge(self.base - self._ready_version)
        if self._passes_next:
            self._passes_next = False
            return self._decide(PASSED_FLUSH if self.end is not None else PASSED_LATE)
        if self._heard > self.base and passes_for(self.policy):
            return self._decide(PASSED_LATE)
        return None

    def finished(self) -> None:
        """The result of the base under way has come and is applied."""
        assert self.under_way
        self.under_way = False
        self.base += 1

    def _judge(self, age: int) -> Step:
        verdict = fate(self.policy, age, self.bound)
        if self.policy == "wait":
            # Not twice in a row: a worker that is always late would otherwise never contribute.
            late = self._heard > self.base and not self._held_back
            self._held_back = self._passes_next = late
            verdict = Fate.FOLD if late else Fate.CONTRIBUTE
        self.age = age
        if verdict is Fate.FOLD:
            self._ready_version = None
            self._folded_gradients += self._ready_gradients
            self._ready_gradients = 0
            self.account.folded += 1
            return Step.FOLD
        gradients = self._ready_gradients
        self._settle_ready()
        if verdict is Fate.DROP:
            self.account.dropped["too old"] += gradients
            return Step.DROP
        self.account.contributed += gradients + self._folded_gradients
        self.account.in_hand -= self._folded_gradients
        self._folded_gradients = 0
        self.account.ages[age] += 1
        return self._decide(CONTRIBUTED)

    def _give_up(self) -> None:
        """Nothing is contributed any more."""
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
