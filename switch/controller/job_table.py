"""A controller's jobs: by name while ranks may join, by index while on the data plane, then as what has ended."""

from __future__ import annotations

from collections import deque
from itertools import chain

from fanin.protocol.control import JOIN_INTERVAL_S, Join, Leave, Regroup, Spent
from fanin.protocol.own_stops import OwnStops
from fanin.switch.controller.jobs import Job, JobId, State

LINGER_S = 1.0
"""How long an ended job stays on the data plane, so that a BYE that is sent again still finds its echo."""
MAX_EPITAPHS = 256
"""Ended jobs whose end can be explained."""


class JobTable:
    """All jobs of a switch. The code that changes a job's state enters it here and takes it out again."""

    def __init__(self) -> None:
        self.open: dict[JobId, Job] = {}
        """Jobs whose id is in use."""
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
        """How many jobs some worker still takes part in, or waits for."""
        return len(self.forming) + sum(job.state is not State.ENDED for job in self.placed.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the switch's memory that the jobs on the data plane hold."""
        return sum(job.memory_bytes for job in self.placed.values())

    def find(self, job_id: JobId, generation: int) -> Job | None:
        """The job that bears both and is on the data plane, or has been, not too long ago."""
        for job in chain(self.placed.values(), self._ended):
            if job.spec is not None and (job.job_id, job.spec.generation) == (job_id, generation):
                return job
        return None

    def job_of(self, said: Join | Leave | Regroup | Spent, key: str) -> Job | None:
        """The job in which the process that says this, with that key, has its rank already."""
        job_id = (said.job, key)
        open_job = self.open.get(job_id)
        for job in [*([] if open_job is None else [open_job]), *self.placed.values()]:
            member = job.members.get(said.rank)
            if job.job_id == job_id and member is not None and member.join.nonce == said.nonce:
                return job
        return None

    def successor_of(self, job: str, key: str) -> Job | None:
        """The job on the data plane that the one of that name goes on as."""
        for other in self.placed.values():
            succeeds = other.first.succeeds
            if succeeds is not None and (succeeds.job, other.key) == (job, key) and other.state is not State.ENDED:
                return other
        return None

    def end(self, job: Job, now: float) -> None:
        """Nobody needs the job any more; its last packets may still be on their way, and its end may be asked for."""
        job.forget_s = now + LINGER_S
        self._ended.append(job)

    def forgettable(self, now: float) -> list[Job]:
        """Ended jobs that have lingered long enough."""
        return [job for job in self.placed.values() if job.state is State.ENDED and now >= job.forget_s]

    def turn(self, now: float) -> float:
        """At the beginning of each turn of the controller: leases are as much longer as it was stopped before it.

        Returns for how many seconds that was, mostly 0.
        """
        stopped_s = self._stops.turn(now)
        if stopped_s:
            for job in self.open.values():
                job.was_stopped(stopped_s)
        return stopped_s

    def next_timer(self) -> float | None:
        """When a job becomes forgettable, when its time to form or start is over, or a rank that waits lapses."""
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
