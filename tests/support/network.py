"""A network in virtual time: joins one switch machine with worker machines, and does to packets what networks do.

Rules of this file
------------------
* Nothing runs by itself: `run_until` takes the next thing that happens (a packet arrives, a timer is due), moves the
  clock there, and lets the machine concerned say what it has to send. So a run depends on its seed alone.
* The switch has address 0, worker w address 1 + w; `inject` lets a stranger speak from any address.
* Every worker has a link of its own, with the same qualities both ways. A link takes packets one after another at
  `bytes_per_s`, so that a window fills it; then each is lost, repeated, delayed and damaged by chance.
* Every AssertionError that this file raises names the seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fanin.events import SwitchEvent, WorkerEvent
from fanin.reduction import Reduction

SWITCH = 0
MAX_STEPS = 2_000_000
"""Things that happen in one run; more is a machine that never rests."""


class Machine(Protocol):
    """What both ends have in common."""

    def receive_datagram(self, data: bytes, source: int, now: float) -> None: ...
    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]: ...
    def next_timer(self) -> float | None: ...
    def handle_timer(self, now: float) -> None: ...
    def counters(self) -> dict[str, int]: ...


class Switch(Machine, Protocol):
    """A switch machine, twin or native."""

    def next_event(self) -> SwitchEvent | None: ...


class Worker(Machine, Protocol):
    """A worker machine, twin or native."""

    @property
    def ready(self) -> bool: ...
    @property
    def failed(self) -> bool: ...
    def submit(self, reduction: Reduction) -> int: ...
    def leave(self, now: float) -> None: ...
    def next_event(self) -> WorkerEvent | None: ...
    def outstanding(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Link:
    """Qualities of the path between one worker and the switch, for each direction. Probabilities are in 0..1."""

    delay_s: float = 50e-6
    bytes_per_s: float = 1.25e9
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Probability of being held back by up to `reorder_s`."""
    reorder_s: float = 500e-6
    corrupt: float = 0.0
    """Probability that one bit is flipped."""


@dataclass(order=True)
class _Arrival:
    at: float
    number: int
    destination: int
    data: bytes = field(compare=False)
    source: int = field(compare=False)


class Network:
    """One switch, some workers, and their links."""

    def __init__(self, switch: Switch, workers: Sequence[Worker], *, link: Link | None = None, seed: int = 0) -> None:
        self.now = 0.0
        self.seed = seed
        self.link = link or Link()
        self.switch_events: list[SwitchEvent] = []
        self.worker_events: list[list[WorkerEvent]] = [[] for _ in workers]
        self.bytes_sent = 0
        self._switch, self._workers = switch, workers
        self._random = random.Random(seed)
        self._in_flight: list[_Arrival] = []
        self._number = 0
        self._free_at: dict[tuple[int, int], float] = {}
        """When the link from one address to another has passed on what it was given."""
        self._cut: set[int] = set()
        self._stopped: dict[int, list[_Arrival]] = {}
        """Stopped machines, and what has arrived for each since."""
        self.wiretap: Callable[[float, int, int, bytes], bool] | None = None
        """Sees (now, source, destination, data) of every packet; where it returns False, the packet is lost."""

    # --- faults ---

    def cut(self, address: int) -> None:
        """From now on nothing gets to this address or away from it."""
        self._cut.add(address)

    def heal(self, address: int) -> None:
        """The address is connected again."""
        self._cut.discard(address)

    def stop(self, address: int) -> None:
        """Stop a machine, as SIGSTOP does: it neither receives nor sends, and what arrives waits."""
        self._stopped.setdefault(address, [])

    def resume(self, address: int) -> None:
        """Let a stopped machine go on: it takes in what has arrived, and then sees what time it is."""
        for arrival in self._stopped.pop(address):
            self._deliver(arrival)

    def inject(self, data: bytes, source: int, destination: int) -> None:
        """A packet from anybody arrives one delay from now, unharmed."""
        self._arrives(self.now + self.link.delay_s, data, source, destination)

    # --- running ---

    def start(self) -> None:
        """Let every machine say its first words."""
        for address in range(1 + len(self._workers)):
            self._speak(address)

    def submitted(self, worker: int) -> None:
        """The worker was given something: let it send."""
        self._speak(1 + worker)

    def run_until(self, finished: Callable[[], bool], *, limit_s: float) -> None:
        """Run until `finished`, which must happen within `limit_s` of virtual time."""
        assert self.try_until(finished, limit_s=limit_s), (
            f"not finished after {limit_s} s; seed {self.seed}, events {self.worker_events}, "
            f"counters {[worker.counters() for worker in self._workers]}"
        )

    def run_for(self, seconds: float) -> None:
        """Run for so long."""
        self.try_until(lambda: False, limit_s=seconds)

    def try_until(self, finished: Callable[[], bool], *, limit_s: float) -> bool:
        """Run until `finished` or until the limit; which of the two."""
        limit = self.now + limit_s
        for _ in range(MAX_STEPS):
            if finished():
                return True
            arrival_at = self._next_arrival()
            timer_at, address = self._next_timer()
            if min(arrival_at, timer_at) > limit:
                self.now = limit
                return finished()
            if arrival_at <= timer_at:
                self._deliver(heapq.heappop(self._in_flight))
            else:
                self.now = max(self.now, timer_at)
                self._machine(address).handle_timer(self.now)
                self._speak(address)
        raise AssertionError(f"a machine never rests: {MAX_STEPS} steps up to {self.now} s; seed {self.seed}")

    def _machine(self, address: int) -> Machine:
        return self._switch if address == SWITCH else self._workers[address - 1]

    def _next_arrival(self) -> float:
        return self._in_flight[0].at if self._in_flight else float("inf")

    def _next_timer(self) -> tuple[float, int]:
        timers = [
            (at, address)
            for address in range(1 + len(self._workers))
            if address not in self._stopped and (at := self._machine(address).next_timer()) is not None
        ]
        return min(timers, default=(float("inf"), SWITCH))

    def _deliver(self, arrival: _Arrival) -> None:
        self.now = max(self.now, arrival.at)
        if {arrival.source, arrival.destination} & self._cut or arrival.destination > len(self._workers):
            return  # lost, or an answer to a stranger
        if arrival.destination in self._stopped:
            self._stopped[arrival.destination].append(arrival)
            return
        self._machine(arrival.destination).receive_datagram(arrival.data, arrival.source, self.now)
        self._speak(arrival.destination)

    def _speak(self, address: int) -> None:
        """Take what a machine has to send and to report."""
        if address in self._stopped:
            return
        machine = self._machine(address)
        for data, destination in machine.datagrams_to_send(self.now):
            self._carry(data, address, destination)
        if address == SWITCH:
            while (switch_event := self._switch.next_event()) is not None:
                self.switch_events.append(switch_event)
        else:
            while (worker_event := self._workers[address - 1].next_event()) is not None:
                self.worker_events[address - 1].append(worker_event)

    def _carry(self, data: bytes, source: int, destination: int) -> None:
        link, chance = self.link, self._random.random
        self.bytes_sent += len(data)
        if self.wiretap is not None and not self.wiretap(self.now, source, destination, data):
            return
        done_at = max(self.now, self._free_at.get((source, destination), 0.0)) + len(data) / link.bytes_per_s
        self._free_at[source, destination] = done_at
        for _ in range(2 if chance() < link.duplicate else 1):
            at = done_at + link.delay_s
            if chance() < link.loss:
                continue
            if chance() < link.reorder:
                at += chance() * link.reorder_s
            damaged = chance() < link.corrupt
            self._arrives(at, self._damage(data) if damaged else data, source, destination)

    def _damage(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        damaged[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return bytes(damaged)

    def _arrives(self, at: float, data: bytes, source: int, destination: int) -> None:
        self._number += 1
        heapq.heappush(self._in_flight, _Arrival(at, self._number, destination, data, source))
