"""The work of a stale job's worker between joining and leaving: it computes, and host/stale decides about each base.

The state machine is the real one, `fanin.host.stale.rounds`: it contributes, passes what it has heard is over, drains
between scale epochs, drops or folds what is too old, and flushes at the end. Here a gradient is the worker's array of
the base that it is contributed for, which is what the books know.
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
from fanin.host.stale.scale import ScaleEpochs

EPOCH_BOUNDS = 3
"""Rounds of a scale epoch in units of S_max + 1: short, so that runs of a few steps have drains."""


class WorkerProcess(Protocol):
    """The process of the simulation that the work belongs to (worker.py)."""

    PAUSE_POLL_S: float

    @property
    def rank(self) -> int:
        """Its rank in the job."""

    @property
    def paused(self) -> bool:
        """Whether the process is stopped for now."""

    def at_work(self, work: StaleWork) -> bool:
        """Whether the process still lives, and this is its work."""

    def thinking_s(self) -> float:
        """How long the next gradient takes to compute."""

    def submit(self, step: int, *, passes: bool, counts: npt.NDArray[np.uint32] | None = None) -> None:
        """Contribute to a base, or pass it."""


class StaleWork:
    """The work of one life. It is over when `rounds.done`."""

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
        self._process = process
        self._queue = queue
        self._computes_ahead = self.rounds.policy.passes_over
        self._computing = False
        self._computed: int | None = None
        """The version that a gradient was computed on, while the one before it still waits to be contributed."""
        self._counts = np.zeros(plan.chunks, np.uint32)

    def begin(self) -> None:
        """Compute the first gradient."""
        self._compute()
        self._advance()

    def heard(self, base: int) -> None:
        """A round is over of which this worker has not seen the result."""
        self.rounds.hear(base)
        self._queue.at(self._queue.now, self._advance)

    def round_over(self) -> None:
        """The result of the base under way is in its memory."""
        self.account.round_over(self._counts)
        self.rounds.finished()
        self._queue.at(self._queue.now, self._advance)

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
        """Do what is to be done now."""
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
