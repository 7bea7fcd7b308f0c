"""Events that the machines report to their driver: `next_event()` returns one of these, or None."""

from __future__ import annotations

from dataclasses import dataclass

from fanin.protocol.wire import Reason


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """Switch: a worker's address is registered for the first time."""

    job: int
    worker: int


@dataclass(frozen=True, slots=True)
class WorkerSilent:
    """Switch: nothing came from a worker for the job's liveness timeout; it counts as lost."""

    job: int
    worker: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """Switch: a worker said BYE."""

    job: int
    worker: int


@dataclass(frozen=True, slots=True)
class BranchNarrowed:
    """Leaf: its path to the parent has become narrower, as in PathNarrowed; the job's workers are told BRANCH_LOST."""

    job: int
    needed_bytes: int
    passes_bytes: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker: the switch answered the first HELLO; the data path works both ways at full packet length."""


@dataclass(frozen=True, slots=True)
class ReductionDone:
    """Worker: every chunk's result is in the destination."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Worker: an element that some worker contributed was NaN or infinite, and has made a block of a sum NaN.

    Reported before ReductionDone, by each flow for each worker: the first such element that is known, and an earlier
    one if that becomes known later.
    """

    ticket: int
    place: int
    """Number of the worker that contributed it, among all of the job (JobSpec.places)."""
    first: int
    """The element is one of [first, first + count) of the reduction."""
    count: int


@dataclass(frozen=True, slots=True)
class RoundHeard:
    """Worker: round `base` was closed in every slot, and nothing was submitted for it yet. In order, with gaps."""

    base: int


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """Worker, in a job that survives losses: who takes part from here on. Each change is reported once, in order."""

    change: int
    """Number of this change of the job: 1, 2, ...; a change that the next one overtakes is not reported by itself."""
    members: int
    """Bit mask of the workers that rounds wait for."""
    gone: int
    """Bitmap of workers that are no members any more: lost, or left."""
    come: int
    """Bitmap of new members."""
    base: int
    """The base of this worker's oldest unfinished item: rounds from about here on have the new members. Exactly who is
    in a round, its result says."""


@dataclass(frozen=True, slots=True)
class Stands:
    """Worker that came into a running job: the earliest base at which its reductions can begin; see `begin`."""

    base: int


@dataclass(frozen=True, slots=True)
class WorkersGone:
    """Worker: bit masks of peers that are lost (silent) or left (said BYE) while this one needs them."""

    lost: int
    left: int


@dataclass(frozen=True, slots=True)
class SwitchSilent:
    """Worker: nothing came from the switch for the liveness timeout."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class PathNarrowed:
    """Worker: for the liveness timeout no packet of `needed_bytes` passed, there and back, while shorter ones did."""

    needed_bytes: int
    """Length in bytes of the UDP payload that the oldest unfinished item takes."""
    passes_bytes: int
    """The longest that is known to pass."""


@dataclass(frozen=True, slots=True)
class PacketRefused:
    """Worker: the switch refused a packet for a reason that sending again will not cure."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Departed:
    """Worker: this worker has left its job. `confirmed` is False when the switch did not echo BYE in time."""

    confirmed: bool = True


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """Worker: the engine itself gave up, for no fault of the network (a broken transport, a bug); `text` says why."""

    text: str


SwitchEvent = WorkerJoined | WorkerSilent | WorkerLeft | BranchNarrowed
WorkerEvent = (
    Ready
    | MembersChanged
    | Stands
    | ReductionDone
    | Spoiled
    | RoundHeard
    | WorkersGone
    | SwitchSilent
    | PathNarrowed
    | PacketRefused
    | Departed
    | EngineStopped
)
