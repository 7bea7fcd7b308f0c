"""The simulator's network, as tests of single machines want it: machines at addresses, and hands on the wires.

Rules of this file
------------------
* Time, links and chance are the simulator's (emulation/simulator/virtual_network.py): a run depends on its seed alone.
* In a `Network` the switch has address 0, worker w address 1 + w; `inject` lets a stranger speak from any address.
* Every AssertionError that this file raises names the seed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from fanin.emulation.simulator import virtual_network
from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.links import Link as Link
from fanin.emulation.simulator.links import SharedLink as SharedLink
from fanin.emulation.simulator.machines import Switch as Switch
from fanin.emulation.simulator.machines import Worker as Worker
from fanin.protocol.events import WorkerEvent
from fanin.protocol.machine import Machine

SWITCH = 0
MAX_STEPS = 2_000_000
"""Things that happen in one run; more is a machine that never rests."""
QUEUE_BYTES = 1 << 30
"""Links here lose what `loss` says, and nothing because a queue is full."""


class Wires(virtual_network.Network):
    """The simulator's network, with addresses that can be cut off and a tap on everything that is sent."""

    def __init__(self, queue: EventQueue, link: Link, dice: random.Random) -> None:
        super().__init__(queue, link, dice)
        self.cut_off: set[int] = set()
        self.wiretap: Callable[[float, int, int, bytes], bool] | None = None
        self.late_s: dict[int, float] = {}
        """By address, how late its process wakes up, at most."""
        self._wakes_at: dict[int, float] = {}

    def carry(self, source: int, destination: int, data: bytes) -> None:
        """See the base class."""
        if self.wiretap is not None and not self.wiretap(self.queue.now, source, destination, data):
            return
        if source not in self.late_s:
            super().carry(source, destination, data)
            return
        now = self.queue.now
        if self._wakes_at.get(source, 0.0) <= now:
            self._wakes_at[source] = now + self._dice.random() * self.late_s[source]
        self.queue.at(self._wakes_at[source], super().carry, source, destination, data)

    def arrive(self, source: int, destination: int, data: bytes) -> None:
        """See the base class."""
        if not {source, destination} & self.cut_off:
            super().arrive(source, destination, data)


class Playground:
    """Machines at addresses, each asked for its events after every step."""

    def __init__(self, *, link: Link | None = None, seed: int = 0) -> None:
        self.seed = seed
        self.events: dict[int, list[Any]] = {}
        """By address, what a machine has reported."""
        self._machines: dict[int, Any] = {}
        self._nodes: dict[int, virtual_network.Node] = {}
        self._wires = Wires(EventQueue(), Link(), random.Random(seed))
        self.link = link or Link()

    @property
    def now(self) -> float:
        """Virtual time in seconds."""
        return self._wires.queue.now

    @property
    def queue(self) -> EventQueue:
        """The actions that are to happen, for others who live in this time."""
        return self._wires.queue

    @property
    def link(self) -> Link:
        """Link of every node, in each direction; it may be replaced while the network runs."""
        return self._wires.link

    @link.setter
    def link(self, link: Link) -> None:
        self._wires.link = dataclasses.replace(link, queue_bytes=QUEUE_BYTES)

    @property
    def wiretap(self) -> Callable[[float, int, int, bytes], bool] | None:
        """Sees (now, source, destination, data) of every packet; where it returns False, the packet is lost."""
        return self._wires.wiretap

    @wiretap.setter
    def wiretap(self, tap: Callable[[float, int, int, bytes], bool] | None) -> None:
        self._wires.wiretap = tap

    def attach(self, address: int, machine: Machine[Any]) -> None:
        """A machine comes to an address, in the place of one that was there, and says its first words."""
        if address in self._nodes:
            self._wires.detach(self._nodes[address])
        self._machines[address] = machine
        self.events.setdefault(address, [])
        self._nodes[address] = self._wires.attach(address, machine, lambda: self._listen(address, machine))

    def _listen(self, address: int, machine: Any) -> None:
        while (event := machine.next_event()) is not None:
            self.events[address].append(event)

    def share(self, addresses: Sequence[int], link: Link) -> SharedLink:
        """From now on these addresses are behind one link, whose queues are as long as it says."""
        shared = SharedLink(link)
        self._wires.behind.update(dict.fromkeys(addresses, shared))
        return shared

    def exception(self, one: int, other: int, link: Link) -> None:
        """From now on the link between two addresses is that one, whose queues are as long as it says."""
        self._wires.links[virtual_network.ends(one, other)] = link

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something so much later."""
        self._wires.queue.after(seconds, action, *arguments)

    @property
    def lost(self) -> int:
        """Packets that links lost by chance."""
        return self._wires.lost

    # --- faults ---

    def cut(self, address: int) -> None:
        """From now on nothing gets to this address or away from it."""
        self._wires.cut_off.add(address)

    def heal(self, address: int) -> None:
        """The address is connected again."""
        self._wires.cut_off.discard(address)

    def stop(self, address: int) -> None:
        """Stop a machine, as SIGSTOP does: it neither receives nor sends, and what arrives waits."""
        self._wires.pause(self._nodes[address])

    def resume(self, address: int) -> None:
        """Let a stopped machine go on: it takes in what has arrived, and then sees what time it is."""
        self._wires.resume(self._nodes[address])

    def wakes_late(self, address: int, late_s: float) -> None:
        """From now on what a machine sends waits until its process wakes up, by chance up to `late_s` later."""
        self._wires.late_s[address] = late_s

    def inject(self, data: bytes, source: int, destination: int) -> None:
        """A packet from anybody arrives one delay from now, unharmed."""
        self._wires.queue.after(self.link.delay_s, self._wires.arrive, source, destination, data)

    # --- running ---

    def speak(self, address: int) -> None:
        """A machine was given something to do: let it send."""
        self._wires.speak(self._nodes[address])

    def run_until(self, finished: Callable[[], bool], *, limit_s: float = 60.0) -> None:
        """Run until `finished`, which must happen within `limit_s` of virtual time."""
        assert self.try_until(finished, limit_s=limit_s), (
            f"not finished after {limit_s} s; seed {self.seed}, events {self.events}, "
            f"counters {[machine.counters() for machine in self._machines.values()]}"
        )

    def run_for(self, seconds: float) -> None:
        """Run for so long."""
        self.try_until(lambda: False, limit_s=seconds)

    def try_until(self, finished: Callable[[], bool], *, limit_s: float) -> bool:
        """Run until `finished` or until the limit; which of the two."""
        queue = self._wires.queue
        limit = queue.now + limit_s
        for _ in range(MAX_STEPS):
            if finished():
                return True
            if queue.next_at() > limit:
                queue.now = limit
                return finished()
            queue.step()
        raise AssertionError(f"a machine never rests: {MAX_STEPS} steps up to {self.now} s; seed {self.seed}")


class Network(Playground):
    """One switch, some workers, and their links."""

    def __init__(
        self, switch: Machine[Any], workers: Sequence[Worker], *, link: Link | None = None, seed: int = 0
    ) -> None:
        super().__init__(link=link, seed=seed)
        self._switch, self._workers = switch, workers

    def start(self) -> None:
        """Let every machine say its first words."""
        self.attach(SWITCH, self._switch)
        for worker, machine in enumerate(self._workers):
            self.attach(1 + worker, machine)

    def replace(self, worker: int, machine: Worker) -> None:
        """A new process in a worker's place, which has reported nothing yet."""
        self.events[1 + worker] = []
        self.attach(1 + worker, machine)

    def submitted(self, worker: int) -> None:
        """The worker was given something: let it send."""
        self.speak(1 + worker)

    @property
    def worker_events(self) -> list[list[WorkerEvent]]:
        """By worker, what it has reported."""
        return [self.events.get(1 + worker, []) for worker in range(len(self._workers))]
