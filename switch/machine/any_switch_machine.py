"""The interface of a switch machine for its driver and its controller: Python twin, native machine, or P4 program."""

from __future__ import annotations

from typing import Protocol

from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.machine import Machine


class AnySwitchMachine(Machine[SwitchEvent], Protocol):
    """The five verbs of a machine, and the calls of a controller. switch_machine.py documents them."""

    def admit(self, spec: JobSpec) -> None:
        """Admit a job to the machine."""

    def remove(self, job: int) -> None:
        """Forget a job and free its memory."""

    def evict(self, job: int, worker: int, now: float) -> None:
        """Take a worker out of the full mask."""

    def suspect(self, job: int, worker: int, now: float) -> None:
        """Expect a sign of life from a worker soon."""

    def suspect_parent(self, job: int, now: float) -> None:
        """Expect a sign of life from a leaf's parent soon."""

    def set_quorum(self, job: int, quorum: int, now: float) -> None:
        """Change the quorum K of a job."""

    def set_staleness(self, job: int, staleness: int, now: float) -> None:
        """Change the staleness bound S of a job."""

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Open an evicted worker's place."""

    def members(self, job: int) -> tuple[int, int, int]:
        """Masks of registered, lost and left workers."""

    def counters(self) -> dict[str, int]:
        """The machine's counters, by name."""

    def job_counters(self, job: int) -> dict[str, int]:
        """Counters of one job, by name."""

    def member_counters(self, job: int) -> list[dict[str, int]]:
        """Counters of each worker of one job, by name (member_tally.py)."""


class LeafMachine(AnySwitchMachine, Protocol):
    """A switch machine that can be a leaf of a tree."""

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None:
        """Admit a part of a job whose rounds close at the parent that `uplink` names."""
