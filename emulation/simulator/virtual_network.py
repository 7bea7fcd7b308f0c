"""A network in virtual time: hands packets and time to machines at addresses, and carries what they send.

Rules of this file
------------------
* Nothing runs by itself. An event of the queue gives one machine one packet or the time; the machine is then asked what
  it sends, what it reports and when to wake it. This is one step, and the watchers see each.
* With `tick_s`, packets arrive at its multiples only: those of one tick at one instant, as a socket is read.
* Every pair (source, destination) has a pipe of its own. Addresses of one host share that host's link instead; a packet
  from host to host waits in two queues, the sender's and the receiver's. Packets to an address without a machine are
  lost.
* A machine may be paused, as by SIGSTOP: packets for it wait, up to BACKLOG_PACKETS as in a socket's receive buffer,
  and its timers wait, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Protocol

from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.links import Link, Pipe, SharedLink
from fanin.protocol.machine import Machine

BACKLOG_PACKETS = 4096
"""Most packets that wait for a paused machine; more are lost."""
NEVER = float("inf")
AT_HOME = Link(queue_bytes=1 << 30)
"""Link between addresses of one host, whose packets do not cross the host's link."""

Datagrams = list[tuple[bytes, int]]


class Watcher(Protocol):
    """Is called after every step."""

    def stepped(self, address: int, received: tuple[bytes, int] | None, sent: Datagrams) -> None:
        """The machine at `address` got a packet (data, source), or the time or orders (None), and has sent `sent`."""


class Node:
    """A machine at an address of the network."""

    __slots__ = ("address", "armed_at", "backlog", "gone", "machine", "on_step", "paused")

    def __init__(self, address: int, machine: Machine[Any], on_step: Callable[[], None]) -> None:
        self.address = address
        self.machine = machine
        self.on_step = on_step
        """Called at the end of each step, to fetch events."""
        self.armed_at = NEVER
        """Time of the earliest event in the queue that looks at the machine's timer."""
        self.paused = 0
        """Number of pauses that have not ended."""
        self.backlog: list[tuple[bytes, int]] = []
        self.gone = False


class Network:
    """Nodes, pipes and random draws. `link` may be replaced during a run; `links` holds exceptions by `ends`."""

    def __init__(self, queue: EventQueue, link: Link, dice: random.Random, *, tick_s: float = 0.0) -> None:
        self.queue = queue
        self.link = link
        self.links: dict[tuple[int, int], Link] = {}
        self.behind: dict[int, SharedLink] = {}
        """Links shared by several addresses, by address; others have pipes of their own."""
        self.watchers: list[Watcher] = []
        self.packets = 0
        self.bytes = 0
        """Bytes sent by all nodes."""
        self._dice = dice
        self._tick_s = tick_s
        self._nodes: dict[int, Node] = {}
        self._pipes: dict[tuple[int, int], Pipe] = {}

    # --- machines come, go, stop and go on ---

    def attach(self, address: int, machine: Machine[Any], on_step: Callable[[], None]) -> Node:
        """Start a machine at a free address, and let it send its first packets."""
        assert address not in self._nodes, f"address {address} is taken"
        node = self._nodes[address] = Node(address, machine, on_step)
        self.speak(node)
        return node

    def detach(self, node: Node) -> None:
        """Remove a machine, with the packets that wait for it."""
        node.gone = True
        del self._nodes[node.address]

    def pause(self, node: Node) -> None:
        """Stop a machine until `resume` was called as often."""
        node.paused += 1

    def resume(self, node: Node) -> None:
        """End a pause; after the last, the machine gets the packets that have arrived, and then the time."""
        node.paused -= 1
        if node.paused or node.gone:
            return
        backlog, node.backlog = node.backlog, []
        for data, source in backlog:
            self._give(node, data, source)
        if not node.gone:
            self.wake(node)
            self.speak(node)

    # --- paths ---

    def pipe(self, source: int, destination: int) -> Pipe:
        """The pipe from one address to another, made when it is first asked for."""
        found = self._pipes.get((source, destination))
        if found is None:
            found = self._pipes[source, destination] = Pipe()
        return found

    @property
    def lost(self) -> int:
        """Packets that pipes lost by chance, without those of shared links."""
        return sum(pipe.lost for pipe in self._pipes.values())

    def speak(self, node: Node) -> None:
        """Let a machine send and report after a call that gave it something to do."""
        if not node.paused and not node.gone:
            self._finish_step(node, None)

    def wake(self, node: Node) -> None:
        """Give a machine the time if its timer is due, or else arm its timer."""
        at = node.machine.next_timer()
        if at is None:
            return
        if at <= self.queue.now:
            node.machine.handle_timer(self.queue.now)
            self._finish_step(node, None)
        elif at < node.armed_at:
            node.armed_at = at
            self.queue.at(at, self._ring, node, at)

    # --- steps ---

    def _give(self, node: Node, data: bytes, source: int) -> None:
        node.machine.receive_datagram(data, source, self.queue.now)
        self._finish_step(node, (data, source))

    def _finish_step(self, node: Node, received: tuple[bytes, int] | None) -> None:
        now = self.queue.now
        sent = node.machine.datagrams_to_send(now)
        for watcher in self.watchers:
            watcher.stepped(node.address, received, sent)
        for data, destination in sent:
            self.carry(node.address, destination, data)
        node.on_step()
        at = node.machine.next_timer()
        if at is not None and at < node.armed_at and not node.gone:
            node.armed_at = at
            self.queue.at(at, self._ring, node, at)

    def _ring(self, node: Node, armed_at: float) -> None:
        if node.gone or armed_at != node.armed_at:
            return
        node.armed_at = NEVER
        if not node.paused:
            self.wake(node)

    # --- packets ---

    def carry(self, source: int, destination: int, data: bytes) -> None:
        """Carry a packet that a machine has sent."""
        self.packets += 1
        self.bytes += len(data)
        pipe = self.pipe(source, destination)
        if pipe.blocked:
            return
        link = self.links.get(ends(source, destination), self.link)
        up, down, then = self.behind.get(source), self.behind.get(destination), self.arrive
        if up is not None and up is down:  # the same host: the packet does not cross its link
            link = AT_HOME
        elif up is not None:
            pipe, link = up.up, up.link
            then = self.arrive if down is None else self._carry_down
        elif down is not None:
            pipe, link = down.down, down.link
        self._through(pipe, link, then, source, destination, data)

    def _carry_down(self, source: int, destination: int, data: bytes) -> None:
        """Carry a packet that has left the source's shared link over the destination's."""
        down = self.behind[destination]
        self._through(down.down, down.link, self.arrive, source, destination, data)

    def _through(
        self,
        pipe: Pipe,
        link: Link,
        then: Callable[[int, int, bytes], None],
        source: int,
        destination: int,
        data: bytes,
    ) -> None:
        for at, copy in pipe.carry(data, self.queue.now, link, self._dice):
            if self._tick_s:
                at = max(self.queue.now, math.ceil(at / self._tick_s) * self._tick_s)
            self.queue.at(at, then, source, destination, copy)

    def arrive(self, source: int, destination: int, data: bytes) -> None:
        """Hand a packet to the machine at the destination; it is lost without one, or if the path is cut."""
        node = self._nodes.get(destination)
        if node is None or self.pipe(source, destination).blocked:
            return
        if not node.paused:
            self._give(node, data, source)
        elif len(node.backlog) < BACKLOG_PACKETS:
            node.backlog.append((data, source))


def ends(one: int, other: int) -> tuple[int, int]:
    """The key of a link: its two addresses in ascending order."""
    return (one, other) if one < other else (other, one)
