"""Devices, their streams and a switch in virtual time: what a pipeline queues, and in which order it can happen.

Streams are queues of commands that hardware queues hold, as CUDA's do: a blocked command at the head of one of these
blocks whatever lies behind it there, of other streams too. A copy reads when it begins and writes when it ends, an
engine sends a slot's bytes again until their sum has come, and every delay is drawn at random: so what is not ordered
goes wrong sooner or later, and shows in the bytes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fanin.emulation.simulator.event_queue import EventQueue
from fanin.host.torch.device.courier import Courier, Parcel
from fanin.host.torch.device.device import Action

Bytes = npt.NDArray[np.uint8]
LONGEST_S = 1e-3
"""Longest duration of one command, and of one step of an engine."""
HORIZON_S = 0.5
"""Nobody looks any longer after something that does not come: what stands still by then has a deadlock."""


class Clock:
    """Virtual time: actions at moments, in order. `queue`: of a simulated network, whose time it then is."""

    def __init__(self, seed: int, queue: EventQueue | None = None) -> None:
        self.random = random.Random(seed)
        self._queue = queue or EventQueue()

    @property
    def now_s(self) -> float:
        """Virtual time in seconds."""
        return self._queue.now

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call it so much later."""
        self._queue.after(seconds, action)

    def soon(self, action: Callable[[], None]) -> None:
        """Call it after a while that is drawn."""
        self.after(self.random.expovariate(8 / LONGEST_S), action)

    def run(self) -> None:
        """Until nothing is due."""
        while self._queue.next_at() < float("inf"):
            self._queue.step()


@dataclass(eq=False)
class FakeFlag:
    """A word that device and host share."""

    word: Bytes = field(default_factory=lambda: np.zeros(4, np.uint8))

    @property
    def value(self) -> int:
        """Value of the word as an unsigned number."""
        return int(self.word.view(np.uint32)[0])

    @value.setter
    def value(self, value: int) -> None:
        self.word.view(np.uint32)[0] = value


@dataclass(eq=False)
class FakeEvent:
    """A point in a stream."""

    come: bool = False


@dataclass(eq=False)
class Command:
    """One entry of a stream."""

    ready: Callable[[], bool]
    begin: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None
    takes_s: float | None = None
    """Its duration; None: drawn."""
    running: bool = False


@dataclass(eq=False)
class FakeStream:
    """Its name, and the hardware queue that holds it."""

    name: str
    queue: deque[Command] = field(repr=False)


def reached(stands: int, value: int) -> bool:
    """Whether a flag that stands there has come to the value, as the device compares: values count around."""
    return (stands - value) % (1 << 32) < 1 << 31


class FakeDevice:
    """`Device` with so many hardware queues, to which streams are dealt in turn."""

    def __init__(self, clock: Clock, queues: int = 32, copies_bytes_per_s: float = 0.0) -> None:
        """`copies_bytes_per_s`: rate of copies; 0: they take a time that is drawn, as everything else does."""
        self.clock = clock
        self._copies_bytes_per_s = copies_bytes_per_s
        self._queues: list[deque[Command]] = [deque() for _ in range(queues)]
        self._made = 0

    @property
    def idle(self) -> bool:
        """Whether every stream has come to its end."""
        return not any(self._queues)

    def stream(self, name: str) -> FakeStream:
        """Make a stream on the next hardware queue."""
        self._made += 1
        return FakeStream(name, self._queues[(self._made - 1) % len(self._queues)])

    def record(self, stream: FakeStream) -> FakeEvent:
        """Queue an event behind all that the stream was given so far."""
        event = FakeEvent()

        def come() -> None:
            event.come = True

        self._put(stream, Command(lambda: True, end=come))
        return event

    def wait_event(self, stream: FakeStream, event: FakeEvent) -> None:
        """Queue a wait for the event."""
        self._put(stream, Command(lambda: event.come))

    def copy(self, stream: FakeStream, target: Bytes, source: Bytes) -> None:
        """Queue a copy: the source is read when it begins, the target written when it ends."""
        assert len(target) == len(source)
        read: list[Bytes] = []

        def write() -> None:
            target[:] = read[0]

        takes_s = len(source) / self._copies_bytes_per_s if self._copies_bytes_per_s else None
        self._put(stream, Command(lambda: True, lambda: read.append(source.copy()), write, takes_s))

    def launch(self, stream: FakeStream, action: Action) -> None:
        """Queue the action, which stands for the kernel."""
        self._put(stream, Command(lambda: True, end=action))

    def wait_value(self, stream: FakeStream, flag: Any, value: int) -> None:
        """Queue a wait until the flag has come to the value."""
        self._put(stream, Command(lambda: reached(self.load(flag), value)))

    def write_value(self, stream: FakeStream, flag: Any, value: int) -> None:
        """Queue a write of the flag."""
        self._put(stream, Command(lambda: True, end=lambda: self.store(flag, value)))

    def raise_flag(self, flag: Any, value: int) -> None:
        """Set the flag now, and go on with the streams that wait for it."""
        self.store(flag, value)
        self._look()

    def load(self, flag: Any) -> int:
        """Value of a flag now."""
        return int(flag.value)

    def store(self, flag: Any, value: int) -> None:
        """Set a flag to a value."""
        flag.value = value

    def _put(self, stream: FakeStream, command: Command) -> None:
        stream.queue.append(command)
        self._look()

    def _look(self) -> None:
        for queue in self._queues:
            if queue and not queue[0].running and queue[0].ready():
                queue[0].running = True
                queue[0].begin()
                end = partial(self._end, queue)
                self.clock.soon(end) if queue[0].takes_s is None else self.clock.after(queue[0].takes_s, end)

    def _end(self, queue: deque[Command]) -> None:
        queue.popleft().end()
        self._look()


class FakeFlags:
    """`pipeline.Flags`: nobody waits in virtual time."""

    def wait(self, flag: FakeFlag, value: int, timeout_s: float) -> bool:
        """Whether it has come."""
        return reached(flag.value, value)


class FakeSwitch:
    """Sums of 32-bit words over the ranks of one session: the n-th submission of each meets the others'."""

    def __init__(self, clock: Clock, ranks: int) -> None:
        self._clock, self._ranks = clock, ranks
        self.sessions = [FakeSession(self, rank) for rank in range(ranks)]
        self._waiting: dict[int, list[tuple[FakeSession, Bytes, Bytes]]] = {}
        self.signatures: dict[int, set[Any]] = {}
        """Signatures that the ranks gave of each ticket: one, if all submit in one order."""

    def submitted(self, session: FakeSession, ticket: int, memory: Bytes, signature: Any) -> None:
        """Take one rank's contribution; the last one completes the sum."""
        self.signatures.setdefault(ticket, set()).add(signature)
        here = self._waiting.setdefault(ticket, [])
        here.append((session, memory, memory.copy()))
        if len(here) == self._ranks:
            total = sum(sent.view(np.uint32) for _, _, sent in here)
            for each, slot, sent in self._waiting.pop(ticket):
                self._clock.soon(lambda each=each, slot=slot, sent=sent: each.come(ticket, slot, sent, total))  # type: ignore[misc]


class FakeSession:
    """Session of one rank at the switch."""

    def __init__(self, switch: FakeSwitch, rank: int) -> None:
        self._switch, self.rank = switch, rank
        self._tickets = 0
        self.done: set[int] = set()
        self.rewritten = 0
        """Slots that were not as they had been submitted when their sum came: what is sent again would be wrong."""
        self.failure: Exception | None = None

    def submit(self, memory: Bytes, signature: Any) -> int:
        """The next ticket; the slot's memory is read now and written when the sum comes."""
        if self.failure is not None:
            raise self.failure
        self._tickets += 1
        self._switch.submitted(self, self._tickets, memory, signature)
        return self._tickets

    def come(self, ticket: int, slot: Bytes, sent: Bytes, total: Any) -> None:
        """The sum of one ticket."""
        if self.failure is not None:
            return
        self.rewritten += not np.array_equal(slot, sent)
        slot.view(np.uint32)[:] = total
        self.done.add(ticket)

    def settled(self, ticket: int) -> bool:
        """Whether `land` would return or raise what it is to raise."""
        return ticket in self.done

    def land(self, ticket: int, timeout_s: float) -> None:
        """Return for a ticket that is done; raise the failure after one (Session.wait)."""
        if self.failure is not None:
            raise self.failure
        assert ticket in self.done


class Settling(Protocol):
    """A session in virtual time, as a carrier sees it."""

    @property
    def failure(self) -> Exception | None:
        """The error that has ended the session, or None."""

    def settled(self, ticket: int) -> bool:
        """Whether to wait for the ticket would return or raise at once."""


class FakeCarrier:
    """Carries a courier's parcels, looking now and then, as threads come to it."""

    def __init__(self, clock: Clock, courier: Courier, session: Settling, horizon_s: float = HORIZON_S) -> None:
        self._clock, self._courier, self._session, self._horizon_s = clock, courier, session, horizon_s
        self._departing: deque[Parcel] = deque()
        self._arriving: deque[tuple[Parcel, int]] = deque()
        self._looking = False

    @property
    def busy(self) -> bool:
        """Whether parcels have not yet got their tickets (CourierThreads.busy)."""
        return self._courier.busy

    def close(self, timeout_s: float) -> None:
        """Do nothing: there are no threads."""

    def put(self, parcel: Parcel) -> None:
        """Queue the next parcel, in program order."""
        self._courier.queued()
        self._departing.append(parcel)
        self._again()

    def _again(self) -> None:
        if not self._looking and (self._departing or self._arriving):
            self._looking = True
            self._clock.soon(self._look)

    def _look(self) -> None:
        self._looking = False
        over = self._courier.error is not None or self._session.failure is not None
        if over and self._session.failure is not None:
            self._courier.fail(self._session.failure)
        if self._departing and (over or self._departing[0].written is None or self._departing[0].written(0.0)):
            parcel = self._departing.popleft()
            ticket = self._courier.departed(parcel)
            if ticket is not None:
                self._arriving.append((parcel, ticket))
        if self._arriving and (over or self._session.settled(self._arriving[0][1])):
            self._courier.arrived(*self._arriving.popleft())
        if over or self._clock.now_s < self._horizon_s:
            self._again()
