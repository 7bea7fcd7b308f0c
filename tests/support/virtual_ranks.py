"""Ranks with a device each, in virtual time: reducers of the product over fake streams, real machines and links.

    device    streams are queues of commands that take a time each (fake_device.py); memory is the host's
    courier   the product's, looked at now and then instead of by threads
    session   the product's worker machine at the product's switch machine
    network   the simulator's: one link per rank, for its sessions of words and of codes

One thread plays everybody: whatever blocks it, as a `wait` that does not only order streams, stops the world.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, cast
from unittest import mock

import torch

from fanin.errors import CollectiveTimeoutError, FaninError, WorkerLostError
from fanin.host.torch.device import flags
from fanin.host.torch.device import reducer as reducer_module
from fanin.host.torch.device.courier import Courier
from fanin.host.torch.device.device import Memory
from fanin.host.torch.device.reducer import DeviceReducer, Means
from fanin.host.torch.handles.call import Call
from fanin.host.torch.handles.completion import Completion
from fanin.host.torch.handles.failures import Failures
from fanin.host.torch.handles.work import FaninWork
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.events import ReductionDone, WorkersGone
from fanin.protocol.job import JobSpec
from tests.support.builders import job_spec
from tests.support.cluster import MEMORY_BYTES, SWITCH_MACHINES, worker_machine
from tests.support.fake_device import Clock, FakeCarrier, FakeDevice, FakeEvent, FakeStream
from tests.support.host_device import TensorArithmetic
from tests.support.network import SWITCH, Link, Playground, SharedLink

TIMEOUT_S = 2.0
"""Timeout of collectives: virtual seconds, and real ones of whatever blocks although it must not."""
GARBAGE = 0xA5
"""Byte with which a device's memory is filled until somebody writes it."""
ELEMENTS = {
    torch.float32: Element.FLOAT32, torch.bfloat16: Element.BFLOAT16, torch.float16: Element.FLOAT16,
    torch.int32: Element.INT32,
}  # fmt: skip

Program = Generator[None, None, None]


class VirtualDevice(FakeDevice):
    """`CudaDevice`, by the way "value", in virtual time. Memory is tensors of the host, flags are addresses.

    Streams are torch's in that one is current: the program's own at first.
    """

    way = "value"
    device = torch.device("cpu")

    def __init__(self, clock: Clock, queues: int, copies_bytes_per_s: float) -> None:
        super().__init__(clock, queues, copies_bytes_per_s)
        self.program = self._now = self.stream("program")

    def current(self) -> FakeStream:
        """The stream that the program works on."""
        return self._now

    @contextlib.contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        """Another stream is the current one."""
        before, self._now = self._now, stream
        yield
        self._now = before

    def compute(self, action: Callable[[], Any]) -> None:
        """A kernel of the program's own, on its current stream."""
        self.launch(self._now, action)

    def look(self, seen: dict[Any, torch.Tensor], at: Any, x: torch.Tensor) -> None:
        """A kernel of the program's own that keeps what the current stream sees of a tensor, as `seen[at]`."""
        self.compute(lambda: seen.update({at: x.clone()}))

    def copy(self, stream: FakeStream, target: Memory, source: Memory) -> None:
        """Queue a copy of bytes: the source is read when it begins, the target written when it ends."""
        super().copy(stream, target.detach().numpy(), source.detach().numpy())

    def load(self, flag: int) -> int:
        """Value of the flag at an address."""
        return flags.load(flag)

    def store(self, flag: int, value: int) -> None:
        """Set the flag at an address."""
        flags.store(flag, value)

    def done(self, event: FakeEvent) -> bool:
        """Whether the event has come."""
        return event.come

    def join(self, event: FakeEvent, timeout_s: float | None) -> bool:
        """Let the current stream wait for the event; True, at once."""
        self.wait_event(self._now, event)
        return True

    def pinned(self, count_bytes: int) -> torch.Tensor:
        """Memory, filled with zeros."""
        return torch.zeros(count_bytes, dtype=torch.uint8)

    def allocate(self, stream: FakeStream, count_bytes: int) -> torch.Tensor:
        """Memory that holds what somebody has left there."""
        return torch.full((count_bytes,), GARBAGE, dtype=torch.uint8)

    def retire(self, stream: FakeStream, memory: Memory, beside: Memory) -> None:
        """Nothing is freed in virtual time."""

    def close(self) -> None:
        """Do nothing: there are no threads."""


class MachineSession:
    """`AnySession` as far as a reducer asks, over a worker machine."""

    spoiled = False

    def __init__(self, playground: Playground, spec: JobSpec, rank: int, address: int) -> None:
        self.spec, self.rank, self.size = spec, rank, spec.workers
        self._playground, self._address = playground, address
        self._machine = worker_machine("twin", spec, rank)
        self._seen = 0
        self._done: set[int] = set()
        self._began_s: dict[int, float] = {}
        self._failure: FaninError | None = None
        playground.attach(address, self._machine)

    @property
    def ready(self) -> bool:
        """Whether the switch has answered."""
        return self._machine.ready

    @property
    def failure(self) -> FaninError | None:
        """The error that has ended the session, or None."""
        self._listen()
        return self._failure

    def fail(self, error: FaninError) -> None:
        """The session ends with that error."""
        self._failure = self._failure or error

    def submit(self, reduction: Reduction) -> int:
        """Submit to the machine, and return the ticket."""
        if self.failure is not None:
            raise self.failure
        ticket = self._machine.submit(reduction)
        self._began_s[ticket] = self._playground.now
        self._playground.speak(self._address)
        return ticket

    def settled(self, ticket: int) -> bool:
        """Whether the ticket is done, or late."""
        self._listen()
        return ticket in self._done or self._playground.now >= self._began_s[ticket] + TIMEOUT_S

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Return for a ticket that is done, and raise for any other: nobody waits in virtual time."""
        if self.failure is not None:
            raise self.failure
        if ticket not in self._done:
            raise CollectiveTimeoutError(f"no result after {timeout_s:g} s")

    def done(self, ticket: int) -> bool:
        """Whether the ticket is done."""
        self._listen()
        return ticket in self._done

    def _listen(self) -> None:
        events = self._playground.events[self._address]
        for event in events[self._seen :]:
            if isinstance(event, ReductionDone):
                self._done.add(event.ticket)
            elif isinstance(event, WorkersGone):
                gone = event.lost | event.left
                lost = tuple(rank for rank in range(self.size) if gone >> rank & 1)
                self.fail(WorkerLostError(lost, f"rank {lost[0]} is gone"))
        self._seen = len(events)


class VirtualFlags:
    """`pipeline.Flags`: of one rank alone, a call that must wait for room holds its thread, and so plays the others."""

    def __init__(self, world: VirtualWorld, rank: int) -> None:
        self._world, self._rank = world, rank

    def wait(self, flag: int, value: int, timeout_s: float) -> bool:
        """Whether the flag has come, at once or, for a call of the rank that is held, within so much virtual time."""

        def come() -> bool:
            return flags.reached(flags.load(flag), value)

        if self._rank != self._world.held_rank or timeout_s < TIMEOUT_S:
            return come()
        return self._world.playground.try_until(come, limit_s=timeout_s)


class VirtualGroup:
    """One rank's part of one group."""

    def __init__(self, world: VirtualWorld, number: int, rank: int, slots: int) -> None:
        self.device = world.devices[rank]
        self._flags = VirtualFlags(world, rank)
        self.words, self.codes = (world.session(2 * number + second, rank) for second in range(2))
        sessions = {"words": self.words, "codes": self.codes}

        def carrier(courier: Courier, name: str) -> FakeCarrier:
            return FakeCarrier(world.clock, courier, sessions[name], horizon_s=float("inf"))

        means = Means(
            words=cast(Any, self.words), codes=lambda: cast(Any, self.codes), arithmetic=TensorArithmetic(),
            make_device=lambda _device, _failed: self.device, waits=lambda _device: "in virtual time",
            divisor=float(world.ranks), slots=slots,
        )  # fmt: skip
        failures = Failures(f"group {number}", rank, world.ranks, list(range(world.ranks)))
        with mock.patch.object(reducer_module, "CourierThreads", carrier):
            self.reducer = DeviceReducer(means, failures, Completion())

    def average(self, tensor: torch.Tensor, lanes: int = 8, **fields: Any) -> FaninWork:
        """Start the average over the ranks, in place; a sum of integers."""
        element = ELEMENTS[tensor.dtype]
        call = Call(
            "all_reduce", tensor, [tensor], timeout_s=TIMEOUT_S, kept=tensor, element=element, lanes=lanes,
            average=element.floating, **fields,
        )  # fmt: skip
        with mock.patch.object(flags, "AddressFlags", return_value=self._flags):
            return self.reducer.submit(call)

    def lose(self, error: FaninError) -> None:
        """Both sessions end with that error."""
        self.words.fail(error)
        self.codes.fail(error)


class VirtualWorld:
    """Some ranks, their devices and links, and groups of all ranks."""

    def __init__(
        self, seed: int = 0, *, ranks: int = 2, groups: int = 1, queues: int = 32, ring_slots: int = 3,
        link: Link | None = None, copies_bytes_per_s: float = 0.0, **job: Any,
    ) -> None:  # fmt: skip
        """`ring_slots`: of each ring of words. `link`: of each rank. `copies_bytes_per_s`: as FakeDevice has it.
        `job`: fields of the jobs' specs."""
        self.ranks = ranks
        self.held_rank = -1
        """The rank whose calls are held until there is room on its device; no more than one, by one thread."""
        self.playground = Playground(seed=seed)
        self.clock = Clock(seed, self.playground.queue)
        self.spec, *_ = self._specs = [
            job_spec(workers=ranks, job=7 + number, **{"slots": 16, "words_per_packet": 64, **job})
            for number in range(2 * groups)
        ]
        """Jobs: of words and of codes, group by group; `spec` is the first of words."""
        switch = SWITCH_MACHINES["twin"](MEMORY_BYTES)
        for spec in self._specs:
            switch.admit(spec)
        self.playground.attach(SWITCH, switch)
        addresses = [[self._address(number, rank) for number in range(len(self._specs))] for rank in range(ranks)]
        self.links: list[SharedLink] = [self.playground.share(each, link or Link()) for each in addresses]
        self.devices = [VirtualDevice(self.clock, queues, copies_bytes_per_s) for _ in range(ranks)]
        self._sessions: list[MachineSession] = []
        self.groups = [
            [VirtualGroup(self, number, rank, ring_slots) for number in range(groups)] for rank in range(ranks)
        ]
        self._playing = 0
        self.until(lambda: all(session.ready for session in self._sessions))

    def _address(self, number: int, rank: int) -> int:
        return 1 + number * self.ranks + rank

    def session(self, number: int, rank: int) -> MachineSession:
        """Make a rank's session of a job."""
        made = MachineSession(self.playground, self._specs[number], rank, self._address(number, rank))
        self._sessions.append(made)
        return made

    def play(self, rank: int, program: Callable[[list[VirtualGroup]], Program], after_s: float = 0.0) -> None:
        """From then on a rank runs a program on its part of each group: a step up to each `yield`, at drawn moments."""
        running = program(self.groups[rank])
        self._playing += 1

        def step() -> None:
            for _ in running:
                self.clock.soon(step)
                return
            self._playing -= 1

        self.clock.after(after_s, step)

    def until(self, finished: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Run until `finished`, which must happen within so much virtual time."""
        self.playground.run_until(finished, limit_s=limit_s)

    def run(self) -> None:
        """Until all programs have ended, and all streams of all devices."""
        self.until(lambda: self.still)

    @property
    def still(self) -> bool:
        """Whether every program has ended, and every stream has come to its end."""
        return not self._playing and all(device.idle for device in self.devices)

    def lost_packets(self) -> int:
        """Packets that links have lost by chance."""
        return sum(pipe.lost for each in self.links for pipe in (each.up, each.down))

    def on_all(self, program: Callable[[int, list[VirtualGroup]], Program], late_s: Sequence[float] = ()) -> None:
        """Play one program on every rank, which is told its rank; rank r begins `late_s[r]` later, where given."""
        for rank in range(self.ranks):
            self.play(rank, partial(program, rank), late_s[rank] if late_s else 0.0)
