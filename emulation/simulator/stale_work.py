"""The work of a stale job's worker between joining and leaving: it computes, and host/stale decides about each base.

The state machine is the real one, `fanin.host.stale.rounds`: it contributes, passes rounds that it has heard are over,
drains between scale epochs, drops or folds old gradients, and flushes at the end. Here a gradient is the worker's array
for the base to which it is contributed, so that the ledger can check it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.scenario import JobPlan
from fanin.host.stale.account import Account
from fanin.host.stale.policies import make_policy
from fanin.host.stale.rounds import StaleRounds, Step
from fanin.host.stale.scale import EXCESS, ScaleEpochs

EPOCH_BOUNDS = 3
"""Rounds of a scale epoch in units of S_max + 1: few, so that short runs have drains, too."""
SPIKE_ROUNDS = 11
"""One round in so many holds an element far above the bound, so that its epoch ends early."""


class WorkerProcess(Protocol):
    """The process that does the work (worker.py)."""

    PAUSE_POLL_S: float

    @property
    def rank(self) -> int:
        """The worker's rank in the job."""

    @property
    def paused(self) -> bool:
        """Whether the process is stopped for now."""

    def at_work(self, work: StaleWork) -> bool:
        """Whether the process still lives, and `work` is its work."""

    def thinking_s(self) -> float:
        """Draw the time that the next gradient takes to compute."""

    def submit(self, step: int, *, passes: bool, counts: npt.NDArray[np.uint32] | None = None) -> None:
        """Contribute to the base `step`, or pass it; `counts` gets the contributors by chunk."""


class StaleWork:
    """The work of one life of a worker; it ends when `rounds.done`."""

    def __init__(self, process: WorkerProcess, queue: EventQueue, plan: JobPlan, first_base: int) -> None:
        assert plan.policy is not None
        staleness = plan.largest_staleness
        self.account = Account(process.rank, plan.chunks)
        self.rounds = StaleRounds(
            policy=make_policy(plan.policy),
            bound=staleness,
            scale=ScaleEpochs(staleness=staleness, epoch_rounds=EPOCH_BOUNDS * (staleness + 1), power=0),
            account=self.account,
            base=first_base,
            end=plan.steps,
        )
        for index in range(first_base):
            self._note_size(index)  # a newcomer is given the scale by a peer
        self._process = process
        self._queue = queue
        self._computes_ahead = self.rounds.policy.passes_over
        self._computing = False
        self._computed: int | None = None
        """Version on which a finished gradient was computed, while an earlier one waits to be contributed; or None."""
        self._counts = np.zeros(plan.chunks, np.uint32)

    def begin(self) -> None:
        """Compute the first gradient."""
        self._compute()
        self._advance()

    def heard(self, base: int) -> None:
        """Note that the round of `base` is over, although its result has not come."""
        self.rounds.hear(base)
        self._queue.at(self._queue.now, self._advance)

    def round_over(self) -> None:
        """Note that the result of the base under way has come."""
        self.account.round_over(self._counts)
        self._note_size(self.rounds.base)
        self.rounds.finished()
        self._queue.at(self._queue.now, self._advance)

    def _note_size(self, index: int) -> None:
        """Tell the scale the largest element of a round, which is the same at every worker."""
        scale = self.rounds.scale
        scale.noted(index, scale.power + (EXCESS if index % SPIKE_ROUNDS == 0 else -1))

    def _compute(self) -> None:
        if not self._computing and not self.rounds.ended:
            self._computing = True
            self._queue.after(self._process.thinking_s(), self._ready, self.rounds.base)

    def _ready(self, version: int) -> None:
        if not self._process.at_work(self):
            return
        if self._process.paused:
            self._queue.after(self._process.PAUSE_POLL_S, self._ready, version)
            return
        self._computing = False
        self._computed = version
        self._advance()

    def _advance(self) -> None:
        """Contribute, pass or compute, whatever can be done now."""
        if not self._process.at_work(self):
            return
        if self._process.paused:
            self._queue.after(self._process.PAUSE_POLL_S, self._advance)
            return
        self._take_actions()
        if self._computed is not None and not self.rounds.ready:
            self.rounds.hand_in(self._computed)
            self._computed = None
            self._take_actions()
        idle = not self.rounds.ready and not self.rounds.under_way
        if self._computed is None and (self._computes_ahead or idle):
            self._compute()

    def _take_actions(self) -> None:
        while (step := self.rounds.next_action()) is not None:
            if step in (Step.CONTRIBUTE, Step.PASS):
                self._process.submit(self.rounds.base, passes=step is Step.PASS, counts=self._counts)
