"""The pump engine: drives any worker machine, native or twin, over any transport, with one thread per flow.

Rules
-----
* A reduction goes to the machine of every flow, in the same order, under one lock: so all machines give it one ticket.
* A ticket is done when every flow has finished it. `Ready`, `Stands` (with the latest base), `RoundHeard` and
  `Departed` are reported when every flow has reported them, `MembersChanged` when the first has.
* The first failure of any flow fails the engine: first every pump is halted, so that nothing writes to tensors any
  more, then waiters are released, then `next_event` returns the failure.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from fanin.host.machine.any_worker_machine import AnyWorkerMachine
from fanin.interruptions import interrupts
from fanin.numerics.reduction import PackedReduction, Reduction
from fanin.protocol.events import (
    Departed,
    EngineStopped,
    MembersChanged,
    Ready,
    ReductionDone,
    RoundHeard,
    Spoiled,
    Stands,
    WorkerEvent,
)
from fanin.transports.pump import Pump
from fanin.transports.transport import Transport


class PumpEngine:
    """An engine (engine.py) over `flows`, pairs of a machine and its transport; running when it is made."""

    def __init__(
        self,
        flows: Sequence[tuple[AnyWorkerMachine, Transport]],
        *,
        description: str,
        name: str = "fanin",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = os.getpid()
        """Process that made the engine. A forked child has none of its threads: submitting, waiting and leaving raise
        there, and `close` does nothing.
        """
        self.description = description
        """Machine, loop and transport, in words."""
        self._clock = clock
        self._machines = [machine for machine, _ in flows]
        self._submitting = threading.Lock()
        self._changed = threading.Condition()
        """Lock of the attributes below, notified when they change."""
        self._submitted = 0
        self._offered = 0
        """The last ticket whose reduction a machine may have taken."""
        self._unfinished: dict[int, int] = {}
        """By ticket: number of flows that have not finished it."""
        self._owners: dict[int, object] = {}
        """By ticket: what keeps the memory alive for as long as a machine may touch it."""
        self._change: MembersChanged | None = None
        """The last change of membership that was reported."""
        self._stands: list[int] = []
        """Bases from which the flows of a newcomer can begin, as far as they have reported them."""
        self._heard = [0] * len(flows)
        """By flow: one past the newest round that it has reported by RoundHeard."""
        self._unready = len(flows)
        self._remaining = len(flows)
        """Flows that have not departed."""
        self._confirmed = True
        """Whether all flows that have departed got the echo of their BYE."""
        self._events: deque[WorkerEvent] = deque()
        self._subscribed = False
        self._failed = False
        self.spoiled = 0
        """Number of `Spoiled` events so far."""
        self._pumps = [
            Pump(
                machine,
                transport,
                clock,
                lambda event, flow=flow: self._take(flow, event),  # type: ignore[misc]
                lambda error, flow=flow: self._fail(EngineStopped(f"flow {flow}: {error!r}")),  # type: ignore[misc]
                f"{name} flow {flow}",
            )
            for flow, (machine, transport) in enumerate(flows)
        ]
        # Daemons, so that they never keep an interpreter from ending.
        self._threads = [threading.Thread(target=pump.run, name=pump.name, daemon=True) for pump in self._pumps]
        for thread in self._threads:
            thread.start()

    @property
    def failed(self) -> bool:
        """Whether a flow has failed, or the engine is closed."""
        return self._failed

    @property
    def trouble(self) -> str:
        """The first flow's complaint, if any."""
        return next((pump.transport.trouble for pump in self._pumps if pump.transport.trouble), "")

    def submit(self, reduction: Reduction) -> int:
        """Queue a reduction on every flow and return its ticket; after a failure one that is never done."""
        self._refuse_children()
        with self._submitting:
            ticket = self._submitted + 1
            with self._changed:
                self._unfinished[ticket] = len(self._machines)
                self._owners[ticket] = reduction.owner
            try:
                self._submit_to_machines(ticket, reduction)
            except BaseException as error:
                if interrupts(error) and self._offered == ticket:  # Ctrl-C, or a signal handler that raises
                    # Some machines may have the reduction: they are halted before its memory may be freed.
                    self._fail(EngineStopped(f"submitting was interrupted: {error!r}"))
                    raise
                # Machines of one kind and spec refuse the same reductions, so if the first refuses, none has it.
                with self._changed:
                    del self._unfinished[ticket], self._owners[ticket]
                raise
            self._submitted = ticket
        for pump in self._pumps:
            pump.transport.wake()
        return ticket

    def submit_and_wait(self, packed: PackedReduction, timeout_s: float, owner: object) -> int:
        """Submit a reduction and wait for it; return 0 if it is done and nothing was ever spoiled, else its ticket."""
        ticket = self.submit(Reduction.of(packed, owner))
        return 0 if self.wait(ticket, timeout_s) and not self.spoiled else ticket

    def wait(self, ticket: int, timeout_s: float) -> bool:
        """Wait until the reduction is done, the engine has failed, or time is up; return whether it is done."""
        self._check(ticket)
        with self._changed:
            self._changed.wait_for(lambda: self._failed or ticket not in self._unfinished, timeout_s)
            return ticket not in self._unfinished

    def done(self, ticket: int) -> bool:
        """Whether every flow has finished the reduction."""
        self._check(ticket)
        with self._changed:
            return ticket not in self._unfinished

    def subscribe(self) -> None:
        """Report ReductionDone and RoundHeard as well from now on."""
        with self._changed:
            self._subscribed = True

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        """The next event; waits up to `timeout_s` for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._events, timeout_s)
            return self._events.popleft() if self._events else None

    def counters(self) -> dict[str, int]:
        """Return the counters' sums over flows; of srtt_us the largest value."""
        total: dict[str, int] = {}
        for machine, pump in zip(self._machines, self._pumps, strict=True):
            with pump.lock:
                counted = machine.counters()
            for key, value in counted.items():
                total[key] = max(total.get(key, 0), value) if key == "srtt_us" else total.get(key, 0) + value
        return total

    def begin(self, base: int) -> None:
        """Let a newcomer's reductions begin with `base`, on every flow."""
        for machine, pump in zip(self._machines, self._pumps, strict=True):
            with pump.lock:
                if not self._failed:
                    machine.begin(base)
            pump.transport.wake()

    def leave(self, timeout_s: float) -> bool:
        """Say BYE on every flow and wait for the echoes; True when all came."""
        self._refuse_children()
        for machine, pump in zip(self._machines, self._pumps, strict=True):
            with pump.lock:
                if self._failed:
                    return False
                machine.leave(self._clock())
            pump.transport.wake()
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._remaining == 0, timeout_s)
            return self._remaining == 0 and self._confirmed

    def close(self) -> None:
        """Stop the threads, release waiters and close the transports."""
        if os.getpid() != self._process:
            return
        self._halt()
        for pump, thread in zip(self._pumps, self._threads, strict=True):
            pump.stop(thread)

    def _refuse_children(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "this engine belongs to the process that this one was forked from; a child that takes part in a job "
                "joins it by itself"
            )

    def _check(self, ticket: int) -> None:
        self._refuse_children()
        if not 1 <= ticket <= self._submitted:
            raise ValueError(f"ticket {ticket} was never given out; the last one is {self._submitted}")

    def _submit_to_machines(self, ticket: int, reduction: Reduction) -> None:
        for machine, pump in zip(self._machines, self._pumps, strict=True):
            with pump.lock:
                if self._failed or machine.failed:  # the ticket is never done, and the failure's event says why
                    return
                self._offered = ticket
                given = machine.submit(reduction)
                assert given == ticket, f"a machine gave ticket {given} for {ticket}"

    def _take(self, flow: int, event: WorkerEvent) -> None:
        """Handle an event of one flow; called in the thread of that flow's pump."""
        if isinstance(event, ReductionDone):
            with self._changed:
                self._unfinished[event.ticket] -= 1
                if self._unfinished[event.ticket] == 0:
                    del self._unfinished[event.ticket], self._owners[event.ticket]
                    if self._subscribed:
                        self._events.append(event)
                    self._changed.notify_all()
        elif isinstance(event, Spoiled):
            with self._changed:
                self._events.append(event)
                self.spoiled += 1
        elif isinstance(event, MembersChanged):  # every flow reports each change, in any order
            with self._changed:
                last = self._change
                if last is None or event.change > last.change:
                    # Flows may see a loss and a newcomer in different orders, so `gone` and `come` of this flow's
                    # event need not fit the event that was reported last: they are computed from that one.
                    if last is not None:
                        gone, come = last.members & ~event.members, event.members & ~last.members
                        event = replace(event, gone=gone, come=come)
                    self._change = event
                    self._events.append(event)
                    self._changed.notify_all()
        elif isinstance(event, Stands):
            with self._changed:
                self._stands.append(event.base)
                # Reductions begin with one base in all slots of all flows: the flow that is furthest decides.
                if len(self._stands) == len(self._pumps):
                    self._events.append(Stands(max(self._stands)))
                    self._changed.notify_all()
        elif isinstance(event, RoundHeard):
            with self._changed:
                before = min(self._heard)
                self._heard[flow] = event.base + 1
                if self._subscribed and min(self._heard) > before:  # the last flow to hear of it
                    self._events.append(RoundHeard(min(self._heard) - 1))
                    self._changed.notify_all()
        elif isinstance(event, Ready):
            with self._changed:
                self._unready -= 1
                if self._unready == 0:
                    self._events.append(event)
                    self._changed.notify_all()
        elif isinstance(event, Departed):
            with self._changed:
                self._remaining -= 1
                self._confirmed = self._confirmed and event.confirmed
                if self._remaining == 0:
                    self._events.append(Departed(self._confirmed))
                    self._changed.notify_all()
        else:
            self._fail(event)

    def _fail(self, event: WorkerEvent) -> None:
        if self._halt():
            with self._changed:
                self._events.append(event)
                self._changed.notify_all()

    def _halt(self) -> bool:
        """Stop touching tensors, then release waiters; whether this call was the first to do so."""
        for pump in self._pumps:
            pump.halt()
        with self._changed:
            first, self._failed = not self._failed, True
            self._owners = dict.fromkeys(self._unfinished)  # no machine touches their memory any more
            self._changed.notify_all()
        return first
