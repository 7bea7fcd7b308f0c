"""A controller's record of a job, and the states that every job passes, however its ranks are attached to the switch.

`LIFE` is the table that lifecycle.py reads: for each state, its triggers, the next state, and the announcement to the
ranks. docs/control.md has the same table in words. Jobs differ in the *attachment* of their ranks: directly to this
switch (direct.py), to leaves of this switch (trees.py), or to this switch as a leaf (leaf.py). To the data plane a job
has *workers*: its ranks, or, at the root of a tree, its leaves.

A job is known by its name and by the key that its ranks speak with (fanin/protocol/seal.py): the same name under
another key is another job. The id of an ENDING or ENDED job is free: a restarted run need not wait for its dead
predecessor.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from fanin.protocol.control import (
    JOIN_LEASE_S,
    Explanation,
    Join,
    Refused,
    Regroup,
    Regrouped,
    Reply,
    Scheme,
    Spending,
    Started,
    Waiting,
    one_line,
)
from fanin.protocol.job import SUSPICION_TIMEOUT_S, JobSpec
from fanin.protocol.tag_algorithm import TagAlgorithm
from fanin.switch.controller.admission import judge_unlike_tags, tag_of
from fanin.switch.controller.data_plane import DataPlane

JobId = tuple[str, str]
"""Id of a job at a switch: its name, and the fingerprint of its ranks' key."""


@dataclass(frozen=True, slots=True)
class Tagging:
    """Key and algorithm of the keyed tags in a job's packets."""

    control_key: bytes = field(repr=False)
    """The key of the job's control messages, from which the key of its tags is derived."""
    algorithm: TagAlgorithm


class State(enum.Enum):
    """State of a job in its life."""

    FORMING = "forming"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    FORGOTTEN = "forgotten"


class Trigger(enum.Enum):
    """Trigger of a transition of a job."""

    COMPLETE = "every rank has asked, and there is room on the data plane"
    REFUSED = "a rank is refused, or all of them: a bad shape, or no memory"
    LATE = "the first deadline of its ranks passes"
    DESERTED = "no rank waits any more"
    READY = "every worker is registered on the data plane"
    GONE = "a worker is lost or leaves, a rank gives up, or one that waits falls silent or is too late"
    SPARED = 'the same, in a job with on_worker_loss="continue" that runs, or that another one goes on as'
    EMPTY = "no worker is left"
    DUE = "LINGER_S have passed, or another job needs the memory"


class Announcement(enum.Enum):
    """Message to the ranks when their job changes its state."""

    NOTHING = "nothing here: the data plane tells them"
    STANDING = "how far the job is"
    REFUSAL = "why not"


LIFE: dict[State, dict[Trigger, tuple[State, Announcement]]] = {
    State.FORMING: {
        Trigger.COMPLETE: (State.STARTING, Announcement.STANDING),
        Trigger.REFUSED: (State.FORGOTTEN, Announcement.REFUSAL),
        Trigger.LATE: (State.FORGOTTEN, Announcement.REFUSAL),
        Trigger.DESERTED: (State.FORGOTTEN, Announcement.NOTHING),
    },
    State.STARTING: {
        Trigger.READY: (State.RUNNING, Announcement.STANDING),
        Trigger.GONE: (State.ENDED, Announcement.REFUSAL),
        Trigger.SPARED: (State.STARTING, Announcement.NOTHING),
        Trigger.EMPTY: (State.ENDED, Announcement.NOTHING),
        Trigger.DESERTED: (State.ENDED, Announcement.NOTHING),
    },
    State.RUNNING: {
        Trigger.SPARED: (State.RUNNING, Announcement.NOTHING),
        Trigger.GONE: (State.ENDING, Announcement.NOTHING),
        Trigger.EMPTY: (State.ENDED, Announcement.NOTHING),
        Trigger.DESERTED: (State.ENDED, Announcement.NOTHING),
    },
    State.ENDING: {
        Trigger.GONE: (State.ENDING, Announcement.NOTHING),
        Trigger.EMPTY: (State.ENDED, Announcement.NOTHING),
    },
    State.ENDED: {
        Trigger.GONE: (State.ENDED, Announcement.NOTHING),
        Trigger.DUE: (State.FORGOTTEN, Announcement.NOTHING),
    },
}
"""By state: its triggers, the next state, and the announcement to the ranks. No other trigger can happen in it."""
OPEN = frozenset((State.FORMING, State.STARTING, State.RUNNING))
"""States in which no other job can have the same id."""


@dataclass(slots=True)
class ReplyTo:
    """The receiver of replies for a rank: its own process, or its leaf."""

    peer: bytes
    leaf: str = ""
    """Identity of the leaf's process; empty for a rank itself."""
    address: str = ""
    """Address of the leaf, for messages to people."""


@dataclass(slots=True)
class Member:
    """One rank that has joined."""

    join: Join
    renewed_s: float
    """Time of its latest Join."""
    reply_to: ReplyTo
    since_s: float
    """Time of its first Join."""
    spending: Spending | None = None
    """The rank's last account of its time."""
    gone: str = ""
    """How the rank left, in words, once it has sent Leave or fallen silent; empty before. BYE may never come."""
    lost: bool = False
    """Whether the other ranks miss it: it is lost, or gave up before any other was missed. A rank that gives up because
    another is missed has merely left, and `explanation` must not name it as the cause."""

    def hung_up(self, now: float) -> None:
        """Shorten the lease, because the rank's connection is closed: it lapses soon unless another Join comes."""
        # R-JOB-3: sooner than by silence alone, and late enough for a rank that has only lost its connection.
        self.renewed_s = min(self.renewed_s, now + SUSPICION_TIMEOUT_S - JOIN_LEASE_S)

    @property
    def lapses_s(self) -> float:
        """Time after which the rank no longer counts as waiting, unless it sends Join again."""
        return self.renewed_s + JOIN_LEASE_S


@dataclass(slots=True, kw_only=True)
class Job:
    """One job, from its first Join until it is forgotten. Bit w of a mask stands for worker w; times are in seconds."""

    name: str
    """The job's name among its ranks."""
    key: str
    """Fingerprint of the key with which its ranks seal their messages."""
    control_key: bytes = field(default=b"", repr=False)
    """The job's control key; empty if it is the open key, which everybody has."""
    source: str
    """Address of the rank that asked first; the job's memory counts against the quota of this address."""
    attachment: Attachment
    plane: DataPlane
    """The data plane that runs the job, or will run it."""
    first: Join
    """The Join of the rank that has waited longest; the others must agree with it."""
    opened_s: float
    deadline_s: float = math.inf
    """Deadline for forming, then, once placed, for starting."""
    state: State = State.FORMING
    members: dict[int, Member] = field(default_factory=dict)
    """Members of the job, by rank."""
    spec: JobSpec | None = None
    """Specification of the job, once it is on the data plane, with the current K and S."""
    workers: tuple[tuple[int, ...], ...] = ()
    """The ranks behind each worker, once it is on the data plane."""
    placed_s: float = 0.0
    """When the job was put on the data plane."""
    memory_bytes: int = 0
    """Switch memory that it holds, over all flows, rings included."""
    ring_bytes: int = 0
    """The part of `memory_bytes` in rings of shared memory; 0 without rings."""
    wanted_ring_bytes: int = 0
    """Ring memory that the job asked for. If that was not available, the job has no rings and uses sockets."""
    registered: int = 0
    lost: int = 0
    left: int = 0
    epitaph: str = ""
    """The failure, or without one the departure, that describes the job's end, in words; empty before the first."""
    gave_up: str = ""
    """Reason for which a rank gave up, as in Explanation.gave_up."""
    forget_s: float = 0.0
    """When an ended job is removed from the data plane."""
    excused: frozenset[int] = frozenset()
    """Ranks that the forming job does not wait for: they were lost in the job that it succeeds."""
    regrouping: dict[int, Regroup] = field(default_factory=dict)
    """The ranks' reports on lost shards, by rank (regroup.py)."""
    regrouped: Regrouped | None = None
    """The decision on these reports."""

    @property
    def joins(self) -> list[Join]:
        """The Joins of its members."""
        return [member.join for member in self.members.values()]

    @property
    def tagging(self) -> Tagging | None:
        """Key and algorithm of the tags in the job's packets; None without tags."""
        algorithm = tag_of(self.joins, open_job=not self.control_key, able=self.plane.tags)
        return None if algorithm is None else Tagging(self.control_key, algorithm)

    @property
    def job_id(self) -> JobId:
        """The job's id at this switch."""
        return self.name, self.key

    @property
    def full(self) -> int:
        """Mask of all workers."""
        return (1 << len(self.workers)) - 1

    @property
    def survives_loss(self) -> bool:
        """Whether the job continues without a rank that is lost or has left. Once it is placed, its spec decides."""
        return self.first.on_worker_loss == "continue" if self.spec is None else self.spec.survives_loss

    def worker_of(self, rank: int) -> int | None:
        """The worker behind which the rank is; None if the rank is not part of the job at this switch."""
        return next((worker for worker, ranks in enumerate(self.workers) if rank in ranks), None)

    def ranks_at(self, workers: int) -> tuple[int, ...]:
        """The ranks behind the workers whose bits are set."""
        return tuple(sorted(rank for worker in bits(workers) for rank in self.workers[worker]))

    @property
    def departed(self) -> int:
        """Mask of the workers that are gone: lost, left, or with no rank that is still in the job."""
        deserted = (all(self._is_gone(rank) for rank in ranks) for ranks in self.workers)
        return self.lost | self.left | sum(gone << worker for worker, gone in enumerate(deserted))

    def _is_gone(self, rank: int) -> bool:
        return rank not in self.members or bool(self.members[rank].gone)

    def is_without(self, rank: int) -> bool:
        """Whether the rank has a worker on the data plane, and that worker is lost or has left."""
        worker = self.worker_of(rank)
        return worker is not None and bool(self.departed >> worker & 1)

    def place_is_free(self, rank: int) -> bool:
        """Whether a new process may join the running job as `rank`."""
        # R-JOB-8
        return self.state is State.RUNNING and self.survives_loss and self.is_without(rank)

    @property
    def arriving(self) -> tuple[int, ...]:
        """Newcomers of a running job that have not reached the data path yet."""
        if self.state is not State.RUNNING or not self.survives_loss:
            return ()
        return self.ranks_at(self.full & ~self.registered & ~self.departed)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not asked yet, or, once all have, whose worker is not on the data path yet."""
        if self.spec is None:  # R-JOB-11: a successor does not wait for ranks that its predecessor has lost
            here = self.excused.union(self.members)
            return tuple(rank for rank in range(self.first.size) if rank not in here)
        return self.ranks_at(self.full & ~self.registered & ~self.departed)

    def lapsed(self, now: float) -> list[int]:
        """Members whose lease has run out: they have not renewed their Join in time."""
        return [rank for rank, member in self.members.items() if not member.gone and now >= member.lapses_s]

    def was_stopped(self, seconds: float) -> None:
        """Extend the deadline and all leases: for so long the controller was stopped and could hear no Join."""
        # R-MEMBER-8
        self.deadline_s += seconds
        for member in self.members.values():
            member.renewed_s += seconds

    @property
    def lost_ranks(self) -> set[int]:
        """Ranks that the others miss: lost members, and all ranks behind a lost worker."""
        return {rank for rank, member in self.members.items() if member.lost} | set(self.ranks_at(self.lost))

    def explanation(self) -> Explanation:
        """The outcome of the job, for ranks that ask."""
        because = f": {self.epitaph}" if self.epitaph else ""
        state = State.ENDED if self.state is State.FORGOTTEN else self.state
        text = one_line(f"job {self.name!r} is {state.value}{because}")
        lost = self.lost_ranks
        left = {rank for rank, member in self.members.items() if member.gone} | set(self.ranks_at(self.left))
        return Explanation(
            known=True, text=text, lost=tuple(sorted(lost)), left=tuple(sorted(left - lost)), gave_up=self.gave_up
        )


class Attachment(ABC):
    """The way in which a job's ranks reach a switch, with all steps of the job's life that depend on it.

    Methods that are not abstract are right for ranks that reach a switch of their own.
    """

    tree: ClassVar[bool]
    """Whether the job's ranks are at several switches."""
    decides: ClassVar[bool] = True
    """Whether this switch decides when the job starts; otherwise its parent does."""

    @abstractmethod
    def judge(self, join: Join) -> Refused | None:
        """The objection to a rank that holds whatever the job's other ranks are; None without one."""

    def judge_all(self, job: Job) -> Refused | None:
        """The objection to all ranks together, as when they share no tag algorithm; None without one."""
        return judge_unlike_tags(job.joins, able=job.plane.tags)

    @abstractmethod
    def workers(self, job: Job) -> tuple[tuple[int, ...], ...]:
        """The ranks behind each worker."""

    @abstractmethod
    def spec(self, job: Job) -> JobSpec:
        """Specification of the job for the data plane. ConfigurationError for a shape that no job can have."""

    def admit(self, job: Job, spec: JobSpec, *, share_memory: bool) -> None:
        """Admit the job to the data plane; `share_memory`: with rings of shared memory, if it can.

        AdmissionError for lack of memory, ConfigurationError for a shape that this switch does not support.
        """
        job.plane.server.admit(spec, share_memory=share_memory)

    @abstractmethod
    def plane(self, scheme: Scheme) -> DataPlane:
        """The data plane of jobs whose ranks use that scheme."""

    def reply_for(self, job: str, rank: int, reply: Waiting | Started | Refused) -> Reply:
        """The message that carries `reply` to the rank: the reply itself, or Relayed for its leaf."""
        return reply

    @abstractmethod
    def admitted(self, job: Job, spec: JobSpec, rank: int) -> Reply:
        """The message that tells the rank how to reach the data path, itself or through its leaf."""

    def started(self, job: Job) -> Started:
        """The message that names all processes of the job."""
        members = map(job.members.get, range(job.first.size))
        processes = tuple("" if member is None else member.join.process for member in members)
        return Started(job=job.name, processes=processes)

    def worker_name(self, job: Job, worker: int) -> str:
        """The worker's name in messages to people: its rank."""
        return f"rank {job.workers[worker][0]}"

    def report_departure(self, job: Job, ranks: tuple[int, ...], how: str, lost: bool) -> None:
        """Tell other switches of the job, if they need it, that these ranks are lost or have left without Leave."""
        return  # there are none, or the data plane tells them


def bits(mask: int) -> Iterator[int]:
    """Positions of the bits that are set, in ascending order."""
    return (place for place in range(mask.bit_length()) if mask >> place & 1)
