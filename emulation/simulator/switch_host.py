"""The switch as a process: machine, controller and control channel, which starts, stops and starts again empty.

The controller is the real one (`fanin.switch.controller`); `_Server` stands between it and the machine as the servers
of `fanin.switch` do. Control messages travel by TCP in reality: here they arrive whole and late, and wait while their
path is cut or the switch is paused.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from fanin import control
from fanin.emulation.simulator.audit import SwitchAuditor
from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.machines import Switch, SwitchType
from fanin.emulation.simulator.network import Network, Node
from fanin.errors import FaninError
from fanin.events import SwitchEvent, WorkerSilent
from fanin.job import JobSpec
from fanin.switch.controller import Controller
from fanin.switch.data_plane import DataPlane, Limits
from fanin.switch.job_shape import SwitchBuffers
from fanin.window import DEFAULT_RECEIVE_BUFFER_BYTES

SWITCH_ADDRESS = 0
CONTROL_DELAY_S = 200e-6
CONTROL_RETRY_S = 0.05
"""How often a control message that cannot pass is tried again."""
BUFFERS = SwitchBuffers(receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, shared=False)

Replied = Callable[[control.Reply], None]
Note = Callable[[str], None]


class SwitchHost:
    """One switch, in its present life and those that follow."""

    def __init__(
        self,
        network: Network,
        make: SwitchType,
        dice: random.Random,
        *,
        memory_bytes: int,
        liveness_timeout_s: float,
        note: Note,
        evicted: Callable[[JobLedger], None],
    ) -> None:
        """`evicted` is called when a worker was taken out of a job."""
        self.lives = 0
        self.contributions = 0
        """Taken in by machines of former lives."""
        self._network = network
        self._make = make
        self._dice = dice
        self._memory_bytes = memory_bytes
        self._limits = Limits(memory_bytes=memory_bytes, liveness_timeout_s=liveness_timeout_s)
        self._note = note
        self._evicted = evicted
        self._peers: dict[bytes, tuple[int, Replied]] = {}
        """By peer, its address in the network and who takes its replies."""
        self._node: Node | None = None
        self.start()

    # --- lives ---

    def start(self) -> None:
        """Begin a life, knowing nothing of the one before."""
        self.lives += 1
        self.machine: Switch = self._make(self._memory_bytes)
        self.auditor = SwitchAuditor(SWITCH_ADDRESS, self.machine, self._memory_bytes)
        self._network.watchers.append(self.auditor)
        server = _Server(self)
        self.controller = Controller(
            self._limits,
            {"udp": DataPlane(server, BUFFERS)},
            random_bits=self._dice.getrandbits,
            started_s=self._network.queue.now,
            engine="simulated",
        )
        self._armed_at = float("inf")
        self._handling = False
        self._node = self._network.attach(SWITCH_ADDRESS, self.machine, self._stepped)

    def stop(self) -> None:
        """End this life."""
        if self._node is not None:
            self.contributions += self.auditor.contributions
            self._network.watchers.remove(self.auditor)
            self._network.detach(self._node)
            self._node = None
            self._peers.clear()

    def pause(self) -> Node | None:
        """Stop everything for a while; what `resume` wants back."""
        if self._node is not None:
            self._network.pause(self._node)
        return self._node

    def resume(self, node: Node | None) -> None:
        """Go on, if that life still lasts."""
        if node is not None:
            self._network.resume(node)

    # --- the control channel ---

    def request(self, peer: bytes, address: int, request: control.Request, replied: Replied) -> None:
        """A worker at `address` asks; `replied` gets whatever the controller sends to `peer` from then on."""
        self._network.queue.after(CONTROL_DELAY_S, self._arrive, self.lives, peer, address, request, replied)

    def _arrive(self, life: int, peer: bytes, address: int, request: control.Request, replied: Replied) -> None:
        if life != self.lives or self._node is None:
            return  # the connection broke: workers ask again
        if self._node.paused or self._network.pipe(address, SWITCH_ADDRESS).blocked:
            self._network.queue.after(CONTROL_RETRY_S, self._arrive, life, peer, address, request, replied)
            return
        self._peers[peer] = (address, replied)
        self.controller.receive(peer, request, self._network.queue.now)
        self._dispatch()

    def _deliver(self, life: int, address: int, reply: control.Reply, replied: Replied) -> None:
        if life != self.lives or self._node is None:
            return
        if self._network.pipe(SWITCH_ADDRESS, address).blocked:
            self._network.queue.after(CONTROL_RETRY_S, self._deliver, life, address, reply, replied)
            return
        replied(reply)

    def _dispatch(self) -> None:
        for peer, reply in self.controller.messages_to_send():
            if (found := self._peers.get(peer)) is not None:
                self._network.queue.after(CONTROL_DELAY_S, self._deliver, self.lives, found[0], reply, found[1])
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
        self.controller.handle_timer(self._network.queue.now)
        self._dispatch()

    def _stepped(self) -> None:
        if self._handling:  # the controller has just evicted somebody: its events wait until it is done with this one
            return
        self._handling, events = True, False
        while (event := self.machine.next_event()) is not None:
            events = True
            self._note(f"switch: {event}")
            self.controller.handle_event(event, self._network.queue.now)
        self._handling = False
        if events:
            self._dispatch()

    # --- what operators and the controller ask of the machine ---

    def evict(self, job: int, worker: int) -> None:
        """Take a worker out of a job; nothing if the job is not there (any more)."""
        if self._node is None or job not in self.auditor.ledgers:
            return
        ledger = self.auditor.ledgers[job]
        ledger.evicted(worker)
        self.machine.evict(job, worker, self._network.queue.now)
        self._network.speak(self._node)
        self._network.queue.at(self._network.queue.now, self._evicted, ledger)

    def lose(self, job: int, worker: int) -> None:
        """Tell the controller that a worker is gone, whatever the data plane thinks."""
        self.controller.handle_event(WorkerSilent(job, worker, 0.0), self._network.queue.now)
        self._dispatch()

    def set_quorum(self, job: int, quorum: int) -> None:
        """Change K of a job; nothing if the job is not there (any more)."""
        if self._node is None or job not in self.auditor.ledgers:
            return
        self.auditor.ledgers[job].quorum_is(quorum)
        self.machine.set_quorum(job, quorum, self._network.queue.now)
        self._network.speak(self._node)

    def set_staleness(self, job: int, staleness: int) -> None:
        """Change S of a job; nothing if the job is not there (any more)."""
        if self._node is None or job not in self.auditor.ledgers:
            return
        self.auditor.ledgers[job].staleness_is(staleness)
        self.machine.set_staleness(job, staleness, self._network.queue.now)
        self._network.speak(self._node)


class _Server:
    """fanin.switch.server.Server, as far as a controller calls it."""

    def __init__(self, host: SwitchHost) -> None:
        self._host = host
        self.description = "a simulated switch"
        self.ports = (1,)

    def admit(self, spec: JobSpec) -> None:
        self._host.machine.admit(spec)
        self._host.auditor.admitted(spec)

    def remove(self, job: int) -> None:
        self._host.machine.remove(job)
        self._host.auditor.removed(job)

    def evict(self, job: int, worker: int) -> None:
        self._host.evict(job, worker)

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

    def shared_memory(self, job: int) -> tuple[str, ...]:
        return ()

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        raise FaninError("a simulated switch hands its events to the controller itself")

    def close(self) -> None:
        """There is nothing to give up."""
