"""Time of one all-reduce over up to ten thousand workers, from when each packet passes each link, without packets.

Rules of this file
------------------
* The model is the protocol's window rule on links that lose nothing: a worker sends item t + P when it has result t, a
  switch passes a slot on when the last of its children's contributions has arrived, and every link passes packets on in
  order, at its rate. So each time is a maximum of earlier ones plus a constant, and a row of workers is one numpy
  operation. `tests/simulator/test_scale.py` compares it with the packet-level simulation of the real machines, with
  one, two and three levels of switches.
* Jobs have at most MAX_TREE_WORKERS workers in two levels (fanin/switch/controller); the model goes beyond, as far as
  links allow.
* Switches add at line rate, as a pipeline does, and take SWITCH_S; scale_bounds.py says how many packets that means.
  Not modelled are the limits of a software switch, loss, other traffic, workers that start at different times, and
  receipts, a six-hundredth of the bytes.
* Rivals use the same links, packets of the same size and the same overhead, and their computation takes no time. Ring:
  each worker passes parts of 1/N on, 2 (N - 1) times. Halving-doubling (Thakur, Rabenseifner and Gropp, IJHPCA 19(1),
  2005, section 4.4): nearest partners first, which is the order that loads the links between switches least.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import MAX_WORKERS, WORD_BYTES, datagram_bytes

Times = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

ETHERNET_OVERHEAD_BYTES = 8 + 20 + 14 + 4 + 20
"""UDP, IPv4 (RFC 768, RFC 791), Ethernet header and checksum, preamble and gap between frames (IEEE 802.3)."""
MTU_BYTES = 1500
SWITCH_S = 0.5e-6
"""Time from the last bit in to the first bit out of a switch, as vendors state it for data center switches."""
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 10_000)
MAX_LEVELS = 3
"""Levels of switches: leaves, middle, root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Workers below a tree of switches: as few levels as ports allow, workers spread evenly, all links alike."""

    workers: int
    bytes_per_s: float = 1.25e9
    """Rate of each link in each direction; 10 Gbit/s by default."""
    delay_s: float = 1e-6
    """Latency of each link: cable, network card, driver."""
    switch_s: float = SWITCH_S
    ports: int = MAX_WORKERS
    """Most children of one switch."""

    def __post_init__(self) -> None:
        most = self.ports**MAX_LEVELS
        if not 2 <= self.workers <= most:
            raise ConfigurationError(
                f"workers = {self.workers}; 2..{most} ({MAX_LEVELS} levels of switches with {self.ports} ports)",
                "workers",
            )

    @property
    def children(self) -> tuple[Counts, ...]:
        """By level, from the leaves to the root: the number of children of each of its switches."""
        levels, below = [], self.workers
        while below > 1:
            switches = -(-below // self.ports)
            levels.append(np.full(switches, below // switches) + (np.arange(switches) < below % switches))
            below = switches
        return tuple(levels)

    @property
    def levels(self) -> int:
        """Number of levels of switches; 1 if there is one switch."""
        return len(self.children)

    @property
    def switches(self) -> tuple[int, ...]:
        """Number of switches in each level, from the leaves to the root."""
        return tuple(len(counts) for counts in self.children)

    def ancestors(self) -> Iterator[Counts]:
        """Yield, for each level below the root, the number of the switch that each worker is below."""
        at = np.arange(self.workers)
        for counts in self.children[:-1]:
            at = np.repeat(np.arange(len(counts)), counts)[at]
            yield at

    def path_s(self, packet_bytes: int, level: int) -> float:
        """Seconds from the last bit sent to the last bit received of a packet that turns around at a switch of that
        level (1: a leaf) and waits for no other packet.
        """
        hops, switches = 2 * level, 2 * level - 1
        return hops * self.delay_s + switches * self.switch_s + (hops - 1) * packet_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A tensor's size, and how it is cut into packets."""

    tensor_bytes: int = 25 << 20
    words_per_packet: int
    codes_per_packet: int
    """Scale codes in a packet; 0 for integers. With codes, the first window of items carries codes alone."""
    window: int = 128
    """P, the number of slots of the job."""
    overhead_bytes: int = ETHERNET_OVERHEAD_BYTES

    @classmethod
    def over(cls, mtu: int = MTU_BYTES, tensor_bytes: int = 25 << 20, window: int = 128) -> Transfer:
        """Transfer of a float32 tensor over a path with that MTU, in packets as fanin.protocol.window chooses them."""
        words, codes = packet_shape(mtu)
        return cls(tensor_bytes=tensor_bytes, words_per_packet=words, codes_per_packet=codes, window=window)

    @property
    def chunks(self) -> int:
        """Number of packets with words."""
        return -(-self.tensor_bytes // (self.words_per_packet * WORD_BYTES))

    @property
    def packet_bytes(self) -> int:
        """Bytes of a full packet on a link, with overhead."""
        return datagram_bytes(self.codes_per_packet, self.words_per_packet) + self.overhead_bytes

    def item_bytes(self) -> list[int]:
        """Bytes of each item on a link, in order of sending (host/machine/operation.py)."""
        last_words = (self.tensor_bytes - (self.chunks - 1) * self.words_per_packet * WORD_BYTES) // WORD_BYTES
        lead = min(self.window, self.chunks) if self.codes_per_packet else 0
        words = [0] * lead + [self.words_per_packet] * (self.chunks - 1) + [last_words]
        return [datagram_bytes(self.codes_per_packet, count) + self.overhead_bytes for count in words]


class _Hop:
    """Parallel links, one per child; each passes one packet on after another."""

    def __init__(self, fabric: Fabric, count: int) -> None:
        self._free_at: Times = np.zeros(count)
        self._fabric = fabric

    def carry(self, ready: Times | float, size_bytes: int) -> Times:
        """Times at which packets arrive at the other ends, if they are there to be sent at `ready`."""
        self._free_at = np.maximum(ready, self._free_at) + size_bytes / self._fabric.bytes_per_s
        return self._free_at + self._fabric.delay_s


def aggregate(fabric: Fabric, transfer: Transfer) -> float:
    """Seconds from the common start until every worker has every result."""
    levels = [
        (counts, np.cumsum(counts) - counts, _Hop(fabric, int(counts.sum())), _Hop(fabric, int(counts.sum())))
        for counts in fabric.children
    ]
    """By level: numbers of children, index of each switch's first child, links up, links down."""
    results: deque[Times] = deque([np.zeros(fabric.workers)] * transfer.window, maxlen=transfer.window)
    """By worker, the arrival of each of the last `window` results; 0 before the first result."""
    for size in transfer.item_bytes():
        ready = results[0]
        for _, first, up, _ in levels:
            ready = np.maximum.reduceat(up.carry(ready, size), first) + fabric.switch_s
        for counts, _, _, down in reversed(levels):
            arrived = down.carry(np.repeat(ready, counts), size)
            ready = arrived + fabric.switch_s
        results.append(arrived)
    return float(results[-1].max())


def floor(fabric: Fabric, transfer: Transfer) -> float:
    """Lower bound of in-network aggregation: every worker's link carries all items once, plus the path's latency."""
    sizes = transfer.item_bytes()
    return sum(sizes) / fabric.bytes_per_s + fabric.path_s(sizes[-1], fabric.levels)


def _wire_bytes(payload_bytes: float, transfer: Transfer) -> float:
    """Bytes on a link for a rival's payload, in packets as long as ours with the network's headers alone."""
    packet_bytes = datagram_bytes(transfer.codes_per_packet, transfer.words_per_packet)
    return payload_bytes + math.ceil(payload_bytes / packet_bytes) * transfer.overhead_bytes


def ring(fabric: Fabric, transfer: Transfer) -> float:
    """Seconds of a ring all-reduce in order of ranks, so that each link between switches carries one stream."""
    workers = fabric.workers
    part_s = _wire_bytes(transfer.tensor_bytes / workers, transfer) / fabric.bytes_per_s
    turns_at = np.ones(workers, np.int64)
    for at in fabric.ancestors():
        turns_at += at != np.roll(at, -1)
    latency = np.array([fabric.path_s(transfer.packet_bytes, level + 1) for level in range(fabric.levels)])[
        turns_at - 1
    ]
    has, link_free = np.zeros(workers), np.zeros(workers)
    for _ in range(2 * (workers - 1)):
        link_free = np.maximum(has, link_free) + part_s
        has = np.roll(link_free + latency, 1)
    return float(has.max())


def halving_doubling(fabric: Fabric, transfer: Transfer) -> float:
    """Seconds of recursive halving and doubling; each step waits for its slowest link. Powers of two only."""
    steps = fabric.workers.bit_length() - 1
    if 1 << steps != fabric.workers or any(np.ptp(counts) for counts in fabric.children):
        raise ConfigurationError(f"workers = {fabric.workers}; halving and doubling is for powers of two", "workers")
    below = [fabric.workers // switches for switches in fabric.switches]
    """By level, the number of workers below each switch."""
    total_s = 0.0
    for step in range(steps):
        streams = [1, *(count for count in below if 1 << step >= count)]  # streams on the uplinks of each level crossed
        load_bytes = _wire_bytes(transfer.tensor_bytes / (2 << step), transfer) * streams[-1]
        total_s += load_bytes / fabric.bytes_per_s + fabric.path_s(transfer.packet_bytes, len(streams))
    return 2 * total_s


@dataclass(frozen=True, slots=True)
class Row:
    """Virtual seconds for one number of workers."""

    workers: int
    switches: tuple[int, ...]
    """Number of switches in each level, from the leaves to the root."""
    aggregate_s: float
    floor_s: float
    ring_s: float
    halving_doubling_s: float | None
    """None unless the number of workers is a power of two."""


def table(transfer: Transfer, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """A row for each number of workers."""
    return [
        Row(
            size,
            fabric.switches,
            aggregate(fabric, transfer),
            floor(fabric, transfer),
            ring(fabric, transfer),
            halving_doubling(fabric, transfer) if size.bit_count() == 1 else None,
        )
        for size in sizes
        for fabric in [Fabric(workers=size)]
    ]
