"""One all-reduce over ten thousand workers: when each packet passes each link, without the packets.

Rules of this file
------------------
* The model is the protocol's window rule on links that lose nothing: item t + P of a worker is sent when result t has
  come, a switch passes a slot on when the last of its children's contributions is in, and every link passes packets on
  in order, at its rate. So each time is a maximum of earlier ones plus a constant, and a row of workers is one numpy
  operation. `tests/simulator/test_scale.py` holds it to the packet-level simulation of the real machines, on one, two
  and three levels of them.
* Jobs take MAX_TREE_WORKERS workers in two levels (fanin/switch/controller): the model goes on to where links allow.
* Switches add at line rate, as a pipeline does, and take SWITCH_S for it: scale_bounds.py says how many packets that
  is. The limits of a software switch are not modelled here, and neither are loss, other traffic, or workers that start
  at different times. Receipts, a six-hundredth of the bytes, are left out.
* Rivals run on the same links, in packets of the same size, with the same overhead, and compute for nothing. Ring: each
  worker passes parts of 1/N on, 2 (N - 1) times. Halving-doubling (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005,
  section 4.4), nearest partners first, which is the order that loads the links between switches least.
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
"""From the last bit in to the first bit out of a switch: what vendors state for data center switches."""
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 10_000)
MAX_LEVELS = 3
"""Levels of switches: leaves, middle, root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Workers below a tree of switches with as few levels as their ports allow, spread evenly; all links alike."""

    workers: int
    bytes_per_s: float = 1.25e9
    """10 Gbit/s, each direction."""
    delay_s: float = 1e-6
    """Latency of each link: cable, network card, driver."""
    switch_s: float = SWITCH_S
    ports: int = MAX_WORKERS
    """Children of one switch, at most."""

    def __post_init__(self) -> None:
        most = self.ports**MAX_LEVELS
        if not 2 <= self.workers <= most:
            raise ConfigurationError(
                f"workers = {self.workers}; 2..{most} ({MAX_LEVELS} levels of switches with {self.ports} ports)"
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
        """Levels of switches; 1: there is one switch."""
        return len(self.children)

    @property
    def switches(self) -> tuple[int, ...]:
        """Switches of each level, from the leaves to the root."""
        return tuple(len(counts) for counts in self.children)

    def ancestors(self) -> Iterator[Counts]:
        """By level below the root: the switch that each worker is below."""
        at = np.arange(self.workers)
        for counts in self.children[:-1]:
            at = np.repeat(np.arange(len(counts)), counts)[at]
            yield at

    def path_s(self, packet_bytes: int, level: int) -> float:
        """Seconds from the last bit sent to the last bit received of a packet that turns at a switch of that level, 1
        being a leaf, and meets no other.
        """
        hops, switches = 2 * level, 2 * level - 1
        return hops * self.delay_s + switches * self.switch_s + (hops - 1) * packet_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Size of the tensor, and how it is cut into packets."""

    tensor_bytes: int = 25 << 20
    words_per_packet: int
    codes_per_packet: int
    """0 for integers, whose items are chunks; else the first window carries codes alone."""
    window: int = 128
    """P: slots of the job."""
    overhead_bytes: int = ETHERNET_OVERHEAD_BYTES

    @classmethod
    def over(cls, mtu: int = MTU_BYTES, tensor_bytes: int = 25 << 20, window: int = 128) -> Transfer:
        """A tensor of float32 over a path with that MTU, in the packets that fanin.protocol.window chooses."""
        words, codes = packet_shape(mtu)
        return cls(tensor_bytes=tensor_bytes, words_per_packet=words, codes_per_packet=codes, window=window)

    @property
    def chunks(self) -> int:
        """Packets that carry words."""
        return -(-self.tensor_bytes // (self.words_per_packet * WORD_BYTES))

    @property
    def packet_bytes(self) -> int:
        """Bytes of a full packet on a link."""
        return datagram_bytes(self.codes_per_packet, self.words_per_packet) + self.overhead_bytes

    def item_bytes(self) -> list[int]:
        """Bytes of each item on a link, in order: see host/machine/operation.py."""
        last_words = (self.tensor_bytes - (self.chunks - 1) * self.words_per_packet * WORD_BYTES) // WORD_BYTES
        lead = min(self.window, self.chunks) if self.codes_per_packet else 0
        words = [0] * lead + [self.words_per_packet] * (self.chunks - 1) + [last_words]
        return [datagram_bytes(self.codes_per_packet, count) + self.overhead_bytes for count in words]


class _Hop:
    """A row of links in parallel: each passes one packet on after another."""

    def __init__(self, fabric: Fabric, count: int) -> None:
        self._free_at: Times = np.zeros(count)
        self._fabric = fabric

    def carry(self, ready: Times | float, size_bytes: int) -> Times:
        """When a packet that is `ready` then has arrived at the other end."""
        self._free_at = np.maximum(ready, self._free_at) + size_bytes / self._fabric.bytes_per_s
        return self._free_at + self._fabric.delay_s


def aggregate(fabric: Fabric, transfer: Transfer) -> float:
    """Seconds until every worker has every result, from the moment at which all begin."""
    levels = [
        (counts, np.cumsum(counts) - counts, _Hop(fabric, int(counts.sum())), _Hop(fabric, int(counts.sum())))
        for counts in fabric.children
    ]
    """By level: children of its switches, the first of each, and the links to and from them."""
    results: deque[Times] = deque([np.zeros(fabric.workers)] * transfer.window, maxlen=transfer.window)
    """When the results of the last `window` items came to each worker; before the first, the beginning."""
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
    """Lower bound of in-network aggregation: every worker's link carries all of it once, and the path is as long."""
    sizes = transfer.item_bytes()
    return sum(sizes) / fabric.bytes_per_s + fabric.path_s(sizes[-1], fabric.levels)


def _wire_bytes(payload_bytes: float, transfer: Transfer) -> float:
    """Bytes that a rival's payload takes on a link, in packets as long as ours, with no header but the network's."""
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
        raise ConfigurationError(f"workers = {fabric.workers}; halving and doubling is for powers of two")
    below = [fabric.workers // switches for switches in fabric.switches]
    """By level: workers below each of its switches."""
    total_s = 0.0
    for step in range(steps):
        streams = [1, *(count for count in below if 1 << step >= count)]  # of each level that is crossed, on its uplink
        load_bytes = _wire_bytes(transfer.tensor_bytes / (2 << step), transfer) * streams[-1]
        total_s += load_bytes / fabric.bytes_per_s + fabric.path_s(transfer.packet_bytes, len(streams))
    return 2 * total_s


@dataclass(frozen=True, slots=True)
class Row:
    """Virtual seconds for one number of workers."""

    workers: int
    switches: tuple[int, ...]
    """By level, from the leaves to the root."""
    aggregate_s: float
    floor_s: float
    ring_s: float
    halving_doubling_s: float | None
    """None where the number of workers is no power of two."""


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
