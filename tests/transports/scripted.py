"""Machines that do nothing but report what a test tells them to, to see what the pumps make of it."""

from __future__ import annotations

from collections import deque

from fanin.numerics.reduction import Reduction
from fanin.protocol.events import SwitchEvent, WorkerEvent
from fanin.protocol.job import JobSpec, Uplink
from fanin.transports.transport import Datagram


class ScriptedWorker:
    """A worker machine with a list of events to report, and a log of what was called."""

    def __init__(self) -> None:
        self.events: deque[WorkerEvent] = deque()
        self.received: list[bytes] = []
        self.submitted = 0
        self.departing = False
        self.failed = False

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Log the datagram of a test."""
        self.received.append(data)

    def datagrams_to_send(self, now: float) -> list[Datagram]:
        """Return no datagrams at all."""
        return []

    def next_timer(self) -> float | None:
        """Return None: there is no timer."""
        return None

    def handle_timer(self, now: float) -> None:
        """Do nothing: there is no timer."""

    def next_event(self) -> WorkerEvent | None:
        """The script's next line."""
        return self.events.popleft() if self.events else None

    def submit(self, reduction: Reduction) -> int:
        """Count the reduction and return its ticket."""
        self.submitted += 1
        return self.submitted

    def begin(self, base: int) -> None:
        """Do nothing: no newcomer is tested."""

    def leave(self, now: float) -> None:
        """Remember that the worker leaves."""
        self.departing = True

    def counters(self) -> dict[str, int]:
        """Two counters, of which one is no sum."""
        return {"packets_in": len(self.received), "srtt_us": 10 * len(self.received)}


class ScriptedSwitch:
    """A switch machine with a list of events to report; it admits jobs until `full`."""

    def __init__(self, full: bool = False) -> None:
        self.events: deque[SwitchEvent] = deque()
        self.admitted: list[int] = []
        self.masks = (0, 0, 0)
        self.full = full
        self.broken = False

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Break, if the test says so."""
        if self.broken:
            raise ZeroDivisionError("a bug")

    def datagrams_to_send(self, now: float) -> list[Datagram]:
        """Return no datagrams at all."""
        return []

    def next_timer(self) -> float | None:
        """Return None: there is no timer."""
        return None

    def handle_timer(self, now: float) -> None:
        """Do nothing: there is no timer."""

    def next_event(self) -> SwitchEvent | None:
        """The script's next line."""
        return self.events.popleft() if self.events else None

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None:
        """Admit the leaf's job as any other."""
        self.admit(spec)

    def admit(self, spec: JobSpec) -> None:
        """Admit the job, or refuse it if full."""
        if self.full:
            raise MemoryError
        self.admitted.append(spec.job)

    def remove(self, job: int) -> None:
        """Forget the job's number."""
        self.admitted.remove(job)

    def evict(self, job: int, worker: int, now: float) -> None:
        """Do nothing: evictions are not tested."""

    def suspect(self, job: int, worker: int, now: float) -> None:
        """Do nothing: suspicions are not tested."""

    def suspect_parent(self, job: int, now: float) -> None:
        """Do nothing: suspicions are not tested."""

    def overdue(self, now: float) -> list[int]:
        """Return no workers: none is overdue."""
        return []

    def sign_of_life(self, source: int, now: float) -> None:
        """Do nothing: liveness is not tested."""

    def set_quorum(self, job: int, quorum: int, now: float) -> None:
        """Do nothing: the quorum is not tested."""

    def set_staleness(self, job: int, staleness: int, now: float) -> None:
        """Do nothing: the staleness is not tested."""

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Do nothing: newcomers are not tested."""

    def counters(self) -> dict[str, int]:
        """Return one counter of packets."""
        return {"packets_in": 1}

    def job_counters(self, job: int) -> dict[str, int]:
        """Return one counter of packets."""
        return {"packets_in": 1}

    def member_counters(self, job: int) -> list[dict[str, int]]:
        """Return nothing: workers are not counted."""
        return []

    def members(self, job: int) -> tuple[int, int, int]:
        """The masks that the test has set."""
        return self.masks
