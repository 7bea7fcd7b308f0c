"""The pump server: drives any switch machine, native or twin, over any transport, with one thread per flow.

Every flow has a machine of its own, and a worker registers with each of them, so that their events are merged here: a
worker has joined once it has joined every flow, and is silent or has left as soon as one flow reports it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from fanin.protocol.events import BranchNarrowed, SwitchEvent, WorkerJoined
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.switch.machine.any_switch_machine import LeafMachine
from fanin.switch.machine.member_tally import add_up
from fanin.switch.server.event_queue import EventQueue
from fanin.transports.pump import Pump
from fanin.transports.transport import Transport


class PumpedMachine(LeafMachine, Protocol):
    """A machine for transports whose connections show whether a worker is alive."""

    def overdue(self, now: float) -> list[int]:
        """Addresses of the workers that `handle_timer` would count as lost now."""

    def sign_of_life(self, source: int, now: float) -> None:
        """Count the workers at that address as heard now, although no packet came from them."""


@runtime_checkable
class CallsOut(Protocol):
    """A transport that can send to a peer from which nothing has come yet."""

    def number_of(self, host: str, port: int) -> int:
        """The number of a peer at a numeric address."""


@runtime_checkable
class SeesConnections(Protocol):
    """A transport that knows whether a silent peer's process is running."""

    def connected(self, address: int) -> bool:
        """Whether the peer's connection is open."""


class PumpServer:
    """A server (any_server.py) over `flows`, pairs of a machine and its transport; it runs from its construction on.

    After a crash of a flow's thread, `next_event` raises RuntimeError: a switch that has lost a flow must not linger.
    """

    def __init__(
        self,
        flows: Sequence[tuple[PumpedMachine, Transport]],
        *,
        ports: tuple[int, ...] = (),
        description: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.description = description
        """Names of the driver, the machine and the transport."""
        self.ports = ports
        """The port of each flow."""
        self._clock = clock
        self._machines = [machine for machine, _ in flows]
        self._reported: dict[tuple[type, int, int | None], int] = {}
        """Number of flows that have reported an event, by kind of event, job and worker (None: any)."""
        self._reporting = threading.Lock()
        """Guards `_reported`, which the threads of all flows update."""
        self._events = EventQueue()
        self._pumps = [
            Pump(
                machine,
                transport,
                clock,
                self._take,
                self._crashed,
                f"fanin switch flow {flow}",
                _attesting(machine, transport),
            )
            for flow, (machine, transport) in enumerate(flows)
        ]
        # Daemons, so that they never keep an interpreter from ending.
        self._threads = [threading.Thread(target=pump.run, name=pump.name, daemon=True) for pump in self._pumps]
        for thread in self._threads:
            thread.start()

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        """Admit a part of a job at a parent on every flow or, if one refuses, on none."""
        self.admit(spec, parent)

    def admit(self, spec: JobSpec, parent: ParentRoute | None = None, *, share_memory: bool = True) -> None:
        """Admit a job on every flow or, if one refuses, on none. There are no rings."""
        with self._reporting:
            for key in [key for key in self._reported if key[1] == spec.job]:
                del self._reported[key]
        admitted: list[tuple[PumpedMachine, threading.Lock]] = []
        for flow, (machine, pump) in enumerate(self._flows()):
            try:
                with pump.lock:
                    if parent is None:
                        machine.admit(spec.for_flow(flow))
                    else:
                        assert isinstance(pump.transport, CallsOut), "a leaf's data goes over UDP"
                        number = pump.transport.number_of(parent.host, parent.ports[flow])
                        machine.admit_leaf(spec.for_flow(flow), parent.uplink(number, flow))
            except BaseException:
                for earlier, lock in admitted:
                    with lock:
                        earlier.remove(spec.job)
                raise
            admitted.append((machine, pump.lock))

    def remove(self, job: int) -> None:
        """Forget a job on every flow."""
        for machine, pump in self._flows():
            with pump.lock:
                machine.remove(job)

    def evict(self, job: int, worker: int) -> None:
        """Take a worker out of the full mask on every flow."""
        for machine, pump in self._flows():
            with pump.lock:
                machine.evict(job, worker, self._clock())
            pump.transport.wake()

    def suspect(self, job: int, worker: int) -> None:
        """Expect a sign of life from a worker soon, on every flow."""
        for machine, pump in self._flows():
            with pump.lock:
                machine.suspect(job, worker, self._clock())
            pump.transport.wake()

    def suspect_parent(self, job: int) -> None:
        """Expect a sign of life from a leaf's parent soon, on every flow."""
        for machine, pump in self._flows():
            with pump.lock:
                machine.suspect_parent(job, self._clock())
            pump.transport.wake()

    def set_quorum(self, job: int, quorum: int) -> None:
        """Change K on every flow."""
        for machine, pump in self._flows():
            with pump.lock:
                machine.set_quorum(job, quorum, self._clock())
            pump.transport.wake()

    def set_staleness(self, job: int, staleness: int) -> None:
        """Change S on every flow."""
        for machine, pump in self._flows():
            with pump.lock:
                machine.set_staleness(job, staleness, self._clock())
            pump.transport.wake()

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Open an evicted worker's place on every flow, and report events of its new process again."""
        for machine, pump in self._flows():
            with pump.lock:
                machine.admit_worker(job, worker, token)
        with self._reporting:
            for key in [key for key in self._reported if key[1:] == (job, worker)]:
                del self._reported[key]
            self._events.forget(job, worker)

    @property
    def event_fileno(self) -> int:
        """A descriptor that is readable while `next_event` has an event or an error."""
        return self._events.fileno()

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        """Wait up to `timeout_s` for the next event; None without one. RuntimeError after a crash of a flow."""
        return self._events.next(timeout_s)

    def counters(self) -> dict[str, int]:
        """Counters, summed over flows."""
        return self._sum(lambda machine: machine.counters())

    def job_counters(self, job: int) -> dict[str, int]:
        """Counters of one job, summed over flows."""
        return self._sum(lambda machine: machine.job_counters(job))

    def member_counters(self, job: int) -> list[dict[str, int]]:
        """Counters of each worker of one job, summed over flows."""
        total: list[dict[str, int]] = []
        for machine, pump in self._flows():
            with pump.lock:
                more = machine.member_counters(job)
            total = total or [{} for _ in more]
            for whole, part in zip(total, more, strict=True):
                add_up(whole, part)
        return total

    def shared_memory(self, job: int) -> tuple[str, ...]:
        """Empty: a Python loop gains nothing by shared memory."""
        return ()

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """Zeros: this server offers no shared memory."""
        return 0, 0

    def members(self, job: int) -> tuple[int, int, int]:
        """Bit masks of the workers that are registered on every flow, are lost on any, and have left any."""
        registered, lost, left = 0xFFFFFFFF, 0, 0
        for machine, pump in self._flows():
            with pump.lock:
                masks = machine.members(job)
            registered, lost, left = registered & masks[0], lost | masks[1], left | masks[2]
        return registered, lost, left

    def close(self) -> None:
        """Stop the threads, end every wait for an event and close the transports."""
        self._events.close()
        for pump in self._pumps:
            pump.halt()
        for pump, thread in zip(self._pumps, self._threads, strict=True):
            pump.stop(thread)

    def _flows(self) -> list[tuple[PumpedMachine, Pump[SwitchEvent]]]:
        return list(zip(self._machines, self._pumps, strict=True))

    def _sum(self, counters_of: Callable[[PumpedMachine], dict[str, int]]) -> dict[str, int]:
        total: dict[str, int] = {}
        for machine, pump in self._flows():
            with pump.lock:
                counted = counters_of(machine)
            for key, value in counted.items():
                total[key] = total.get(key, 0) + value
        return total

    def _take(self, event: SwitchEvent) -> None:
        """Merge an event of one flow with those of the others; called in the flow's thread."""
        key = (type(event), event.job, None if isinstance(event, BranchNarrowed) else event.worker)
        with self._reporting:
            reports = self._reported.get(key, 0) + 1
            self._reported[key] = reports
            if reports == (len(self._pumps) if isinstance(event, WorkerJoined) else 1):
                self._events.put(event)

    def _crashed(self, error: Exception) -> None:
        self._events.fail(RuntimeError(f"a flow of the switch crashed: {error!r}"))


def _attesting(machine: PumpedMachine, transport: Transport) -> Callable[[float], None] | None:
    """A function, to call before the machine's timers, that reports silent workers with an open connection as alive.

    None if the transport has no connections.
    """
    if not isinstance(transport, SeesConnections):
        return None

    def attest(now: float) -> None:
        for source in machine.overdue(now):
            if transport.connected(source):
                machine.sign_of_life(source, now)

    return attest
