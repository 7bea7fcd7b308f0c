"""The server of a switch's data ports, as its controller sees it.

A server owns one switch machine per flow, each with a port and a thread of its own. Its calls may come from any thread;
none of them hangs.
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
        """Take a job in, on every flow. AdmissionError when memory is out or the index is taken.

        `share_memory`: with rings for its workers on this machine, where there is room.
        """

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        """Take in a part of a job at a parent, on every flow. AdmissionError as for `admit`."""

    def remove(self, job: int) -> None:
        """Forget a job; its packets are strangers' from now on."""

    def evict(self, job: int, worker: int) -> None:
        """Take a worker out of the full mask, so that rounds close without it."""

    def suspect(self, job: int, worker: int) -> None:
        """Something speaks for a worker's death: unless it gives a sign of life on every flow soon, it is lost."""

    def set_quorum(self, job: int, quorum: int) -> None:
        """Change K of a job, which may close open rounds."""

    def set_staleness(self, job: int, staleness: int) -> None:
        """Change S of a job, which may close open rounds."""

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Open an evicted worker's place to a new process; ValueError when it was not evicted."""

    @property
    def event_fileno(self) -> int:
        """A descriptor that is readable while `next_event` has something to say."""

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        """The next event, once per worker however many flows there are; waits up to `timeout_s`. An event that packets
        have announced is already here when they arrive. RuntimeError after a crash.
        """

    def counters(self) -> dict[str, int]:
        """The machines' counters, added up over flows."""

    def job_counters(self, job: int) -> dict[str, int]:
        """The same, of one job."""

    def member_counters(self, job: int) -> list[dict[str, int]]:
        """The same, of each worker of one job (member_tally.py); empty at a switch that counts by job only."""

    def shared_memory(self, job: int) -> tuple[str, ...]:
        """Paths of the shared memory for the job's workers on this machine, one per flow; empty if none is offered."""

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """Bytes of the switch's memory in the job's rings, over all flows, and the bytes that they want: a job has all
        or none. Both are 0 if the job is offered no shared memory.
        """

    def members(self, job: int) -> tuple[int, int, int]:
        """Bit masks of the workers that are registered on every flow, lost on any, and that left any."""

    def close(self) -> None:
        """Stop, and give up sockets and threads. A second call does nothing."""
