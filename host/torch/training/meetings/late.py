"""Meetings with a quorum: rounds of a stale job (docs/staleness.md), which close without the slowest workers.

A delta that comes when its meeting is over joins the next one. Every delta counts once, with the weight 1 / workers,
whenever it lands; accounts say so, and balance after the flush. A worker that comes late takes the results that it has
missed, in order, so all replicas take the same outer steps and have the same bits after the flush.
"""

from __future__ import annotations

import threading

import numpy as np

from fanin.host.codecs.codec import Floats
from fanin.host.stale.account import Account
from fanin.host.stale.runner import Result
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.meetings.fragments import Fragment
from fanin.host.torch.training.meetings.outer import Outer, OuterState, take
from fanin.host.torch.training.stale import StaleJob, StaleOptions, StaleTerms

EPOCH_ROUNDS = 16
"""Meetings from one change of the deltas' scale to the next, beyond the staleness: deltas shrink as training goes on,
and a change costs one meeting of all workers."""


class LateMeetings:
    """The stale job of one rank's local steps, from one flush to the next."""

    def __init__(
        self, group: FaninProcessGroup, outer: Outer, fragment: Fragment, state: OuterState, *, quorum: int,
        staleness: int, lanes: int | str,
    ) -> None:  # fmt: skip
        self._group, self._outer, self._fragment, self._state = group, outer, fragment, state
        self._options = StaleOptions(
            staleness=staleness, quorum=quorum, lanes=lanes, epoch_rounds=EPOCH_ROUNDS + staleness
        )
        self._lock = threading.Lock()
        """Guards the outer state, which the runner's thread moves."""
        self._base = state.start.copy()
        """Weights that this worker's local steps began from."""
        self._job: StaleJob | None = None
        self.in_step = True
        """Whether nothing was handed in since the last flush."""
        self._waiting = False
        """Whether the delta is handed in, and its result has not come."""

    def meet(self) -> None:
        """Hand the model's delta in; once its meeting, or a later one, has a result, the model gets the start weights.

        A delta that is not finite counts as 0. Raises the session's failure, and CollectiveTimeoutError, after which it
        may be called again: the delta counts once.
        """
        self.in_step = False
        if not self._waiting:
            self._hand_in()
        assert self._job is not None
        self._job.runner.wait_for_results()
        self._waiting = False
        self._job.resumed()
        self.begin()

    def _hand_in(self) -> None:
        delta: Floats = self._fragment.delta(self._base).numpy()
        share = np.float32(1.0 / self._group.size())
        if not np.isfinite(delta).all():
            delta[:] = 0.0
        if self._job is None:
            terms = StaleTerms(
                policy="wait",
                options=self._options,
                elements=len(delta),
                end=None,
                on_result=self._take,
                weigh=lambda _age: float(share),
            )
            largest = float(np.abs(delta).max(initial=0.0) * share)
            self._job = StaleJob.found(self._group, terms, largest=largest)
        runner = self._job.runner
        self._job.stepped()
        runner.hand_in(lambda out: np.copyto(out, delta), runner.rounds.base)
        self._waiting = True

    def flush(self) -> list[Account]:
        """Wait for all results that are under way and apply them; every rank's model is then the same. Collective.

        Returns the accounts of all ranks. Raises UnbalancedError, CollectiveTimeoutError, or the session's failure.
        """
        accounts: list[Account] = []
        if self._job is not None:
            accounts = self._job.flush()
            self.close()
        self.begin()
        self.in_step = True
        return accounts

    def begin(self) -> None:
        """Set the model to the start weights of this moment, from which its next delta counts."""
        with self._lock:
            self._base[:] = self._state.start
        self._fragment.write(self._base)

    def close(self) -> None:
        """Leave the job, whatever is under way."""
        if self._job is not None:
            self._job.close()
            self._job = None
            self._waiting = False

    def _take(self, result: Result) -> None:
        """Take a meeting's outer step, none without contributions; on the runner's thread."""
        if not result.empty:
            with self._lock:
                take(self._state, result.gradient.copy(), self._outer, self._state.landed)
