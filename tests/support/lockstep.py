"""A worker machine that is two: the twin and the native one get the same, and must do the same, call by call."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np

from fanin.host.machine.worker_machine import WorkerMachine
from fanin.numerics.reduction import Reduction
from fanin.protocol.events import WorkerEvent
from fanin.protocol.job import JobSpec


class Lockstep:
    """Both machines. The twin reduces a copy of the memory, which must hold the same in the end."""

    def __init__(self, spec: JobSpec, worker: int, *, native: Any, **given: Any) -> None:
        self._twin = WorkerMachine(spec, worker, **given)
        self._native = native(spec, worker, **given)
        self._pairs: list[tuple[Any, Any]] = []
        self._events: deque[WorkerEvent] = deque()

    def submit(self, reduction: Reduction) -> int:
        """The native machine gets the memory itself. `owner` must hold the arrays (tests/support/cluster.py)."""
        assert isinstance(reduction.owner, tuple)
        copies: dict[int, Any] = {}
        for array in reduction.owner:
            if array is not None and id(array) not in copies:
                copies[id(array)] = np.array(array)
                self._pairs.append((array, copies[id(array)]))
        source, destination = (copies[id(array)] for array in reduction.owner[:2])
        residual = reduction.owner[2]
        moved = dataclasses.replace(
            reduction,
            source=source.ctypes.data,
            destination=destination.ctypes.data,
            residual=0 if residual is None else copies[id(residual)].ctypes.data,
            owner=copies,
        )
        ticket = self._twin.submit(moved)
        assert self._native.submit(reduction) == ticket
        return ticket

    def begin(self, base: int) -> None:
        """Begin both machines of a newcomer at that base."""
        self._twin.begin(base)
        self._native.begin(base)
        self._compare()

    def leave(self, now: float) -> None:
        self._twin.leave(now)
        self._native.leave(now)
        self._compare()

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        self._twin.receive_datagram(data, source, now)
        self._native.receive_datagram(data, source, now)
        self._compare()

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        datagrams = self._twin.datagrams_to_send(now)
        assert self._native.datagrams_to_send(now) == datagrams
        self._compare()
        return datagrams

    def next_timer(self) -> float | None:
        return self._twin.next_timer()

    def handle_timer(self, now: float) -> None:
        self._twin.handle_timer(now)
        self._native.handle_timer(now)
        self._compare()

    def next_event(self) -> WorkerEvent | None:
        event = self._twin.next_event()
        assert self._native.next_event() == event
        return event

    def outstanding(self) -> int:
        return self._twin.outstanding()

    def counters(self) -> dict[str, int]:
        return self._twin.counters()

    @property
    def ready(self) -> bool:
        return self._twin.ready

    @property
    def failed(self) -> bool:
        return self._twin.failed

    def _compare(self) -> None:
        twin, native = self._twin, self._native
        assert native.next_timer() == twin.next_timer()
        assert native.counters() == twin.counters()
        assert (native.ready, native.failed, native.outstanding()) == (twin.ready, twin.failed, twin.outstanding())

    def compare_memory(self) -> None:
        """Everything that was ever submitted holds the same bits in both."""
        for given, copy in self._pairs:
            assert given.tobytes() == copy.tobytes()
