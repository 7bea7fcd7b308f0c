"""The interface of a worker machine to its drivers: of the twin (worker_machine.py) and of `_native.WorkerMachine`."""

from __future__ import annotations

from typing import Protocol

from fanin.numerics.reduction import Reduction
from fanin.protocol.events import WorkerEvent
from fanin.protocol.machine import Machine


class AnyWorkerMachine(Machine[WorkerEvent], Protocol):
    """The five verbs, and what an engine asks. worker_machine.py documents the calls."""

    def submit(self, reduction: Reduction) -> int:
        """Queue a reduction; its ticket."""

    def begin(self, base: int) -> None:
        """Let a newcomer's reductions begin."""

    def leave(self, now: float) -> None:
        """Begin to say BYE."""

    def counters(self) -> dict[str, int]:
        """The machine's counters, by name."""

    @property
    def failed(self) -> bool:
        """Whether it has reported a failure."""
