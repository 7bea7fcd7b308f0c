"""The machines that a simulation drives: the real ones, native or Python, behind their common verbs."""

from __future__ import annotations

from typing import Literal, Protocol, cast

from fanin.extension import native_extension
from fanin.host.machine.any_worker_machine import AnyWorkerMachine
from fanin.host.machine.worker_machine import WorkerMachine
from fanin.protocol.job import JobSpec
from fanin.switch.machine.any_switch_machine import LeafMachine
from fanin.switch.machine.switch_machine import SwitchMachine

Kind = Literal["native", "python"]


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


def switch_type(kind: Kind) -> SwitchType:
    """The switch machine of that kind. ConfigurationError if it is native and not built."""
    extension = native_extension(kind == "native")
    return cast("SwitchType", SwitchMachine if extension is None else extension.SwitchMachine)


def worker_type(kind: Kind) -> WorkerType:
    """The worker machine of that kind. ConfigurationError if it is native and not built."""
    extension = native_extension(kind == "native")
    return cast("WorkerType", WorkerMachine if extension is None else extension.WorkerMachine)
