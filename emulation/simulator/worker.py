"""A worker as a process: it joins, reduces, leaves; it crashes and is started again. Its machine is the real one.

    phase    | what it does                               | becomes
    ---------+--------------------------------------------+---------------------------------------------------------
    OUT      | nothing                                    | JOINING, when it is started
    JOINING  | asks the controller every JOIN_INTERVAL_S; | WORKING, when it is told that all are there; OUT, when it
             | once admitted its machine says HELLO       | is refused or the machine fails
    WORKING  | submits steps, checks results              | LEAVING, when all steps are done; OUT, when it fails
    LEAVING  | says BYE                                   | OUT, when the switch knows, or LEAVE_TIMEOUT_S later

A worker that fails is started again RESTART_S later, as by torchrun, and repeats all steps: a checkpoint would add
nothing to the simulation. `simulated_job.py` decides which others are started again, and when the job is done.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.machines import Worker, WorkerType
from fanin.emulation.simulator.rule import Rule
from fanin.emulation.simulator.scenario import JobPlan
from fanin.emulation.simulator.stale_work import StaleWork
from fanin.emulation.simulator.switch_host import Note, SwitchHost
from fanin.emulation.simulator.virtual_network import Network, Node
from fanin.host.session.joining import ENTRY_MARGIN, spec_of, worker_of
from fanin.numerics.reduction import Element, Reduction, lanes_number
from fanin.protocol import control
from fanin.protocol.control import JOIN_INTERVAL_S
from fanin.protocol.events import Departed, MembersChanged, Ready, ReductionDone, RoundHeard, Stands, WorkerEvent
from fanin.protocol.job import Agreed, AskedRounds, JobSpec, facts_of
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.protocol.wire import VERSION

RESTART_S = 0.2
"""Time that a launcher takes to start a worker again."""
SIGNATURE = 0x5EED
"""Signature of all reductions of a job whose rounds may hold contributions of several steps."""

Array = npt.NDArray[Any]


class Phase(enum.Enum):
    """Phase of a worker's life; the table of this file has their order."""

    OUT = enum.auto()
    JOINING = enum.auto()
    WORKING = enum.auto()
    LEAVING = enum.auto()


class StepWatcher(Protocol):
    """Is told when workers begin and end steps."""

    def step_begun(self, process: Process, step: int) -> None:
        """The worker has submitted the array of a step, or its pass."""

    def step_done(self, process: Process, step: int) -> None:
        """The worker has the step's result."""


class Launcher(Protocol):
    """The owner of a job's processes: it starts them, gives them work, and is told how they end (simulated_job.py)."""

    plan: JobPlan
    index: int
    network: Network
    queue: EventQueue
    worker_type: WorkerType
    dice: random.Random
    note: Note
    complete: bool
    step_watchers: list[StepWatcher]

    @property
    def name(self) -> str:
        """The job's name at the controller."""

    @property
    def inputs(self) -> Callable[[int, int], Array]:
        """Function (rank, step) that returns the array to reduce."""

    @property
    def rule(self) -> Rule:
        """Rule of a collective other than all_reduce."""

    def explained(self, process: Process, explanation: control.Explanation) -> None:
        """Is told the explanation that a failed worker got."""

    def check_result(self, process: Process, step: int, array: Array) -> None:
        """Check a worker's result of a step."""

    def finished(self, process: Process) -> None:
        """Is told that a worker has done all its steps."""

    def departed(self, process: Process) -> None:
        """Is told that a worker has left."""

    def failed(self, process: Process) -> None:
        """Is told that a worker has failed."""


class Process:
    """One worker of one job."""

    PAUSE_POLL_S = 0.01
    """Time between two looks of a paused process whether it may go on."""

    def __init__(self, job: Launcher, rank: int, address: int, switch: SwitchHost) -> None:
        self.job = job
        self.switch = switch
        """Switch at which it joins, and to which it sends."""
        self.rank = rank
        self.address = address
        """Address, kept over restarts: this makes old packets hardest to tell from new ones."""
        self.phase = Phase.OUT
        self.life = 0
        self.node: Node | None = None
        self.spec: JobSpec | None = None
        self.ledger: JobLedger | None = None
        self.held_until = 0.0
        """Earliest time of its next start."""
        self.stale_work: StaleWork | None = None
        """The work of a job with a policy for late gradients; other jobs take one step after another."""
        self._machine: Worker | None = None
        self._arrays: dict[int, Array] = {}
        self._submitted = 0
        self._done = 0
        self._first_step = 0
        """First step of a newcomer to a running job, which counts as having passed all earlier ones."""
        self._is_newcomer = False
        self._thinking = False
        self._told_to_start = False
        self._forecasts = 0, 0
        """`forecasts` of earlier lives."""
        self._regular = 0
        """`regular` of earlier lives."""

    def __str__(self) -> str:
        return f"job {self.job.index} rank {self.rank}"

    @property
    def generation(self) -> int:
        """Generation of the job to which it was admitted last; in a tree, that of the whole job."""
        assert self.ledger is not None
        return self.ledger.whole.spec.generation

    @property
    def forecasts(self) -> tuple[int, int]:
        """Reductions in all lives whose scales were foreseen (host/machine/scale_forecast.py), and those missed."""
        if self._machine is None:
            return self._forecasts
        held, missed = self._forecasts
        counters = self._machine.counters()
        return held + counters["forecasts"], missed + counters["forecasts_missed"]

    @property
    def regular(self) -> int:
        """Datagrams in all lives that were handled as part of a run (trains.py)."""
        return self._regular + (0 if self._machine is None else self._machine.counters().get("regular", 0))

    # --- what happens to it ---

    def start(self) -> None:
        """Begin a life: join the job. Does nothing if it is not OUT, or the job is complete."""
        if self.phase is not Phase.OUT or self.job.complete:
            return
        if self.job.queue.now < self.held_until:
            self.start_after(0.0)
            return
        self.life += 1
        self.phase = Phase.JOINING
        self._submitted = self._done = self._first_step = 0
        self._thinking = self._told_to_start = False
        self._arrays.clear()
        self._ask(self.life)

    def start_after(self, delay_s: float) -> None:
        """Begin a life after `delay_s` or at `held_until`, whichever is later, unless another life begins before."""
        self.job.queue.at(max(self.job.queue.now + delay_s, self.held_until), self._start_life_after, self.life)

    def _start_life_after(self, life: int) -> None:
        if life == self.life:
            self.start()

    def crash(self) -> None:
        """End this life without a message."""
        self.phase = Phase.OUT
        self.life += 1
        self._detach()

    def leave(self) -> None:
        """Say BYE, even if reductions are under way; does nothing without a working machine."""
        if self._machine is None or self.node is None or self._machine.failed:
            return
        self.phase = Phase.LEAVING
        self._machine.leave(self.job.queue.now)
        self.job.network.speak(self.node)

    # --- joining ---

    @property
    def _peer(self) -> bytes:
        return f"{self.job.index}-{self.rank}-{self.life}".encode()

    def _ask(self, life: int) -> None:
        if life != self.life or self.phase is not Phase.JOINING:
            return
        if self.node is None or not self.node.paused:
            plan = self.job.plan
            join = control.Join(
                job=self.job.name, rank=self.rank, size=plan.workers, nonce=self._peer.decode(),
                wire_version=VERSION, software="simulated", process=f"worker:{self.rank}", scheme="udp",
                path_mtu=65_536, receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, slots=plan.slots,
                words_per_packet=plan.words_per_packet, checksum=plan.checksum, accumulators=bool(plan.lanes),
                **facts_of(plan, AskedRounds, Agreed),
            )  # fmt: skip
            self._send(join)
        self.job.queue.after(JOIN_INTERVAL_S, self._ask, life)

    def _send(self, request: control.Request) -> None:
        self.switch.request(self._peer, self, request)

    def hears(self) -> bool:
        """Implements the protocol `switch_host.Client`."""
        return self.node is None or not self.node.paused

    def replied(self, peer: bytes, reply: control.Reply) -> None:
        """Implements the protocol `switch_host.Client`."""
        if isinstance(reply, control.Explanation):
            self.job.explained(self, reply)
        if peer != self._peer or self.phase is not Phase.JOINING:
            return
        if isinstance(reply, control.Admitted):
            if self._machine is None:
                self._admitted(reply)
            elif self.spec is not None and reply.generation != self.spec.generation:
                self._fail("is asked to join another generation while it waits for the start of its own")
        elif isinstance(reply, control.Started):
            self._told_to_start = True
            self._begin()
        elif isinstance(reply, control.Refused):
            self._fail(f"was refused: {reply.reason}")

    def _begin(self) -> None:
        """Start working, once all workers are there and the data path is open."""
        if self._told_to_start and self._machine is not None and self._machine.ready and self.phase is Phase.JOINING:
            self.phase = Phase.WORKING
            if not self._is_newcomer:
                self._start_work()

    def _start_work(self) -> None:
        if self.job.plan.policy is None:
            self._work(self.life)
        else:
            self.stale_work = StaleWork(self, self.job.queue, self.job.plan, self._first_step)
            self.stale_work.begin()

    def _enter(self, machine: Worker, base: int) -> None:
        """Begin as a newcomer, with the step that the others begin next."""
        self._first_step = self._submitted = self._done = base + ENTRY_MARGIN
        machine.begin(self._first_step)
        self._is_newcomer = False
        self.job.note(f"{self} comes in at step {self._first_step}")
        if self._done >= self.job.plan.bases:
            self.job.finished(self)
        else:
            self._start_work()

    def _admitted(self, admitted: control.Admitted) -> None:
        self.job.note(f"{self} is admitted to index {admitted.index}, generation {admitted.generation:#x}")
        self.spec = spec_of(admitted)
        ledger = self.switch.auditor.ledgers.get(admitted.index)
        if ledger is None or ledger.spec.generation != admitted.generation:
            self._fail("was admitted to a job that is gone")
            return
        self.ledger = ledger
        self._is_newcomer = admitted.running
        self._machine = self.job.worker_type(
            self.spec, worker_of(admitted), switch=self.switch.address, token=admitted.token, newcomer=admitted.running
        )
        self.node = self.job.network.attach(self.address, self._machine, self._stepped)

    # --- working ---

    def _work(self, life: int) -> None:
        """Submit as many steps as may be under way, then think."""
        if life != self.life or self.phase is not Phase.WORKING or self._machine is None or self.node is None:
            return
        if self.node.paused or self._is_newcomer:
            self.job.queue.after(self.PAUSE_POLL_S, self._work, life)
            return
        plan = self.job.plan
        self._thinking = False
        while self._submitted < plan.steps and self._submitted - self._done < plan.ahead and not self._thinking:
            self.submit(self._submitted, passes=plan.passes > 0 and self.job.dice.random() < plan.passes)
            self._thinking = plan.think_s > 0
        if self._thinking:
            self.job.queue.after(self.thinking_s(), self._work, life)

    def thinking_s(self) -> float:
        """Draw the time that the next step takes to compute."""
        plan = self.job.plan
        slow = plan.slow[self.rank] if self.rank < len(plan.slow) else 1.0
        return plan.think_s * slow * 2 * self.job.dice.random()

    @property
    def paused(self) -> bool:
        """Whether its process is stopped."""
        return self.node is not None and self.node.paused > 0

    def at_work(self, work: StaleWork) -> bool:
        """Whether it still works, and on that work."""
        alive = self._machine is not None and not self._machine.failed
        return self.stale_work is work and self.phase is Phase.WORKING and alive

    def submit(self, step: int, *, passes: bool, counts: npt.NDArray[np.uint32] | None = None) -> None:
        """Submit the array of a step, or a pass; `counts` gets the contributors by chunk."""
        assert self._machine is not None
        assert self.node is not None
        plan = self.job.plan
        array = np.array(self.job.inputs(self.rank, step))
        self._arrays[step] = array
        for watcher in self.job.step_watchers:
            watcher.step_begun(self, step)
        if plan.collective != "all_reduce":
            self._machine.submit(self.job.rule.reduction(self.rank, step, array))
            self._submitted += 1
            self.job.network.speak(self.node)
            return
        self._machine.submit(
            Reduction(
                source=array.ctypes.data,
                destination=array.ctypes.data,
                count=len(array),
                element=Element[plan.element.upper()],
                lanes=lanes_number(plan.lanes or 32),
                signature=SIGNATURE if plan.every_chunk_has_a_slot else 0,
                passes=passes,
                counts=0 if counts is None else counts.ctypes.data,
                owner=(array, counts),
            )
        )
        self._submitted += 1
        self.job.network.speak(self.node)

    def _stepped(self) -> None:
        machine = self._machine
        while machine is not None and machine is self._machine and (event := machine.next_event()) is not None:
            self._handle(event)

    def _handle(self, event: WorkerEvent) -> None:
        assert self.spec is not None
        if isinstance(event, ReductionDone):
            step = event.ticket - 1 + self._first_step
            self.job.check_result(self, step, self._arrays.pop(step))
            for watcher in self.job.step_watchers:
                watcher.step_done(self, step)
            self._done += 1
            if self.stale_work is not None:
                self.stale_work.round_over()
            if self._done == self.job.plan.bases:
                self.job.finished(self)
            elif self.stale_work is None and not self._thinking:
                self.job.queue.at(self.job.queue.now, self._work, self.life)
        elif isinstance(event, Departed):
            self.job.note(f"{self} has left")
            if not event.confirmed:
                self._send(control.Leave(job=self.job.name, rank=self.rank, nonce=self._peer.decode()))
            self.phase = Phase.OUT
            self._detach()
            self.job.departed(self)
        elif isinstance(event, Ready):
            self.job.queue.at(self.job.queue.now, self._begin)
        elif isinstance(event, Stands):
            self.job.queue.at(self.job.queue.now, self._enter_if_still, self.life, event.base)
        elif isinstance(event, RoundHeard):
            if self.stale_work is not None:
                self.stale_work.heard(event.base)
        elif isinstance(event, MembersChanged):
            self.job.note(f"{self}: {event}")
        else:
            self._send(control.Explain(job=self.job.name, generation=self.spec.generation))
            self._fail(str(event))

    def _enter_if_still(self, life: int, base: int) -> None:
        if life != self.life or self._machine is None or self._machine.failed or self.phase is Phase.LEAVING:
            return
        if self.phase is Phase.JOINING or (self.node is not None and self.node.paused):
            self.job.queue.after(self.PAUSE_POLL_S, self._enter_if_still, life, base)
            return
        self._enter(self._machine, base)

    def _fail(self, text: str) -> None:
        """Leave the job after a failure, end this life, and tell the launcher."""
        self.job.note(f"{self}: {text}")
        self._send(control.Leave(job=self.job.name, rank=self.rank, nonce=self._peer.decode()))
        self.phase = Phase.OUT
        self.life += 1
        self._detach()
        self.job.failed(self)

    def _detach(self) -> None:
        if self.node is not None:
            self.job.network.detach(self.node)
        self._forecasts, self._regular = self.forecasts, self.regular
        self.node = self._machine = self.stale_work = None
