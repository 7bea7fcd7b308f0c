"""What the controller remembers of a job, and the states a job goes through.

States of a job, what moves it on, and what its ranks are told:

    state      | leaves it when                      | next      | told
    -----------+-------------------------------------+-----------+--------------------------------------------
    FORMING    | all N ranks have asked              | STARTING  | Admitted (shape, token, ports)
               | memory is out                       | forgotten | Refused(memory)
               | the first deadline passes           | forgotten | Refused(join-timeout, missing ranks)
               | a rank is silent for JOIN_LEASE_S   | FORMING   | (it is missing again)
               | the last waiting rank leaves        | forgotten |
    STARTING   | every rank is registered            | RUNNING   | Started
               | a rank leaves, or is silent         | ENDED     | Refused(member-lost, that rank)
    RUNNING    | a rank is lost or leaves            | ENDING    | (the data plane tells them)
               | the same, on_worker_loss="continue" | RUNNING   | (evicted; the data plane tells the others)
               | ... and it was the last one         | ENDED     |
               | a rank asks whose place is free so  | RUNNING   | Admitted (running); once on the data path, Started
    ENDING     | every rank is lost or has left      | ENDED     |
    ENDED      | LINGER_S later                      | forgotten | Explanation, to who asks

The name of an ENDING or ENDED job is free: a restarted run need not wait for its dead predecessor.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from fanin.control import Explanation, JobReport, Join, MemberReport, one_line
from fanin.job import JobSpec


class State(enum.Enum):
    """Where a job is in its life: see the table above."""

    FORMING = "forming"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True)
class Member:
    """One rank that has joined."""

    join: Join
    peer: bytes
    """Where the answers go."""
    renewed_s: float
    departed: bool = False
    """It said Leave on the control channel, so BYE may never come."""


@dataclass(slots=True)
class Job:
    """One job, from the first rank that asks for it to the last that is gone."""

    first: Join
    """Of the rank that has waited longest: what the others must agree with."""
    opened_s: float
    deadline_s: float
    """When it must have formed, and, after that, started."""
    state: State = State.FORMING
    members: dict[int, Member] = field(default_factory=dict)
    spec: JobSpec | None = None
    """What the switch holds it to; its K and S are those in force."""
    memory_bytes: int = 0
    """What it holds of the switch's memory, over all flows."""
    registered: int = 0
    lost: int = 0
    left: int = 0
    epitaph: str = ""
    """What first went wrong, or, if nothing did, who left first."""
    forget_s: float = 0.0
    """When it goes off the data plane, once it has ended."""

    @property
    def name(self) -> str:
        """What its workers call it."""
        return self.first.job

    @property
    def departed(self) -> int:
        """Mask of the ranks that need it no more."""
        leavers = sum(1 << rank for rank, member in self.members.items() if member.departed)
        return self.lost | self.left | leavers

    @property
    def survives_loss(self) -> bool:
        """Whether it goes on without a rank that is lost or has left."""
        return self.first.on_worker_loss == "continue"

    def place_is_free(self, rank: int) -> bool:
        """Whether a new process may come in as `rank` while the job runs."""
        return self.state is State.RUNNING and self.survives_loss and bool(self.departed >> rank & 1)

    @property
    def arriving(self) -> tuple[int, ...]:
        """Ranks that come into the running job, and have not reached the data path."""
        if self.spec is None or self.state is not State.RUNNING:
            return ()
        return tuple(ranks_of(self.spec.full_mask & ~self.registered & ~self.departed))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not asked yet, or, once all have, whose data path is not open yet."""
        if self.spec is None:
            return tuple(rank for rank in range(self.first.size) if rank not in self.members)
        return tuple(ranks_of(self.spec.full_mask & ~self.registered))


def largest_staleness(join: Join) -> int:
    """The S that a worker wants its job to be able to reach."""
    return join.staleness if join.max_staleness is None else join.max_staleness


def ranks_of(mask: int) -> Iterator[int]:
    """The ranks whose bits are set."""
    return (rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def explanation_of(job: Job) -> Explanation:
    """What became of a job that is, or was, on the data plane."""
    because = f": {job.epitaph}" if job.epitaph else ""
    text = one_line(f"job {job.name!r} is {job.state.value}{because}")
    return Explanation(known=True, text=text, lost=tuple(ranks_of(job.lost)), left=tuple(ranks_of(job.left)))


def report(job: Job, now: float, flows: int, counters: dict[str, int]) -> JobReport:
    """What `fanin stats` shows of a job."""
    spec = job.spec
    return JobReport(
        name=job.name,
        state=job.state.value,
        index=spec.job if spec else None,
        generation=spec.generation if spec else None,
        scheme=job.first.scheme,
        size=job.first.size,
        quorum=spec.quorum if spec else job.first.quorum or job.first.size,
        staleness=spec.staleness if spec else job.first.staleness,
        on_worker_loss=job.first.on_worker_loss,
        max_staleness=spec.largest_staleness if spec else largest_staleness(job.first),
        slots=spec.slots if spec else 0,
        words_per_packet=spec.words_per_packet if spec else 0,
        flows=flows,
        memory_bytes=job.memory_bytes,
        age_s=now - job.opened_s,
        members=tuple(_report_member(job, rank) for rank in range(job.first.size)),
        counters=counters,
    )


def _report_member(job: Job, rank: int) -> MemberReport:
    member = job.members.get(rank)
    if member is None:
        return MemberReport(rank=rank, process="", state="missing")
    if job.lost >> rank & 1:
        state = "lost"
    elif job.departed >> rank & 1:
        state = "left"
    elif job.registered >> rank & 1:
        state = "registered"
    else:
        state = "waiting" if job.spec is None else "joined"
    return MemberReport(rank=rank, process=member.join.process, state=state)
