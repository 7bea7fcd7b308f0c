"""Trains in the simulator: native machines get all datagrams of one instant in one call, as from a socket.

Rules of this file
------------------
* Arrivals are rounded up to the next TICK_S, so that datagrams which a driver would read together come at one instant.
* A worker takes such a train in one call, and what it sends is judged like that of any worker.
* A switch is judged datagram by datagram (audit.py), which a train has no room for. So there are two: the first takes
  the datagrams one by one, is judged, and does all that the others see. The second takes the trains. After each, both
  must have sent, reported and counted the same.
* A leaf's order numbers depend on when it is asked what it sends; leaf_trains.py compares its two machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from fanin.emulation.simulator.machines import Switch, Worker
from fanin.emulation.simulator.violations import TrainError
from fanin.formats.trace import describe
from fanin.numerics.reduction import Reduction
from fanin.protocol.events import SwitchEvent, WorkerEvent
from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.wire import HEADER_BYTES, OFFSET_CHECKSUM, OFFSET_FLAGS, OFFSET_KIND, Flag, Kind, parse

TICK_S = 100e-6
"""Time within which arrivals are one train."""

IN_RUNS = ("packets_out", "bytes_out")
"""Counters of a job that are lower where its packets make longer runs."""

NO_TAG = bytes(HEADER_BYTES - OFFSET_CHECKSUM)

Train = list[tuple[bytes, int]]


class TakesTrains(Protocol):
    """The calls of a native machine beyond those of its twin."""

    def receive_datagrams(self, datagrams: Train, now: float) -> None:
        """Take in a train."""

    def regular(self) -> int:
        """Number of datagrams that were handled as part of a run."""


class SwitchInTrains(Switch, TakesTrains, Protocol):
    """A native switch machine."""


class WorkerInTrains(Worker, TakesTrains, Protocol):
    """A native worker machine."""


class TrainWorker:
    """A native worker machine that gets all datagrams of one instant in one call."""

    def __init__(self, machine: WorkerInTrains) -> None:
        self._machine = machine
        self._train: Train = []
        self._at_s = 0.0

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Keep a datagram until the train is whole, which the timer says."""
        self._train.append((data, source))
        self._at_s = now

    def datagrams_to_send(self, now: float) -> Train:
        """Nothing before the train is whole: a driver reads a socket to its end, and sends then."""
        return [] if self._train else self._machine.datagrams_to_send(now)

    def next_timer(self) -> float | None:
        """The end of a train, or else the machine's timer."""
        return self._at_s if self._train else self._machine.next_timer()

    def handle_timer(self, now: float) -> None:
        """Give the machine the train, and the time."""
        if self._train:
            train, self._train = self._train, []
            self._machine.receive_datagrams(train, now)
        at = self._machine.next_timer()
        if at is not None and at <= now:
            self._machine.handle_timer(now)

    def next_event(self) -> WorkerEvent | None:
        """See AnyWorkerMachine, which has all that follows."""
        return self._machine.next_event()

    def submit(self, reduction: Reduction) -> int:
        return self._machine.submit(reduction)

    def begin(self, base: int) -> None:
        self._machine.begin(base)

    def leave(self, now: float) -> None:
        self._machine.leave(now)

    def counters(self) -> dict[str, int]:
        """The machine's counters, and `regular`."""
        return self._machine.counters() | {"regular": self._machine.regular()}

    @property
    def failed(self) -> bool:
        return self._machine.failed

    @property
    def ready(self) -> bool:
        return self._machine.ready

    def outstanding(self) -> int:
        return self._machine.outstanding()


class TrainSwitch:
    """Two native switch machines: one gets datagrams one by one, and the other the same ones in trains."""

    def __init__(self, singly: Switch, in_trains: SwitchInTrains) -> None:
        self._singly, self._in_trains = singly, in_trains
        self._train: Train = []
        self._at_s = 0.0
        self._sent: Train = []
        """Datagrams that the first has sent since the train began."""
        self._events: list[SwitchEvent] = []
        """Events that it has reported since then."""
        self._slots: dict[int, int] = {}
        """By generation, the number of a job's slots."""

    # --- the five verbs ---

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        """Give the first machine a datagram, which the second one gets with all others of this instant."""
        if self._train and now != self._at_s:
            self._end_train()
        self._at_s = now
        self._train.append((data, source))
        self._singly.receive_datagram(data, source, now)

    def datagrams_to_send(self, now: float) -> Train:
        """Datagrams of the first machine."""
        sent = self._singly.datagrams_to_send(now)
        if self._train:
            self._sent += sent
        else:
            same("sent", sent, self._in_trains.datagrams_to_send(now))
        return sent

    def next_timer(self) -> float | None:
        """The end of a train, or else the first machine's timer."""
        return self._at_s if self._train else self._singly.next_timer()

    def handle_timer(self, now: float) -> None:
        """End the train, and give both machines the time."""
        self._end_train()
        at = self._singly.next_timer()
        if at is not None and at <= now:
            self._singly.handle_timer(now)
            self._in_trains.handle_timer(now)

    def next_event(self) -> SwitchEvent | None:
        """The first machine's next event."""
        event = self._singly.next_event()
        if not self._train:
            same("reported", event, self._in_trains.next_event())
        elif event is not None:
            self._events.append(event)
        return event

    def _end_train(self) -> None:
        if not self._train:
            return
        self._in_trains.receive_datagrams(self._train, self._at_s)
        sent = self._parts(self._in_trains.datagrams_to_send(self._at_s))
        same("sent", self._parts(self._sent), sent, in_words)
        events = iter(self._in_trains.next_event, None)
        same("reported", self._events, list(events))
        same("timer", self._singly.next_timer(), self._in_trains.next_timer())
        for job in self._singly.jobs():
            same("counted", _counts(self._singly, job), _counts(self._in_trains, job))
            same("members", self._singly.members(job), self._in_trains.members(job))
        self._train, self._sent, self._events = [], [], []

    def _parts(self, datagrams: Train) -> Train:
        """Packets without tags, and where they go, in an order that does not depend on how many are sent at once.

        Of several, bare results make runs (Packet.run), and each kind waits in a queue of its own.
        """
        parts: Train = []
        for data, destination in datagrams:
            whole = [data]
            if data[OFFSET_FLAGS] & Flag.RUN and data[OFFSET_KIND] == Kind.RESULT:
                packet = parse(data)
                slots = self._slots.get(packet.generation, 1)
                whole = [packet.part(index, slots).to_bytes() for index in range(packet.run)]
            parts += [(each[:OFFSET_CHECKSUM] + NO_TAG + each[HEADER_BYTES:], destination) for each in whole]
        return sorted(parts)

    # --- the calls of a controller: see AnySwitchMachine ---

    def _both(self) -> Sequence[Switch]:
        """Both machines, after the same datagrams."""
        self._end_train()
        return self._singly, self._in_trains

    def admit(self, spec: JobSpec) -> None:
        self._slots[spec.generation] = spec.slots
        for machine in self._both():
            machine.admit(spec)

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None:
        for machine in self._both():
            machine.admit_leaf(spec, uplink)

    def remove(self, job: int) -> None:
        for machine in self._both():
            machine.remove(job)

    def evict(self, job: int, worker: int, now: float) -> None:
        for machine in self._both():
            machine.evict(job, worker, now)

    def suspect(self, job: int, worker: int, now: float) -> None:
        for machine in self._both():
            machine.suspect(job, worker, now)

    def suspect_parent(self, job: int, now: float) -> None:
        for machine in self._both():
            machine.suspect_parent(job, now)

    def set_quorum(self, job: int, quorum: int, now: float) -> None:
        for machine in self._both():
            machine.set_quorum(job, quorum, now)

    def set_staleness(self, job: int, staleness: int, now: float) -> None:
        for machine in self._both():
            machine.set_staleness(job, staleness, now)

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        for machine in self._both():
            machine.admit_worker(job, worker, token)

    def jobs(self) -> list[int]:
        return self._singly.jobs()

    def members(self, job: int) -> tuple[int, int, int]:
        return self._singly.members(job)

    def counters(self) -> dict[str, int]:
        """The first machine's counters, and the second one's `regular`."""
        return self._singly.counters() | {"regular": self._in_trains.regular()}

    def job_counters(self, job: int) -> dict[str, int]:
        return self._singly.job_counters(job)

    def member_counters(self, job: int) -> list[dict[str, int]]:
        return self._singly.member_counters(job)


def _counts(machine: Switch, job: int) -> dict[str, int]:
    return {name: count for name, count in machine.job_counters(job).items() if name not in IN_RUNS}


def in_words(train: Train) -> list[str]:
    return [f"to {destination}: {describe(data)} {data[HEADER_BYTES:].hex()}" for data, destination in train]


T = TypeVar("T")


def same(what: str, singly: T, in_trains: T, in_words: Callable[[T], object] = repr) -> None:
    """Raise TrainError unless both machines have done the same."""
    if singly != in_trains:
        raise TrainError(
            f"{what}: {in_words(in_trains)} after a train, and {in_words(singly)} after the same datagrams one by one"
        )
