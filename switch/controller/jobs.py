"""What a controller remembers of a job, and the states a job goes through.

`Job` is what every job has, wherever its ranks are. `DirectJob` is one whose ranks come to this switch themselves; one
whose ranks are at leaves is switch/controller/trees.py's, and a leaf's part of one switch/controller/leaf.py's.

States of a DirectJob, what moves it on, and what its ranks are told:

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

A job is known by its name and by the key that its ranks speak with (fanin/protocol/seal.py): the same name under
another key is another job. The title of an ENDING or ENDED job is free: a restarted run need not wait for its dead
predecessor.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, TypeVar

from fanin.protocol.control import JOIN_LEASE_S, Explanation, Join, one_line
from fanin.protocol.job import SUSPICION_TIMEOUT_S, JobSpec

Title = tuple[str, str]
"""How a job is known: its name, and the fingerprint of its ranks' key."""


class State(enum.Enum):
    """Where a job is in its life: see the table above."""

    FORMING = "forming"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True)
class Applicant:
    """One rank that has joined."""

    join: Join
    renewed_s: float
    """When it last said so."""

    def hung_up(self, now: float) -> None:
        """Its connection is closed: unless it asks again over another one, it does not wait for long."""
        self.renewed_s = min(self.renewed_s, now + SUSPICION_TIMEOUT_S - JOIN_LEASE_S)

    @property
    def lapses_s(self) -> float:
        """When it no longer counts as waiting, unless it says Join again."""
        return self.renewed_s + JOIN_LEASE_S


A = TypeVar("A", bound=Applicant)


@dataclass(slots=True)
class Job(Generic[A]):
    """One job, from the first rank that asks for it to the last that is gone. Masks are over the spec's workers."""

    name: str
    """What its workers call it."""
    _: KW_ONLY
    key: str = ""
    """Fingerprint of the key that they speak with."""
    source: str = ""
    """Address of the rank that asked first, on whose account its memory goes."""
    state: State = State.FORMING
    members: dict[int, A] = field(default_factory=dict)
    """By rank."""
    spec: JobSpec | None = None
    """What the switch holds it to, once it is on the data plane; its K and S are those in force."""
    memory_bytes: int = 0
    """What it holds of the switch's memory, over all flows, rings included."""
    ring_bytes: int = 0
    """What its rings in shared memory hold of it; 0 where it has none."""
    wanted_ring_bytes: int = 0
    """The same, or more than was free when it was admitted: then it has none, and goes through sockets."""
    registered: int = 0
    lost: int = 0
    left: int = 0
    forget_s: float = 0.0
    """When it goes off the data plane, once it has ended."""

    def was_stopped(self, seconds: float) -> None:
        """The controller itself was stopped for so long: nobody could renew a Join meanwhile."""
        for member in self.members.values():
            member.renewed_s += seconds

    @property
    def title(self) -> Title:
        """How it is known."""
        return self.name, self.key

    def lapsed(self, now: float) -> list[int]:
        """Ranks that waited, and have been silent for too long."""
        return [rank for rank, member in self.members.items() if now >= member.lapses_s]


@dataclass(slots=True)
class Member(Applicant):
    """A rank that came to this switch itself."""

    peer: bytes
    """Where the answers go."""
    departed: bool = False
    """It said Leave on the control channel, so BYE may never come."""


@dataclass(slots=True)
class DirectJob(Job[Member]):
    """One job whose ranks come to this switch themselves: its workers are its ranks."""

    first: Join
    """Of the rank that has waited longest: what the others must agree with."""
    opened_s: float
    deadline_s: float
    """When it must have formed, and, after that, started."""
    placed_s: float = 0.0
    """When it was put on the data plane."""
    epitaph: str = ""
    """What first went wrong, or, if nothing did, who left first."""

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

    def explanation(self) -> Explanation:
        """What became of it."""
        because = f": {self.epitaph}" if self.epitaph else ""
        text = one_line(f"job {self.name!r} is {self.state.value}{because}")
        return Explanation(known=True, text=text, lost=tuple(ranks_of(self.lost)), left=tuple(ranks_of(self.left)))


def ranks_of(mask: int) -> Iterator[int]:
    """The ranks whose bits are set."""
    return (rank for rank in range(mask.bit_length()) if mask >> rank & 1)
