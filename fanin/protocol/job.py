"""The facts of a job that the controller hands to the switch and to every worker, and nothing else.

Each fact that several records have stands once, in `Agreed`, `Asked`, `AskedRounds`, `JobRounds` or `Shape`. Options,
control messages and JobSpec inherit these classes, and are made of each other by `facts_of`, so that a new fact reaches
all of them (docs/extending.md, *A fact of a job*).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from fanin.bounds import Bounds
from fanin.errors import ConfigurationError
from fanin.protocol import packet_tag, window
from fanin.protocol.seal import DATA_KEY_BYTES
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm
from fanin.protocol.wire import (
    HEADER_BYTES,
    MAX_CODES,
    MAX_DATAGRAM_BYTES,
    MAX_WORKERS,
    WORD_BYTES,
    codes_bytes,
    datagram_bytes,
)

HEARTBEAT_INTERVAL_S = 0.5
"""A worker says HELLO this often, busy or idle, and the switch answers."""
LIVENESS_TIMEOUT_S = 5.0
"""Silence after which a peer counts as gone, where nobody says otherwise: ten heartbeats."""
SWITCH_LIVENESS_TIMEOUT_S = 30.0
"""Silence after which a peer counts as gone in the jobs of a switch that was started without a limit of its own:
docs/errors.md, *How long silence may last*."""
SUSPICION_SETTLES_S = 0.1
"""Time after a suspicion in which packets that the worker had sent before may still arrive, out of queues."""
SUSPICION_TIMEOUT_S = 0.7
"""Silence after which a suspected worker counts as gone: a heartbeat after the above, and 0.1 s for its way."""
HEARTBEATS_TO_SILENCE = 3
"""HELLOs that must stay unanswered, too: a process that was stopped does not take its own sleep for silence."""
LIVENESS_HEARTBEATS = 10
"""Heartbeats per liveness timeout, at least: a short timeout makes them more frequent."""
HELLO_RETRY_S = 0.1
"""How often the first HELLO is repeated until the switch answers."""
LEFT_GRACE_S = 1.0
"""How long a worker still resends towards rounds that a departed peer may have contributed to."""
LEFT_MIN_TIMEOUTS = 3
"""Retransmissions that must stay unanswered within that grace, too: a lost packet is no departed peer."""
BYE_RETRY_S = 0.1
"""How often BYE is repeated until the switch echoes it."""
LEAVE_TIMEOUT_S = 1.0
"""How long BYE is repeated: a leaving worker needs nothing any more, so it does not wait for a dead switch."""
WINDOW_POOLS = 8
"""No item is sent this many pools ahead of the oldest unfinished one: bounds how far slots drift apart. See
`JobSpec.window_items`."""
CACHE_LINE_BYTES = 64
"""The words of a result begin on a cache line of their own, behind its header and codes."""
ENTRY_FACTS_BYTES = 28
"""Bytes that a switch notes about a ring entry beside the result's wire image."""
ARRIVED_BYTES = 8
"""One entry of a slot's arrived ring: tag and bitmap."""
SLOT_BYTES = 16
"""The registers of a slot that are no ring."""
MAX_LANES_PER_WORD = 8
"""Lanes of a word of a result, at most."""
MAX_TREE_WORKERS = 1024
"""Workers of a two-level tree: 32 switches of 32."""
MAX_STALENESS = 1024
MIN_JOIN_TIMEOUT_S, MAX_JOIN_TIMEOUT_S = 0.01, 86_400.0
SWITCH_QUEUE_DATAGRAMS = 4096
"""Most datagrams that a switch machine holds for its driver; further ones are lost, which workers recover from."""
SWITCH_QUEUE_BYTES = 1 << 25
"""Most bytes that a switch machine holds for its driver (a multicast counts once): 32 MiB, 512 of the longest
datagrams."""

OnWorkerLoss = Literal["raise", "continue"]


def facts_of(record: object, *kinds: Any) -> dict[str, Any]:
    """Values that `record` has under the names of the fields of these dataclasses, to make another record with."""
    return {each.name: getattr(record, each.name) for kind in kinds for each in dataclasses.fields(kind)}


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """Facts for which all ranks ask alike, and which the job then has."""

    __slots__ = ()

    on_worker_loss: OnWorkerLoss = "raise"
    """Reaction to a rank that dies or leaves: an error on every other rank, or rounds go on without it, means divide by
    the number of members, and a new process may join in its place. The same on every rank of a job.
    """


@dataclass(frozen=True, kw_only=True)
class Asked(Agreed):
    """Facts for which a rank asks its switch. None leaves the choice to the controller."""

    __slots__ = ()

    slots: Annotated[int | None, Bounds(1, 65536)] = None
    """Window in packets per flow. None: what the smallest socket buffer of the job holds."""
    words_per_packet: Annotated[int | None, Bounds(8, 16352)] = None
    """32-bit words per packet, a multiple of 8. None: what the smallest path MTU of the job carries."""
    authenticate: bool | None = None
    """A keyed tag in every data packet: who sees a job's packets cannot forge any. Wants a secret; the same on every
    rank. None: where packets of a rank leave its machine, unless the switch cannot, or CURVE encrypts them."""
    join_timeout_s: Annotated[float, Bounds(MIN_JOIN_TIMEOUT_S, MAX_JOIN_TIMEOUT_S)] = 120.0
    """Longest wait for the other ranks of the job. Behind torch, no longer than the group's timeout."""


@dataclass(frozen=True, kw_only=True)
class JobRounds:
    """When the rounds of a job close (docs/slot-machine.md)."""

    __slots__ = ()

    quorum: int
    """K, 1..N: arrivals that close a round once the staleness bound allows it. N for synchronous all-reduce."""
    staleness: int
    """S, 0..: rounds by which a contribution may land late. 0 for synchronous all-reduce."""
    max_staleness: int
    """S_max, the largest that the controller may set while the job runs: decides the rings' depth and the lanes."""


@dataclass(frozen=True, kw_only=True)
class AskedRounds:
    """When the rounds of a job are to close, the same on every rank. The default: synchronous all-reduce."""

    __slots__ = ()

    quorum: Annotated[int | None, Bounds(1, MAX_TREE_WORKERS)] = None
    """K: contributions that a round waits for, at most one per rank. May be changed while the job runs."""
    staleness: Annotated[int, Bounds(0, MAX_STALENESS)] = 0
    """S: rounds by which the slowest worker may be behind. May be changed while the job runs."""
    max_staleness: Annotated[int | None, Bounds(0, MAX_STALENESS)] = None
    """S_max, the largest S that may be set, at least S; None: S. Each step costs a ring entry per slot and lane
    room."""

    @property
    def largest_staleness(self) -> int:
        """The largest S that may be set."""
        return largest_staleness(self.staleness, self.max_staleness)

    def settled(self, workers: int) -> dict[str, Any]:
        """The fields of JobRounds, for a job of so many workers."""
        quorum = workers if self.quorum is None else self.quorum
        return facts_of(self, JobRounds) | {"quorum": quorum, "max_staleness": self.largest_staleness}


def largest_staleness(staleness: int, max_staleness: int | None) -> int:
    """S_max, where None stands for S."""
    return staleness if max_staleness is None else max_staleness


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Facts of a job's packets and slots, which the controller chooses."""

    __slots__ = ()

    slots: int
    """Slots of this job at this switch (of this flow, where a job is spread over several)."""
    words_per_packet: int
    """Most 32-bit words in one packet; a multiple of 8."""
    codes_per_packet: int
    """Scale codes in one packet: each covers words_per_packet / codes_per_packet words' worth of elements."""
    checksum: bool
    """Whether packets carry a CRC-32: for paths that have no checksum of their own."""
    accumulators: bool = False
    """Whether the switch keeps an accumulator for each lane, so that lanes keep their bits
    (fanin/numerics/wide_sums.py). Without them it adds whole words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Agreed, JobRounds, Shape):
    """One job on one switch. Frozen and checked: a value that exists is legal."""

    job: int
    """Index of the job at its switch, 0..65535."""
    generation: int
    """32 bits in every packet; differs between any two jobs that could meet in the network."""
    workers: int
    """Number N of workers, 1..32."""
    staleness: int = 0
    max_staleness: int = None  # type: ignore[assignment]  # None becomes S
    codes_per_packet: int = 1
    checksum: bool = False
    tokens: tuple[int, ...]
    """One 64-bit secret per worker; a HELLO without it registers nothing."""
    data_key: bytes = field(default=b"", repr=False)
    """Key of the tag that every packet carries in the checksum's place; empty: none. Engines and servers are given the
    job's key, machines the one of their flow (`for_flow`)."""
    tag: TagAlgorithm = SIPHASH
    """Algorithm of that tag."""
    liveness_timeout_s: float = LIVENESS_TIMEOUT_S
    total_workers: int = 0
    """Workers at all switches of a tree, 1..1024; lanes are sized for them. 0 becomes `workers`: one switch."""
    places: tuple[int, ...] = ()
    """By worker: its place among the workers of all switches of a tree. Empty: its own number. Exact reductions
    (fanin/numerics/exact.py) take values in the order of places; a switch does not look at them."""
    branches: bool = False
    """Whether the workers are switches (the root of a tree): each says how many contributions its own holds."""

    def __post_init__(self) -> None:
        def check(legal: bool, text: str) -> None:
            if not legal:
                raise ConfigurationError(f"job {self.job}: {text}")

        object.__setattr__(self, "total_workers", self.total_workers or self.workers)
        object.__setattr__(self, "max_staleness", largest_staleness(self.staleness, self.max_staleness))
        check(0 <= self.job <= 0xFFFF, "job index must be in 0..65535")
        check(0 <= self.generation <= 0xFFFFFFFF, f"generation {self.generation} is no 32-bit number")
        check(1 <= self.workers <= MAX_WORKERS, f"workers = {self.workers}; one switch takes 1..{MAX_WORKERS}")
        check(
            1 <= self.total_workers <= MAX_TREE_WORKERS and (self.branches or self.total_workers >= self.workers),
            f"total_workers = {self.total_workers}; must be in {self.workers}..{MAX_TREE_WORKERS}",
        )
        check(not self.in_tree or self.synchronous, "a tree of switches is synchronous")
        check(1 <= self.quorum <= self.workers, f"quorum = {self.quorum}; must be in 1..{self.workers} (workers)")
        check(
            0 <= self.max_staleness <= MAX_STALENESS,
            f"staleness = {self.max_staleness}; must be in 0..{MAX_STALENESS}",
        )
        check(
            0 <= self.staleness <= self.max_staleness,
            f"staleness = {self.staleness}; must be in 0..{self.max_staleness} (max_staleness)",
        )
        check(1 <= self.slots <= 1 << 20, f"slots = {self.slots}; must be in 1..{1 << 20}")
        check(1 <= self.codes_per_packet <= MAX_CODES, f"codes_per_packet must be in 1..{MAX_CODES}")
        check(
            self.words_per_packet % (8 * self.codes_per_packet) == 0 and self.words_per_packet > 0,
            f"words_per_packet = {self.words_per_packet} must be a positive multiple of 8 * codes_per_packet",
        )
        check(self.packet_bytes <= MAX_DATAGRAM_BYTES, f"a packet of {self.packet_bytes} bytes fits no datagram")
        check(len(self.tokens) == self.workers, f"{len(self.tokens)} tokens for {self.workers} workers")
        check(self.liveness_timeout_s > 0, "liveness_timeout_s must be positive")
        check(len(self.data_key) in (0, DATA_KEY_BYTES), f"a data key has {DATA_KEY_BYTES} bytes")
        check(not (self.checksum and self.data_key), "a packet carries a checksum or a keyed tag, not both")
        check(
            not self.places or (len(self.places) == self.workers and max(self.places) < self.total_workers),
            f"places = {self.places} for {self.workers} of {self.total_workers} workers",
        )

    def for_flow(self, flow: int) -> JobSpec:
        """The same job as the machines of one flow know it."""
        return replace(self, data_key=packet_tag.of_flow(self.data_key, flow)) if self.data_key else self

    @property
    def survives_loss(self) -> bool:
        """Whether the job goes on without a worker that is lost or has left: the controller then evicts it."""
        return self.on_worker_loss == "continue"

    @property
    def history(self) -> int:
        """H = S_max + 2 ring entries per slot; S_max + 1 is not enough (docs/slot-machine.md)."""
        return self.max_staleness + 2

    @property
    def contributions(self) -> int:
        """M = N (S_max + 1): the most contributions that one round can hold, which lanes are sized for."""
        return self.total_workers * (self.max_staleness + 1)

    @property
    def in_tree(self) -> bool:
        """Whether other switches have workers of the job, too."""
        return self.branches or self.total_workers != self.workers

    def place(self, worker: int) -> int:
        """A worker's place among all workers of the job."""
        return self.places[worker] if self.places else worker

    @property
    def synchronous(self) -> bool:
        """Whether every round waits for every worker, and always will."""
        return self.quorum == self.workers and self.max_staleness == 0 and not self.survives_loss

    @property
    def heartbeat_s(self) -> float:
        """How often a worker or leaf says HELLO, and a switch looks at its own watch (fanin/protocol/own_stops.py)."""
        return min(HEARTBEAT_INTERVAL_S, self.liveness_timeout_s / LIVENESS_HEARTBEATS)

    @property
    def window_items(self) -> int:
        """Number of items that may be under way at once: none is sent so many ahead of the oldest unfinished one.

        Synchronous jobs have as many slots as buffers hold. With staleness each chunk of the model owns a slot, so it
        is this that keeps a round of any size within an ordinary socket buffer.
        """
        pools = WINDOW_POOLS * self.slots
        if self.max_staleness == 0:
            return pools
        return min(pools, window.slots_for(window.DEFAULT_RECEIVE_BUFFER_BYTES, self.packet_bytes))

    @property
    def full_mask(self) -> int:
        """The bitmap with every worker's bit set."""
        return (1 << self.workers) - 1

    @property
    def packet_bytes(self) -> int:
        """Length in bytes of the longest datagram of this job."""
        return datagram_bytes(self.codes_per_packet, self.words_per_packet)

    @property
    def pool_bytes(self) -> int:
        """Switch memory that the job takes: per slot its registers, and per ring entry a result's wire image."""
        head = _whole_lines(HEADER_BYTES + codes_bytes(self.codes_per_packet))
        image_bytes = head + _whole_lines(self.words_per_packet * WORD_BYTES)
        per_slot = SLOT_BYTES + self.history * (ARRIVED_BYTES + ENTRY_FACTS_BYTES + image_bytes)
        return self.slots * (per_slot + (self.accumulated_bytes if self.accumulators else 0))

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of one accumulator, which wraps around: 2, or 4 where M contributions of 8 bits might not fit."""
        return 2 if self.contributions << 7 < 1 << 15 else 4

    @property
    def accumulated_bytes(self) -> int:
        """Bytes of the accumulators of one slot, of which only the open round needs a set."""
        return _whole_lines(self.words_per_packet * MAX_LANES_PER_WORD * self.accumulator_bytes)


@dataclass(frozen=True, kw_only=True)
class AtParent:
    """How a switch takes part in a job at its parent: as one worker, whose contributions are its own rounds."""

    __slots__ = ()

    job: int
    generation: int
    worker: int
    """The branch that this switch is at its parent."""
    token: int
    data_key: bytes = field(default=b"", repr=False)
    """The data key of the job at the parent, as JobSpec.data_key."""
    tag: TagAlgorithm = SIPHASH
    """Algorithm of the tags between switch and parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink(AtParent):
    """An uplink as the machine of one flow knows it."""

    parent: int
    """The parent's address, as whoever drives the machine numbers its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRoute(AtParent):
    """An uplink as a data server knows it: where the parent's flows are, and who this switch is there."""

    host: str
    """Numeric address of the parent."""
    ports: tuple[int, ...]
    """Ports of the parent, one per flow; both switches have as many flows."""

    def uplink(self, parent: int, flow: int) -> Uplink:
        """Return the uplink of one flow; `parent` is the parent's address as the machine's driver numbers its peers."""
        at_parent = facts_of(self, AtParent) | {"data_key": packet_tag.of_flow(self.data_key, flow)}
        return Uplink(parent=parent, **at_parent)


def _whole_lines(size_bytes: int) -> int:
    return -(-size_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
