"""A switch as a process: machine, controller and control channel, which starts, stops, and starts again empty.

The controller is the real one (`fanin.switch.controller.controller`); `SimulatedServer` connects it to the machine, as
the servers of `fanin.switch` do. leaf_host.py does the same for a leaf.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fanin.emulation.simulator.audit import SwitchAuditor
from fanin.emulation.simulator.control_channel import CONTROL_RETRY_S, ControlChannel
from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.machines import Switch, SwitchType
from fanin.emulation.simulator.virtual_network import Network, Node
from fanin.errors import FaninError
from fanin.protocol import control
from fanin.protocol.events import SwitchEvent, WorkerSilent
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.switch.controller.controller import AnyController, Controller
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.gate import Caller
from fanin.switch.controller.job_shape import SwitchBuffers

BUFFERS = SwitchBuffers(receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, shared=False)

CALLER = Caller(key="simulated", operator=True)
"""Sender of all control requests, whose ranks share one key; tests/hostile tries others."""

Note = Callable[[str], None]


class Client(Protocol):
    """A client of a switch's controller."""

    @property
    def address(self) -> int:
        """The client's address in the network, whose paths faults can cut."""

    def hears(self) -> bool:
        """Whether it can receive a reply at the moment; replies wait until it can."""

    def replied(self, peer: bytes, reply: control.Reply) -> None:
        """Receive a reply of the controller to a request of `peer`."""


@dataclass(frozen=True, slots=True)
class _Connection:
    """The control connection of one peer, until it breaks or the switch stops."""

    up: ControlChannel[control.Request]
    down: ControlChannel[control.Reply]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSetup:
    """Settings that all switches of a run share."""

    network: Network
    make: SwitchType
    make_leaf: SwitchType
    dice: random.Random
    memory_bytes: int
    liveness_timeout_s: float
    note: Note
    evicted: Callable[[JobLedger], None]
    """Is called with the job's ledger when a worker was evicted."""


class SwitchHost:
    """One switch, through all of its lives."""

    def __init__(self, setup: SwitchSetup, *, address: int, name: str) -> None:
        self.address = address
        self.lives = 0
        self.silent = False
        """Whether nobody can see that it has stopped, as when power fails."""
        self.contributions = 0
        """Contributions that the machines of earlier lives have received."""
        self._regular = 0
        """`regular` of earlier lives."""
        self.books: dict[tuple[int, int], JobLedger] = {}
        """By index and generation, the ledgers of all jobs, since leaves may ask about those of earlier lives."""
        self._setup = setup
        self._network = setup.network
        self._name = name
        self._limits = Limits(memory_bytes=setup.memory_bytes, liveness_timeout_s=setup.liveness_timeout_s)
        self._connections: dict[bytes, _Connection] = {}
        self._node: Node | None = None

    # --- lives ---

    def start(self) -> None:
        """Begin a life with an empty machine and a new controller."""
        self.lives += 1
        self.machine: Switch = self._make_machine(self._setup.memory_bytes)
        self.auditor = SwitchAuditor(self.address, self.machine, self._setup.memory_bytes)
        self._network.watchers.append(self.auditor)
        self.controller: AnyController = self._make_controller()
        self._armed_at = float("inf")
        self._handling = False
        self._node = self._network.attach(self.address, self.machine, self._stepped)

    def _make_machine(self, memory_bytes: int) -> Switch:
        return self._setup.make(memory_bytes)

    def _make_controller(self) -> AnyController:
        return Controller(
            self._limits,
            {"udp": DataPlane(SimulatedServer(self), BUFFERS)},
            random_bits=self._setup.dice.getrandbits,
            started_s=self._network.queue.now,
            engine="simulated",
        )

    def stop(self) -> None:
        """End this life; connections break, and all state is lost."""
        if self._node is not None:
            self.contributions += self.auditor.contributions
            self._regular = self.regular
            self._network.watchers.remove(self.auditor)
            self._network.detach(self._node)
            self._node = None
            for connection in self._connections.values():
                connection.up.close()
                connection.down.close()
            self._connections.clear()

    @property
    def checked_contributions(self) -> int:
        """Contributions that its machines have received, in all lives."""
        return self.contributions + (self.auditor.contributions if self._node is not None else 0)

    @property
    def regular(self) -> int:
        """Datagrams in all lives that were handled as part of a run (trains.py)."""
        return self._regular + (0 if self._node is None else self.machine.counters().get("regular", 0))

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._node is not None

    @property
    def paused(self) -> bool:
        """Whether its process is paused."""
        return self._node is not None and self._node.paused > 0

    def pause(self) -> Node | None:
        """Pause the process; returns the argument for `resume`."""
        if self._node is not None:
            self._network.pause(self._node)
        return self._node

    def resume(self, node: Node | None) -> None:
        """Let the process that `pause` returned go on; nothing happens if it has died in the meantime."""
        if node is not None:
            self._network.resume(node)

    # --- the control channel ---

    def request(self, peer: bytes, client: Client, request: control.Request) -> None:
        """Send a client's request; replies to `peer` go to this client. Ignored while the switch is dead."""
        if self._node is None:
            return
        if peer not in self._connections:
            self._connections[peer] = self._connect(peer, client)
        self._connections[peer].up.send(request)

    def hung_up(self, peer: bytes) -> None:
        """Tell the controller that the client's connection has ended."""
        if self._node is not None:
            self._end_train()
            self.controller.hung_up(peer, self._network.queue.now)
            self._dispatch()

    def _connect(self, peer: bytes, client: Client) -> _Connection:
        network, node = self._network, self._node

        def arrives(request: control.Request) -> None:
            self._end_train()
            self.controller.receive(peer, request, network.queue.now, CALLER)
            self._dispatch()

        def upwards_blocked() -> bool:
            return node is None or node.paused > 0 or network.pipe(client.address, self.address).blocked > 0

        def downwards_blocked() -> bool:
            return network.pipe(self.address, client.address).blocked > 0 or not client.hears()

        return _Connection(
            ControlChannel(network.queue, upwards_blocked, arrives),
            ControlChannel(network.queue, downwards_blocked, lambda reply: client.replied(peer, reply)),
        )

    def _end_train(self) -> None:
        """Have the machine send all that it has before the controller acts; nothing waits but in a leaf."""

    def _dispatch(self) -> None:
        for peer, reply in self.controller.messages_to_send():
            if (connection := self._connections.get(peer)) is not None:
                connection.down.send(reply)
        at = self.controller.next_timer()
        if at is not None and at < self._armed_at:
            self._armed_at = at
            self._network.queue.at(at, self._ring, self.lives, at)

    def _ring(self, life: int, armed_at: float) -> None:
        if life != self.lives or self._node is None or armed_at != self._armed_at:
            return
        if self._node.paused:
            self._network.queue.after(CONTROL_RETRY_S, self._ring, life, armed_at)
            return
        self._armed_at = float("inf")
        self._end_train()
        self.controller.handle_timer(self._network.queue.now)
        self._dispatch()

    def _stepped(self) -> None:
        if self._handling:  # the controller has just evicted a worker; the outer call handles the events that follow
            return
        self._handling, events = True, False
        while (event := self.machine.next_event()) is not None:
            events = True
            self._setup.note(f"{self._name}: {event}")
            self.controller.handle_event(event, self._network.queue.now)
        self._handling = False
        if events:
            self._dispatch()

    # --- what operators and the controller ask of the machine ---

    def admit(self, spec: JobSpec) -> None:
        """Admit a job, and open its ledger."""
        self.machine.admit(spec)
        self.auditor.admitted(spec)
        self.books[spec.job, spec.generation] = self.auditor.ledgers[spec.job]

    def evict(self, job: int, worker: int) -> None:
        """Evict a worker from a job; does nothing if the job is gone."""
        if self._node is None or job not in self.auditor.ledgers:
            return
        ledger = self.auditor.ledgers[job]
        ledger.evicted(worker)
        self.machine.evict(job, worker, self._network.queue.now)
        self._network.speak(self._node)
        self._network.queue.at(self._network.queue.now, self._setup.evicted, ledger)

    def suspect(self, job: int, worker: int) -> None:
        """Have the machine probe a worker, and report it as silent unless it answers soon."""
        self.machine.suspect(job, worker, self._network.queue.now)

    def suspect_parent(self, job: int) -> None:
        """Have the machine of a leaf ask its parent, and give the branch up unless it answers soon."""
        self.machine.suspect_parent(job, self._network.queue.now)

    def lose(self, job: int, worker: int) -> None:
        """Report to the controller that a worker is silent, whatever the machine thinks."""
        self.controller.handle_event(WorkerSilent(job, worker, 0.0), self._network.queue.now)
        self._dispatch()

    def set_quorum(self, job: int, quorum: int) -> None:
        """Set K of a job; does nothing if the job is gone."""
        if self._node is None or job not in self.auditor.ledgers:
            return
        self.auditor.ledgers[job].quorum_is(quorum)
        self.machine.set_quorum(job, quorum, self._network.queue.now)
        self._network.speak(self._node)

    def set_staleness(self, job: int, staleness: int) -> None:
        """Set S of a job; does nothing if the job is gone."""
        if self._node is None or job not in self.auditor.ledgers:
            return
        self.auditor.ledgers[job].staleness_is(staleness)
        self.machine.set_staleness(job, staleness, self._network.queue.now)
        self._network.speak(self._node)


class SimulatedServer:
    """Implements the part of fanin.switch.server.any_server.Server that a controller calls."""

    def __init__(self, host: SwitchHost) -> None:
        self._host = host
        self.description = "a simulated switch"
        self.ports = (1,)
        self.event_fileno = -1

    def admit(self, spec: JobSpec, *, share_memory: bool = True) -> None:
        """Admit a job; this method and the following ones are described in fanin.switch.server.any_server.Server."""
        self._host.admit(spec)

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        raise FaninError("this simulated switch has no parent")

    def remove(self, job: int) -> None:
        self._host.machine.remove(job)
        self._host.auditor.removed(job)

    def evict(self, job: int, worker: int) -> None:
        self._host.evict(job, worker)

    def suspect(self, job: int, worker: int) -> None:
        self._host.suspect(job, worker)

    def suspect_parent(self, job: int) -> None:
        self._host.suspect_parent(job)

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        self._host.auditor.ledgers[job].place_opened(worker)
        self._host.machine.admit_worker(job, worker, token)

    def set_quorum(self, job: int, quorum: int) -> None:
        self._host.set_quorum(job, quorum)

    def set_staleness(self, job: int, staleness: int) -> None:
        self._host.set_staleness(job, staleness)

    def members(self, job: int) -> tuple[int, int, int]:
        return self._host.machine.members(job)

    def counters(self) -> dict[str, int]:
        return self._host.machine.counters()

    def job_counters(self, job: int) -> dict[str, int]:
        return self._host.machine.job_counters(job)

    def member_counters(self, job: int) -> list[dict[str, int]]:
        return self._host.machine.member_counters(job)

    def shared_memory(self, job: int) -> tuple[str, ...]:
        return ()

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """Sizes of shared-memory rings: 0, because there are none."""
        return 0, 0

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        raise FaninError("a simulated switch hands its events to the controller itself")

    def close(self) -> None:
        """Do nothing: the simulated server holds no resources."""
