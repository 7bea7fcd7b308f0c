"""The loop that drives a machine over a transport: send what is due, wait, take in what came, let timers fire.

The clock is passed in, and the transport does the input and output: so this is shared by workers and switches, and runs
in virtual time as well. A `Pump` is one machine and one transport; its owner starts a thread that `run`s it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from fanin.protocol.machine import Machine
from fanin.transports.transport import Transport

MAX_WAIT_S = 1.0
"""Longest sleep. Timers and `wake` end it sooner; this only bounds what a lost wake-up could cost."""
STOP_TIMEOUT_S = 5.0
"""How long `stop` waits for a thread that never blocks longer than a turn."""

AnyEvent = TypeVar("AnyEvent")

_log = logging.getLogger("fanin.pump")


class Pump(Generic[AnyEvent]):
    """Drives `machine` over `transport`. Other callers of the machine hold `lock`, and `wake` the pump afterwards.

    `on_event` and `on_crash` are called by `run`, without the lock. After a crash (an exception that no machine or
    transport should raise) `run` returns. `before_timers` is called under the lock with the time, before timers that
    are due.
    """

    def __init__(
        self,
        machine: Machine[AnyEvent],
        transport: Transport,
        clock: Callable[[], float],
        on_event: Callable[[AnyEvent], None],
        on_crash: Callable[[Exception], None],
        name: str,
        before_timers: Callable[[float], None] | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.name = name
        self.transport = transport
        self._machine = machine
        self._clock = clock
        self._on_event = on_event
        self._on_crash = on_crash
        self._before_timers = before_timers
        self._halted = threading.Event()

    def run(self) -> None:
        """Turn until halted, or until something crashes."""
        try:
            while not self._halted.is_set():
                self.turn()
        except Exception as error:
            _log.exception("%s crashed", self.name)
            self._on_crash(error)

    def turn(self, longest_wait_s: float = MAX_WAIT_S) -> None:
        """One round of the loop; sleeps at most `longest_wait_s`."""
        with self.lock:
            if self._halted.is_set():
                return
            outgoing = self._machine.datagrams_to_send(self._clock())
            timer = self._machine.next_timer()
        if outgoing:
            self.transport.send(outgoing)
        wait_s = longest_wait_s if timer is None else min(max(timer - self._clock(), 0.0), longest_wait_s)
        arrived = self.transport.receive(wait_s)
        with self.lock:
            if self._halted.is_set():
                return
            now = self._clock()
            for data, source in arrived:
                self._machine.receive_datagram(data, source, now)
            timer = self._machine.next_timer()
            if timer is not None and timer <= now:
                if self._before_timers is not None:
                    self._before_timers(now)
                self._machine.handle_timer(now)
            events = []
            while (event := self._machine.next_event()) is not None:
                events.append(event)
        for event in events:
            self._on_event(event)

    def halt(self) -> None:
        """Make the pump call the machine no more. Does not wait for `run` to return."""
        with self.lock:
            self._halted.set()
        self.transport.wake()

    def stop(self, thread: threading.Thread) -> None:
        """Halt, wait for the thread that runs it, close the transport. Not from that thread."""
        self.halt()
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            _log.error("%s did not stop within %g s; its transport stays open", self.name, STOP_TIMEOUT_S)
        else:
            self.transport.close()
