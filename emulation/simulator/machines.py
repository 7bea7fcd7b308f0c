"""The machines that a simulation drives: the real ones, native or Python, behind their common verbs."""

from __future__ import annotations

from typing import Literal, Protocol

from fanin.host.machine.any_worker_machine import AnyWorkerMachine
from fanin.protocol.job import JobSpec
from fanin.switch.machine.any_switch_machine import LeafMachine

Kind = Literal["native", "python", "trains"]
"""trains: native machines that get trains of datagrams (trains.py)."""


class Switch(LeafMachine, Protocol):
    """A switch machine, with the methods that checkers call in addition."""

    def jobs(self) -> list[int]: ...


class Worker(AnyWorkerMachine, Protocol):
    """A worker machine, with the methods that checkers call in addition."""

    @property
    def ready(self) -> bool: ...
    def outstanding(self) -> int: ...


class SwitchType(Protocol):
    """Callable that makes a switch machine; the canary passes defective ones."""

    def __call__(self, memory_bytes: int) -> Switch: ...


class WorkerType(Protocol):
    """Callable that makes a worker machine."""

    def __call__(self, spec: JobSpec, worker: int, *, switch: int, token: int, newcomer: bool) -> Worker: ...
