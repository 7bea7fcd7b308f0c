"""The machines that a simulation drives: the real ones, native or Python, behind the verbs that they share."""

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
    """A switch machine with what the checkers ask besides."""

    def jobs(self) -> list[int]: ...


class Worker(AnyWorkerMachine, Protocol):
    """A worker machine with what the checkers ask besides."""

    @property
    def ready(self) -> bool: ...
    def outstanding(self) -> int: ...


class SwitchType(Protocol):
    """Makes a switch machine; the canary passes broken ones."""

    def __call__(self, memory_bytes: int) -> Switch: ...


class WorkerType(Protocol):
    """Makes a worker machine."""

    def __call__(self, spec: JobSpec, worker: int, *, switch: int, token: int, newcomer: bool) -> Worker: ...


def switch_type(kind: Kind) -> SwitchType:
    """The switch machine of that kind. ConfigurationError where the native one is not built."""
    extension = native_extension(kind == "native")
    return cast("SwitchType", SwitchMachine if extension is None else extension.SwitchMachine)


def worker_type(kind: Kind) -> WorkerType:
    """The worker machine of that kind. ConfigurationError where the native one is not built."""
    extension = native_extension(kind == "native")
    return cast("WorkerType", WorkerMachine if extension is None else extension.WorkerMachine)
