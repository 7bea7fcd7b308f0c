"""A controller's jobs: by name while ranks may join, by index while on the data plane, then as epitaphs."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from fanin.protocol.control import JOIN_INTERVAL_S, Explanation, Join, Leave
from fanin.protocol.own_stops import OwnStops
from fanin.switch.controller.jobs import Job, State, Title

LINGER_S = 1.0
"""How long an ended job stays on the data plane, so that a BYE that is sent again still finds its echo."""
MAX_EPITAPHS = 256
"""Ended jobs whose end can be explained."""

J = TypeVar("J", bound=Job[Any])


class JobTable(Generic[J]):
    """Jobs of one kind. Whoever moves a job from one state to the next enters it here and takes it out again."""

    def __init__(self) -> None:
        self.open: dict[Title, J] = {}
        """Jobs whose title is in use."""
        self.placed: dict[int, J] = {}
        """Jobs on the data plane, by index."""
        self._epitaphs: deque[tuple[Title, int, Explanation]] = deque(maxlen=MAX_EPITAPHS)
        self._stops = OwnStops(JOIN_INTERVAL_S)

    @property
    def forming(self) -> list[J]:
        """Jobs that are not on the data plane yet."""
        return [job for job in self.open.values() if job.spec is None]

    @property
    def live(self) -> int:
        """How many jobs some worker still takes part in, or waits for."""
        return len(self.forming) + sum(job.state is not State.ENDED for job in self.placed.values())

    @property
    def memory_bytes(self) -> int:
        """What the jobs on the data plane hold of the switch's memory."""
        return sum(job.memory_bytes for job in self.placed.values())

    def find(self, title: Title, generation: int) -> J | None:
        """The job on the data plane that bears both."""
        for job in self.placed.values():
            if job.spec is not None and (job.title, job.spec.generation) == (title, generation):
                return job
        return None

    def job_of(self, said: Join | Leave, key: str) -> J | None:
        """The job in which the process that says this, with that key, has its rank already."""
        title = (said.job, key)
        open_job = self.open.get(title)
        for job in [*([] if open_job is None else [open_job]), *self.placed.values()]:
            member = job.members.get(said.rank)
            if job.title == title and member is not None and member.join.nonce == said.nonce:
                return job
        return None

    def drop(self, job: J, rank: int) -> None:
        """A rank no longer waits for a job, which is forgotten when nobody does."""
        del job.members[rank]
        if not job.members:
            del self.open[job.title]

    def end(self, job: J, now: float) -> None:
        """Nobody needs the job any more; its last packets may still be on their way."""
        job.state, job.forget_s = State.ENDED, now + LINGER_S

    def bury(self, job: J, explanation: Explanation) -> None:
        """Keep what became of a job that has ended."""
        assert job.spec is not None
        self._epitaphs.append((job.title, job.spec.generation, explanation))

    def epitaph(self, title: Title, generation: int) -> Explanation | None:
        """What became of a job that is gone; None when it was never here, or long ago."""
        for known, number, explanation in self._epitaphs:
            if (known, number) == (title, generation):
                return explanation
        return None

    def forgettable(self, now: float) -> list[J]:
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

    def timers(self) -> list[float]:
        """When jobs become forgettable, and when ranks of those that form or start have been silent for too long."""
        times = [job.forget_s for job in self.placed.values() if job.state is State.ENDED]
        waiting = [job for job in self.open.values() if job.state in (State.FORMING, State.STARTING)]
        return times + self.leases([member.lapses_s for job in waiting for member in job.members.values()])

    def leases(self, lapses_s: list[float]) -> list[float]:
        """These times, and, if there are any, one that is early enough to notice stops of the controller itself."""
        return [*lapses_s, self._stops.due_at] if lapses_s and self._stops.due_at is not None else lapses_s
