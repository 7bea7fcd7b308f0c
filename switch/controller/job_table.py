"""A controller's jobs: by id while ranks may join, by index while on the data plane, and the latest that have ended."""

from __future__ import annotations

from collections import deque
from itertools import chain

from fanin.protocol.control import JOIN_INTERVAL_S, Join, Leave, Regroup, Spent
from fanin.protocol.own_stops import OwnStops
from fanin.switch.controller.jobs import Job, JobId, State

LINGER_S = 1.0
"""How long an ended job stays on the data plane, so that a retransmitted BYE is still echoed."""
MAX_EPITAPHS = 256
"""Ended jobs that are remembered, to explain their end to ranks that ask."""


class JobTable:
    """All jobs of a switch. The code that changes a job's state enters it here and takes it out again."""

    def __init__(self) -> None:
        self.open: dict[JobId, Job] = {}
        """Jobs that ranks may find by their id: forming, starting or running."""
        self.placed: dict[int, Job] = {}
        """Jobs on the data plane, by index."""
        self._ended: deque[Job] = deque(maxlen=MAX_EPITAPHS)
        self._stops = OwnStops(JOIN_INTERVAL_S)

    @property
    def forming(self) -> list[Job]:
        """Jobs that are not on the data plane yet."""
        return [job for job in self.open.values() if job.spec is None]

    def all(self) -> list[Job]:
        """Every job, each once."""
        return [*self.placed.values(), *self.forming]

    @property
    def live(self) -> int:
        """Number of jobs in which a worker still takes part, or for which one waits."""
        return len(self.forming) + sum(job.state is not State.ENDED for job in self.placed.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the switch's memory that the jobs on the data plane hold."""
        return sum(job.memory_bytes for job in self.placed.values())

    def find(self, job_id: JobId, generation: int) -> Job | None:
        """The job of that id and generation on the data plane, or among the last MAX_EPITAPHS ended ones; else None."""
        for job in chain(self.placed.values(), self._ended):
            if job.spec is not None and (job.job_id, job.spec.generation) == (job_id, generation):
                return job
        return None

    def job_of(self, said: Join | Leave | Regroup | Spent, key: str) -> Job | None:
        """The job in which the process that sent this message, with that key, already has its rank; None if in none."""
        job_id = (said.job, key)
        open_job = self.open.get(job_id)
        for job in [*([] if open_job is None else [open_job]), *self.placed.values()]:
            member = job.members.get(said.rank)
            if job.job_id == job_id and member is not None and member.join.nonce == said.nonce:
                return job
        return None

    def successor_of(self, job: str, key: str) -> Job | None:
        """The job on the data plane that succeeds the job of that name; None without one."""
        for other in self.placed.values():
            succeeds = other.first.succeeds
            if succeeds is not None and (succeeds.job, other.key) == (job, key) and other.state is not State.ENDED:
                return other
        return None

    def end(self, job: Job, now: float) -> None:
        """Keep an ended job on the data plane for LINGER_S, for its last packets, and remember it for `find`."""
        job.forget_s = now + LINGER_S
        self._ended.append(job)

    def forgettable(self, now: float) -> list[Job]:
        """Ended jobs that have lingered long enough."""
        return [job for job in self.placed.values() if job.state is State.ENDED and now >= job.forget_s]

    def turn(self, now: float) -> float:
        """Begin a turn: if the controller's process was stopped (SIGSTOP), extend leases and deadlines by that time.

        Returns for how many seconds it was stopped, mostly 0.
        """
        stopped_s = self._stops.turn(now)
        if stopped_s:
            for job in self.open.values():
                job.was_stopped(stopped_s)
        return stopped_s

    def next_timer(self) -> float | None:
        """Next time at which a job can be forgotten, a deadline passes, or a waiting rank lapses; None without any."""
        leases: list[float] = []
        times = [job.forget_s for job in self.placed.values() if job.state is State.ENDED]
        for job in self.open.values():
            waiting = job.arriving if job.state is State.RUNNING else job.members
            leases.extend(job.members[rank].lapses_s for rank in waiting if not job.members[rank].gone)
            if job.state is not State.RUNNING:
                times.append(job.deadline_s)
        if leases and self._stops.due_at is not None:
            leases.append(self._stops.due_at)  # early enough to notice stops of the controller itself
        return min(times + leases, default=None)
