"""The machines that a simulation drives: the real ones, native or Python, behind the verbs that they share."""

from __future__ import annotations

from typing import Literal, Protocol, cast

from fanin.events import SwitchEvent, WorkerEvent
from fanin.extension import native_extension
from fanin.host.worker_machine import WorkerMachine
from fanin.job import JobSpec
from fanin.reduction import Reduction
from fanin.switch.switch_machine import SwitchMachine

Kind = Literal["native", "python"]


class Machine(Protocol):
    """What both ends have in common."""

    def receive_datagram(self, data: bytes, source: int, now: float) -> None: ...
    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]: ...
    def next_timer(self) -> float | None: ...
    def handle_timer(self, now: float) -> None: ...
    def counters(self) -> dict[str, int]: ...


class Switch(Machine, Protocol):
    """A switch machine with what the controller asks of it."""

    def admit(self, spec: JobSpec) -> None: ...
    def remove(self, job: int) -> None: ...
    def evict(self, job: int, worker: int, now: float) -> None: ...
    def set_quorum(self, job: int, quorum: int, now: float) -> None: ...
    def set_staleness(self, job: int, staleness: int, now: float) -> None: ...
    def jobs(self) -> list[int]: ...
    def members(self, job: int) -> tuple[int, int, int]: ...
    def job_counters(self, job: int) -> dict[str, int]: ...
    def next_event(self) -> SwitchEvent | None: ...


class Worker(Machine, Protocol):
    """A worker machine with what the engine asks of it."""

    @property
    def ready(self) -> bool: ...
    @property
    def failed(self) -> bool: ...
    def submit(self, reduction: Reduction) -> int: ...
    def leave(self, now: float) -> None: ...
    def next_event(self) -> WorkerEvent | None: ...
    def outstanding(self) -> int: ...


class SwitchType(Protocol):
    """Makes a switch machine; the canary passes broken ones."""

    def __call__(self, memory_bytes: int) -> Switch: ...


class WorkerType(Protocol):
    """Makes a worker machine."""

    def __call__(self, spec: JobSpec, worker: int, *, switch: int, token: int) -> Worker: ...


def switch_type(kind: Kind) -> SwitchType:
    """The switch machine of that kind. ConfigurationError where the native one is not built."""
    extension = native_extension(kind == "native")
    return cast("SwitchType", SwitchMachine if extension is None else extension.SwitchMachine)


def worker_type(kind: Kind) -> WorkerType:
    """The worker machine of that kind. ConfigurationError where the native one is not built."""
    extension = native_extension(kind == "native")
    return cast("WorkerType", WorkerMachine if extension is None else extension.WorkerMachine)
