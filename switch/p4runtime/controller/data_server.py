"""A programmable switch as a `Server` (switch/server/any_server.py)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import JobSpec, ParentRoute
from fanin.switch.p4runtime.controller.job_control import JobControl
from fanin.switch.p4runtime.controller.links import Link
from fanin.switch.server.event_queue import EventQueue

PACKET_WAIT_S = 0.2
"""Longest wait for a packet from the device, after which timers are handled."""


class DeviceServer:
    """Serves jobs on a device. Calls may come from any thread; a thread of this object handles the device's packets."""

    def __init__(
        self, control: JobControl, link: Link, ports: tuple[int, ...], close: Callable[[], None] = lambda: None
    ) -> None:
        """`close`: called to close the ports that carry the device's packets, if this process owns them."""
        self._control = control
        self._link = link
        self.ports = ports
        """Ports that workers send to."""
        self._close_ports = close
        self._turnstile = threading.Lock()
        """Guards `_control` and the attributes below."""
        self._closed = False
        self._events = EventQueue()
        self._thread = threading.Thread(target=self._serve, name="fanin device", daemon=True)
        self._thread.start()

    @property
    def description(self) -> str:
        """Description of the device, in words."""
        return self._link.description

    def admit(self, spec: JobSpec, *, share_memory: bool = True) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._control.admit(spec)

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute, *, share_memory: bool = True) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._control.admit(spec, parent)

    def remove(self, job: int) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._control.remove(job)

    def evict(self, job: int, worker: int) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._control.evict(job, worker)

    def suspect(self, job: int, worker: int) -> None:
        """Implements the interface `any_server.Server`. Takes effect within PACKET_WAIT_S."""
        with self._turnstile:
            self._control.suspect(job, worker, time.monotonic())

    def suspect_parent(self, job: int) -> None:
        """Implements the interface `any_server.Server`. Takes effect within PACKET_WAIT_S."""
        with self._turnstile:
            self._control.suspect_parent(job, time.monotonic())

    def set_quorum(self, job: int, quorum: int) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._control.set_quorum(job, quorum)

    def set_staleness(self, job: int, staleness: int) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._control.set_staleness(job, staleness)

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._control.admit_worker(job, worker, token)

    @property
    def event_fileno(self) -> int:
        """Implements the interface `any_server.Server`."""
        return self._events.fileno()

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        """Implements the interface `any_server.Server`. RuntimeError if the device is gone."""
        with self._turnstile:  # wait for a packet in progress, whose reply may be out before its event is queued
            pass
        return self._events.next(timeout_s)

    def counters(self) -> dict[str, int]:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            return self._control.counters()

    def job_counters(self, job: int) -> dict[str, int]:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            return self._control.counters(self._control.jobs[job].row)

    def member_counters(self, job: int) -> list[dict[str, int]]:
        """Empty: P4 programs count by job only."""
        return []

    def shared_memory(self, job: int) -> tuple[str, ...]:
        """Empty: packets must pass the pipeline."""
        return ()

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """Zeros: a device offers no shared memory."""
        return 0, 0

    def members(self, job: int) -> tuple[int, int, int]:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            placed = self._control.jobs[job]
            return placed.registered, placed.lost, placed.left

    def close(self) -> None:
        """Implements the interface `any_server.Server`."""
        with self._turnstile:
            self._closed = True
        self._close_ports()
        self._link.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._events.close()

    def _serve(self) -> None:
        try:
            while not self._closed:
                packet = self._link.next_packet(PACKET_WAIT_S)
                now = time.monotonic()
                with self._turnstile:
                    if packet is not None:
                        self._control.receive(packet, now)
                    timer = self._control.next_timer()
                    if timer is not None and timer <= now:
                        self._control.handle_timer(now)
                    while (event := self._control.next_event()) is not None:
                        self._events.put(event)
        except Exception as error:  # any error must reach the caller that waits for events
            self._events.fail(error)
