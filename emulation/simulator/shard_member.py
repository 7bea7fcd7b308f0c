"""A rank's membership at one shard, in virtual time: a simulated session around the real worker machine."""

from __future__ import annotations

from collections.abc import Callable

from fanin.emulation.simulator.machines import Worker, WorkerType
from fanin.emulation.simulator.switch_host import SwitchHost
from fanin.emulation.simulator.virtual_network import Network, Node
from fanin.errors import (
    AdmissionError,
    EvictedError,
    FaninError,
    JoinTimeoutError,
    SwitchLostError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.session.failures import ranks_of
from fanin.host.session.joining import spec_of, worker_of
from fanin.numerics.reduction import Reduction
from fanin.protocol import control
from fanin.protocol.control import JOIN_INTERVAL_S
from fanin.protocol.events import (
    MembersChanged,
    PacketRefused,
    PathNarrowed,
    Ready,
    ReductionDone,
    SwitchSilent,
    WorkersGone,
)
from fanin.protocol.job import JobSpec, OnWorkerLoss
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.protocol.wire import VERSION, Reason

CONNECT_TIMEOUT_S = 2.0
"""Longest silence of a shard that a rank joins."""
JOIN_TIMEOUT_S = 10.0
"""Longest wait for the other ranks to join, beyond the time in which a shard loses one that has died."""
HANG_UP_S = 0.1
"""Time until a process sees that the process at the other end of a connection has died."""
SLOTS, WORDS = 2, 8


class ShardMember:
    """One membership, from its first Join on; once `ready`, it implements fanin.host.session.survivor.Member."""

    def __init__(
        self,
        host: SwitchHost,
        number: int,
        address: int,
        *,
        rank: int,
        job: str,
        worker: int,
        workers: int,
        network: Network,
        worker_type: WorkerType,
        changed: Callable[[], None],
        cut: Callable[[ShardMember], None],
        succeeds: control.Predecessor | None = None,
        loses_s: float = 0.0,
        on_worker_loss: OnWorkerLoss = "continue",
    ) -> None:
        """Rank `rank` at shard `number`, with an address of its own. `changed` is called when something has happened,
        and `cut` with this object before it sends anything."""
        self.host, self.number, self.address, self.rank = host, number, address, rank
        self.flows = 1
        self.ready = False
        self.failure: FaninError | None = None
        self.switch_is_dead = False
        self.known_members = tuple(range(workers))
        """Ranks that are members of the job, as in `Session.known_members`."""
        self._ranks = self.known_members
        self.replied_to: Callable[[int, control.Reply], None] | None = None
        """Gets the controller's replies once it is a member; None: they are ignored."""
        self._job, self._worker, self._workers, self._succeeds = job, worker, workers, succeeds
        self._on_worker_loss: OnWorkerLoss = on_worker_loss
        self._network, self._worker_type, self._changed = network, worker_type, changed
        self._machine: Worker | None = None
        self._node: Node | None = None
        self._spec: JobSpec | None = None
        self._done: set[int] = set()
        self._kept_alive: dict[int, Reduction] = {}
        self._heard_at = network.queue.now
        self._started = self._closed = False
        cut(self)
        network.queue.after(JOIN_TIMEOUT_S + loses_s, self._late)
        self._ask()

    @property
    def spec(self) -> JobSpec:
        """The job's facts, as in `Session.spec`."""
        assert self._spec is not None
        return self._spec

    @property
    def nonce(self) -> str:
        """Name of this membership at the controller, as in `Session.nonce`."""
        return f"{self._job}-{self.number}-{self.address}"

    @property
    def peer(self) -> bytes:
        """Name of its connection at the shard's controller."""
        return self.nonce.encode()

    @property
    def over(self) -> bool:
        """Whether it has left or failed."""
        return self._closed or self.failure is not None

    # --- joining ---

    def _ask(self) -> None:
        if self.over or self.ready:
            return
        if not self.host.alive and not self.host.silent:
            self._network.queue.after(HANG_UP_S, self.hang_up)
            return
        join = control.Join(
            job=self._job, rank=self._worker, size=self._workers, nonce=self.nonce, wire_version=VERSION,
            software="simulated", process=f"worker:{self._worker}", scheme="udp", path_mtu=65_536,
            receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, slots=SLOTS, words_per_packet=WORDS,
            on_worker_loss=self._on_worker_loss, succeeds=self._succeeds,
        )  # fmt: skip
        if self._network.queue.now - self._heard_at >= CONNECT_TIMEOUT_S:
            self._fail(SwitchUnreachableError(f"shard {self.number}", "silent"))
            return
        self.request(join)
        self._network.queue.after(JOIN_INTERVAL_S, self._ask)

    def request(self, request: control.Request) -> None:
        """Send a request to the shard's controller."""
        self.host.request(self.peer, self, request)

    def hears(self) -> bool:
        """Implements the protocol `switch_host.Client`."""
        return True

    def replied(self, peer: bytes, reply: control.Reply) -> None:
        """Implements the protocol `switch_host.Client`."""
        self._heard_at = self._network.queue.now
        if self._closed:
            return
        if self.ready and self.replied_to is not None:
            self.replied_to(self.number, reply)
        if self.ready or self.failure is not None:
            return
        if isinstance(reply, control.Admitted) and self._machine is None:
            if reply.running:
                self._fail(AdmissionError("the job runs already", control.Refusal.MEMBER_LOST.value))
                return
            self._spec = spec_of(reply)
            self._machine = self._worker_type(
                self._spec, worker_of(reply), switch=self.host.address, token=reply.token, newcomer=False
            )
            self._node = self._network.attach(self.address, self._machine, self._stepped)
        elif isinstance(reply, control.Started):
            self._started = True
            self._be_ready()
        elif isinstance(reply, control.Refused) and reply.code == control.Refusal.EVICTED.value:
            self._fail(EvictedError(reply.ranks, reply.reason))
        elif isinstance(reply, control.Refused):
            self._fail(AdmissionError(reply.reason, reply.code))

    def _be_ready(self) -> None:
        if self._started and self._machine is not None and self._machine.ready and not self.ready:
            self.ready = True
            self._changed()

    def _late(self) -> None:
        if not self.ready and not self.over:
            self._fail(JoinTimeoutError((), f"not all ranks came to shard {self.number}"))

    # --- working ---

    def submit(self, reduction: Reduction) -> int:
        """Submit a reduction, as `Session.submit` does."""
        if self.failure is not None:
            raise self.failure
        assert self._machine is not None
        assert self._node is not None
        ticket = self._machine.submit(reduction)
        self._kept_alive[ticket] = reduction
        self._network.queue.at(self._network.queue.now, self._speak)
        return ticket

    def _speak(self) -> None:
        if self._node is not None:
            self._network.speak(self._node)

    def done(self, ticket: int) -> bool:
        """Whether a reduction has ended, as `Session.done` says."""
        return ticket in self._done

    def _stepped(self) -> None:
        machine = self._machine
        while machine is not None and machine is self._machine and (event := machine.next_event()) is not None:
            if isinstance(event, ReductionDone):
                self._done.add(event.ticket)
                del self._kept_alive[event.ticket]
                self._changed()
            elif isinstance(event, Ready):
                self._be_ready()
            elif isinstance(event, PacketRefused) and event.reason is Reason.EVICTED:
                self._fail(EvictedError((self.rank,), f"rank {self.rank} was taken out at shard {self.number}"))
            elif isinstance(event, SwitchSilent | PathNarrowed | PacketRefused):
                self._fail(SwitchLostError(f"shard {self.number}", str(event)))
            elif isinstance(event, MembersChanged):
                self.known_members = tuple(self._ranks[worker] for worker in ranks_of(event.members))
            elif isinstance(event, WorkersGone):
                self._fail(WorkerLostError(ranks_of(event.lost | event.left), str(event)))

    def _fail(self, failure: FaninError) -> None:
        self.failure = failure
        self._network.queue.at(self._network.queue.now, self._detach)
        self._changed()

    def hang_up(self) -> None:
        """Fail, because the shard's process has ended and nothing listens at its port."""
        if self.over:
            return
        self.switch_is_dead = True
        error = SwitchLostError if self.ready else SwitchUnreachableError
        self._fail(error(f"shard {self.number}", "nothing listens there"))

    def stands_for(self, ranks: tuple[int, ...]) -> None:
        """Set the ranks of the members, as `Session.stands_for` does."""
        self._ranks, gone = ranks, set(self._ranks).difference(self.known_members)
        self.known_members = tuple(rank for worker, rank in enumerate(ranks) if worker not in gone)

    # --- the end ---

    def abandon(self, failure: FaninError) -> None:
        """Fail the membership, as `Session.abandon` does."""
        self.failure = self.failure or failure
        self._detach()

    def close(self) -> None:
        """Leave the job, as `Session.close` does."""
        if not self._closed and not isinstance(self.failure, SwitchLostError) and self.host.alive:
            self.request(control.Leave(job=self._job, rank=self._worker, nonce=self.nonce))
        self.die()

    def die(self) -> None:
        """End without a message, as if its process died."""
        self._closed = True
        self._detach()

    def _detach(self) -> None:
        if self._node is not None:
            self._network.detach(self._node)
            self._node = self._machine = None
