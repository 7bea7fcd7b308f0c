"""NaN and infinities that reach a sum: which rank contributed them, in which step, to which parameter.

Rules
-----
* The packets of a spoiled sum say who has spoiled it (fanin/numerics/spoilers.py), alike on all ranks. So nothing is
  asked of anybody, and a sum that is finite costs a comparison.
* A report is made once for each sum, by whichever thread learns first that the sum is done: counted, logged where the
  ranks are others than in the last report, and handed to callbacks.
* A step ends with a call of any optimizer's `step`; steps of one optimizer count, of several those of the busiest. An
  optimizer that is made later begins at the step that is under way, so a second training continues the count.
* `raise`: every wait for the sum raises NonFiniteError, on all ranks alike.
* `skip`: the next `step` of each optimizer that the process had when the sum came finds no gradients, and so changes
  neither weights nor state, on all ranks of the group alike, since all have waited for the same sums.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fanin.errors import NonFiniteError, UnsupportedError

if TYPE_CHECKING:
    from fanin.host.session.any_session import AnySession
    from fanin.host.session.spoilers import Spoiler

log = logging.getLogger("fanin")

MAX_SUMS = 4096
"""Sums that are remembered to tell which bucket of a step one was; the latest ones."""
MAX_REPORTS = 256
"""Reports that are remembered, the latest ones."""

NAMED_AFTER_STEPS = 3
"""DistributedDataParallel makes its final buckets in an optimizer's second step, and tells of them after the third."""


class Namer(Protocol):
    """Names of the parameters that are summed, as bucket_names.py knows them."""

    def learn(self) -> None:
        """Look at the model, between two steps: in a backward pass its reducer is locked."""

    def name(self, sizes_bytes: Sequence[int], at: int, first: int, count: int) -> str | None:
        """The parameter with elements [first, first + count) of the `at`-th sum of a step; None: not known.

        `sizes_bytes`: of the sums since the step began.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A rank that has spoiled a sum."""

    rank: int
    """Its number in the group."""
    first: int
    """The first element that is not finite is one of elements [first, first + count) of what was summed."""
    count: int
    parameter: str | None
    """Name of the parameter with that element, where it is known: of the buckets of DistributedDataParallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteReport:
    """A sum that NaN or infinities have reached."""

    step: int
    """1 before the first `step` of an optimizer of this process has ended, 2 after it, and so on."""
    collective: str
    culprits: tuple[Culprit, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Group ranks that have spoiled it."""
        return tuple(each.rank for each in self.culprits)

    def __str__(self) -> str:
        return f"step {self.step}, {self.collective}: " + "; ".join(map(_in_words, self.culprits))


def _in_words(culprit: Culprit) -> str:
    end = culprit.first + culprit.count - 1
    where = f"element {culprit.first:,}" if culprit.count == 1 else f"one of elements {culprit.first:,} to {end:,}"
    named = "" if culprit.parameter is None else f"{culprit.parameter!r}, "
    return f"rank {culprit.rank} contributed NaN or infinity ({named}{where})"


class NonFinite:
    """The spoiled sums of one group, and the reaction to them."""

    def __init__(self, policy: str, rank: int) -> None:
        """`policy` is the value of Options.on_nonfinite."""
        self.policy = policy
        self._rank = rank
        self.namer: Namer | None = None
        self.callbacks: OrderedDict[int, Callable[[NonFiniteReport], None]] = OrderedDict()
        self._lock = threading.Lock()
        """The lock of everything that follows."""
        self._sums: deque[tuple[int, int]] = deque(maxlen=MAX_SUMS)
        """Tickets, or keys, and bytes of sums since the step began."""
        self._reports: OrderedDict[int, NonFiniteReport] = OrderedDict()
        self._keys = itertools.count(1)
        self._counts: Counter[str] = Counter()
        self._logged_ranks: tuple[int, ...] = ()
        """Ranks that the log has named last."""
        STEPS.add(self)

    @property
    def reports(self) -> tuple[NonFiniteReport, ...]:
        """The latest reports, oldest first."""
        with self._lock:
            return tuple(self._reports.values())

    def counters(self) -> dict[str, int | float]:
        """Counters by name: `nonfinite.sums`, `nonfinite.skipped_steps`, `nonfinite.rank.R` if rank R spoiled any."""
        with self._lock:
            return {f"nonfinite.{name}": count for name, count in self._counts.items()}

    def close(self) -> None:
        """Stop counting optimizers' steps, since the group was left."""
        STEPS.remove(self)

    def submitted(self, ticket: int, size_bytes: int) -> None:
        """Note that a sum of one ticket was begun."""
        self._sums.append((ticket, size_bytes))

    def begun(self, size_bytes: int) -> int:
        """Note that a sum of several tickets was begun; its key for `told`, which is no ticket."""
        key = -next(self._keys)
        self.submitted(key, size_bytes)
        return key

    def step_ended(self, taken: int) -> None:
        """Begin to count the sums of the next step. `taken`: steps that the optimizer has taken, with this one."""
        if self.namer is not None and self._sums and taken == NAMED_AFTER_STEPS:
            self.namer.learn()
        self._sums.clear()

    def report_if_spoiled(self, session: AnySession, ticket: int, name: str) -> None:
        """Report a finished sum if it was spoiled. Raises NonFiniteError then, where the policy is `raise`."""
        spoilers = session.spoilers_of(ticket)
        if spoilers:
            self.report_spoiled(ticket, name, spoilers)

    def report_spoiled(self, key: int, name: str, spoilers: Sequence[Spoiler]) -> None:
        """Report a finished sum, given by its ticket or key, that these have spoiled, unless it was reported before.

        Every call raises NonFiniteError where the policy is `raise`.
        """
        with self._lock:
            report = self._reports.get(key)
            is_new = report is None
            if report is None:
                report = self._reports[key] = self._report(key, name, spoilers)
                self._count(report)
            told, self._logged_ranks = self._logged_ranks, report.ranks
        if is_new:
            self._tell(report, told)
        if self.policy == "raise":
            raise _as_error(report)

    # --- below: with the lock held ---

    def _report(self, ticket: int, name: str, spoilers: Sequence[Spoiler]) -> NonFiniteReport:
        sums = list(self._sums)
        at = next((index for index, (each, _) in enumerate(sums) if each == ticket), -1)
        sizes = [size_bytes for _, size_bytes in sums]

        def parameter(spoiler: Spoiler) -> str | None:
            return None if self.namer is None or at < 0 else self.namer.name(sizes, at, spoiler.first, spoiler.count)

        culprits = tuple(
            Culprit(rank=each.rank, first=each.first, count=each.count, parameter=parameter(each)) for each in spoilers
        )
        return NonFiniteReport(step=STEPS.begun, collective=name, culprits=culprits)

    def _count(self, report: NonFiniteReport) -> None:
        self._counts["sums"] += 1
        self._counts.update(f"rank.{rank}" for rank in report.ranks)
        if len(self._reports) > MAX_REPORTS:
            self._reports.popitem(last=False)

    # --- below: without the lock ---

    def _tell(self, report: NonFiniteReport, told: tuple[int, ...]) -> None:
        if self.policy == "skip":
            STEPS.spoil()
        if told != report.ranks:
            outcome = {"warn": "", "raise": "; it raises", "skip": "; this step is left out on every rank"}[self.policy]
            log.warning("rank %d: a sum is not finite: %s%s", self._rank, report, outcome)
        for callback in list(self.callbacks.values()):
            callback(report)

    def skipped(self) -> None:
        """A step of an optimizer was left out."""
        with self._lock:
            self._counts["skipped_steps"] += 1


def _as_error(report: NonFiniteReport) -> NonFiniteError:
    error = NonFiniteError(
        report.ranks,
        report.step,
        tuple(each.parameter for each in report.culprits),
        f"a sum is not finite: {report}. Remedy: look at that rank's data, learning rate and loss scale; "
        "on_nonfinite='skip' leaves such steps out, and 'warn' goes on",
    )
    error.explained = True  # type: ignore[attr-defined]
    return error


class Steps:
    """Steps of this process's optimizers, and those that are to be left out."""

    def __init__(self) -> None:
        self.begun = 1
        """Number of the step that is under way."""
        self._groups: weakref.WeakSet[NonFinite] = weakref.WeakSet()
        self._taken: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """Number of steps that each optimizer has taken."""
        self._first: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """Number of each optimizer's first step."""
        self._spoiled = itertools.count(1)
        self._spoils = 0
        """Number of the sums so far for which a step is to be left out."""
        self._seen: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """Value of `_spoils` at each optimizer's last step, or when it was made."""
        self._hooked = False

    def add(self, group: NonFinite) -> None:
        """Tell a group of the ends of steps from now on; the first call installs hooks in torch's optimizers."""
        self._groups.add(group)
        if not self._hooked:
            self._hooked = True
            register_optimizer_step_pre_hook(self._before_step)
            register_optimizer_step_post_hook(self._after_step)
            self._note_new_optimizers()

    def remove(self, group: NonFinite) -> None:
        """Forget a group that was left; steps that its sums have spoiled are still left out."""
        self._groups.discard(group)

    def _note_new_optimizers(self) -> None:
        """Wrap `Optimizer.__init__`, so that sums and steps before an optimizer was made do not count for it.

        torch has hooks for steps, but none for the construction of optimizers. A copied or unpickled optimizer passes
        unnoticed: it skips its first step if any earlier sum was spoiled, which is better than NaN in weights.
        """
        make = Optimizer.__init__

        @functools.wraps(make)
        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._seen.setdefault(optimizer, self._spoils)
            self._first.setdefault(optimizer, self.begun)

        Optimizer.__init__ = made  # type: ignore[assignment,method-assign]

    def spoil(self) -> None:
        """Make every optimizer skip its next step."""
        self._spoils = next(self._spoiled)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        skips = any(group.policy == "skip" for group in self._groups)
        if not (skips or self._spoils):
            return
        seen, self._seen[optimizer] = self._seen.get(optimizer, 0), self._spoils
        is_spoiled = seen != self._spoils
        if (skips or is_spoiled) and any(argument is not None for argument in (*args[1:], *kwargs.values())):
            raise UnsupportedError(
                f"on_nonfinite='skip' with {type(optimizer).__name__}.step(closure): the closure makes gradients "
                "within the step, which can no longer be left out. Remedy: an optimizer without a closure, or 'raise'"
            )
        if not is_spoiled:
            return
        for each in optimizer.param_groups:
            for parameter in each["params"]:
                parameter.grad = None
        for group in self._groups:
            if group.policy == "skip":
                group.skipped()

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        taken = self._taken[optimizer] = self._taken.get(optimizer, 0) + 1
        # An optimizer whose making was not noticed may belong to the step that another one has just ended.
        first = self._first.setdefault(optimizer, max(1, self.begun - 1))
        self.begun = max(self.begun, first + taken)
        for group in self._groups:
            group.step_ended(taken)


STEPS = Steps()
"""The steps of this process."""
