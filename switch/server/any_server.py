"""The interface of a server of a switch's data ports, for the switch's controller.

A server owns one switch machine per flow, each with a port and a thread of its own. Its methods may be called from any
thread, and none of them blocks for long.
"""

from __future__ import annotations

from typing import Protocol

from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import JobSpec, ParentRoute


class Server(Protocol):
    """Serves the data ports of a switch."""

    @property
    def description(self) -> str:
        """Names of the server, the machine and the transport, in words."""

    @property
    def ports(self) -> tuple[int, ...]:
        """The port of each flow."""

    def admit(self, spec: JobSpec, *, share_memory: bool = True) -> None:
        """Admit a job on every flow. AdmissionError if memory does not suffice or the index is taken.

        `share_memory`: with rings for its workers on this machine, if there is room for them.
        """

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        """Admit, on every flow, a part of a job whose rounds close at a parent. AdmissionError as for `admit`."""

    def remove(self, job: int) -> None:
        """Forget a job; its packets are refused from now on."""

    def evict(self, job: int, worker: int) -> None:
        """Take a worker out of the full mask, so that rounds close without it."""

    def suspect(self, job: int, worker: int) -> None:
        """Suspect a worker of having died: unless it gives a sign of life on every flow soon, it is lost."""

    def suspect_parent(self, job: int) -> None:
        """Suspect the parent of a leaf's part of having died: unless it gives a sign of life soon, it is lost."""

    def set_quorum(self, job: int, quorum: int) -> None:
        """Change K of a job, which may close open rounds."""

    def set_staleness(self, job: int, staleness: int) -> None:
        """Change S of a job, which may close open rounds."""

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Open an evicted worker's place to a new process. ValueError if it was not evicted."""

    @property
    def event_fileno(self) -> int:
        """A descriptor that is readable while `next_event` has an event or an error."""

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        """Wait up to `timeout_s` for the next event; None without one. RuntimeError after a crash.

        Each event comes once per worker, not per flow, and it is here before the packets that announce it arrive.
        """

    def counters(self) -> dict[str, int]:
        """The machines' counters, by name, summed over flows."""

    def job_counters(self, job: int) -> dict[str, int]:
        """Counters of one job, by name, summed over flows."""

    def member_counters(self, job: int) -> list[dict[str, int]]:
        """Counters of each worker of one job (member_tally.py); empty at a switch that counts by job only."""

    def shared_memory(self, job: int) -> tuple[str, ...]:
        """Paths of the shared memory for the job's workers on this machine, one per flow; empty if none is offered."""

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """Bytes of the job's rings over all flows, and the bytes that it asked for: it has all of these, or 0.

        Both are 0 if the job is offered no shared memory.
        """

    def members(self, job: int) -> tuple[int, int, int]:
        """Bit masks of the workers that are registered on every flow, are lost on any, and have left any."""

    def close(self) -> None:
        """Stop the threads and close the sockets. A second call does nothing."""
