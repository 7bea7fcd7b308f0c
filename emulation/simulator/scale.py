"""One all-reduce over a thousand workers: when each packet passes each link, without the packets.

Rules of this file
------------------
* The model is the protocol's window rule on links that lose nothing: item t + P of a worker is sent when result t has
  come, a switch passes a slot on when the last of its children's contributions is in, and every link passes packets on
  in order, at its rate. So each time is a maximum of earlier ones plus a constant, and a row of workers is one numpy
  operation. `tests/simulator/test_scale.py` holds it to the packet-level simulation of the real machines, where both
  can run.
* Switches add at line rate, as a pipeline does, and take SWITCH_S for it. The limits of a software switch with a
  thousand workers are not modelled here, and neither are loss, other traffic, or workers that start at different times.
  Receipts, a six-hundredth of the bytes, are left out.
* Rivals run on the same links, in packets of the same size, with the same overhead, and compute for nothing. Ring: each
  worker passes parts of 1/N on, 2 (N - 1) times. Halving-doubling (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005,
  section 4.4), nearest partners first, which is the order that loads the links between switches least.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import MAX_WORKERS, WORD_BYTES, datagram_bytes

Times = npt.NDArray[np.float64]

ETHERNET_OVERHEAD_BYTES = 8 + 20 + 14 + 4 + 20
"""UDP, IPv4 (RFC 768, RFC 791), Ethernet header and checksum, preamble and gap between frames (IEEE 802.3)."""
MTU_BYTES = 1500
SWITCH_S = 0.5e-6
"""From the last bit in to the first bit out of a switch: what vendors state for data center switches."""
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Workers below leaf switches below one root, or below one switch where it has ports for all; all links alike."""

    workers: int
    bytes_per_s: float = 1.25e9
    """10 Gbit/s, each direction."""
    delay_s: float = 1e-6
    """Latency of each link: cable, network card, driver."""
    switch_s: float = SWITCH_S
    ports: int = MAX_WORKERS
    """Children of one switch, at most."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= self.ports**2 or (self.workers > self.ports and self.workers % self.ports):
            raise ConfigurationError(
                f"workers = {self.workers}; 2..{self.ports}, or {self.ports} times 2..{self.ports}"
            )

    @property
    def leaves(self) -> int:
        """Leaf switches below the root; 1: there is one switch, and no root."""
        return max(1, self.workers // self.ports)


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
    tree, leaves = fabric.leaves > 1, fabric.leaves
    up, down = _Hop(fabric, fabric.workers), _Hop(fabric, fabric.workers)
    trunk_up, trunk_down = _Hop(fabric, leaves), _Hop(fabric, leaves)
    results: deque[Times] = deque([np.zeros(fabric.workers)] * transfer.window, maxlen=transfer.window)
    """When the results of the last `window` items came to each worker; before the first, the beginning."""
    for size in transfer.item_bytes():
        sent = results[0]
        closed = up.carry(sent, size).reshape(leaves, -1).max(axis=1) + fabric.switch_s
        if tree:
            root = trunk_up.carry(closed, size).max() + fabric.switch_s
            closed = trunk_down.carry(float(root), size) + fabric.switch_s
        results.append(down.carry(np.repeat(closed, fabric.workers // leaves), size))
    return float(results[-1].max())


def floor(fabric: Fabric, transfer: Transfer) -> float:
    """Lower bound of in-network aggregation: every worker's link carries all of it once, and the path is as long."""
    sizes = transfer.item_bytes()
    hops, switches = (4, 3) if fabric.leaves > 1 else (2, 1)
    path_s = hops * fabric.delay_s + switches * fabric.switch_s + (hops - 1) * sizes[-1] / fabric.bytes_per_s
    return sum(sizes) / fabric.bytes_per_s + path_s


def _wire_bytes(payload_bytes: float, transfer: Transfer) -> float:
    """Bytes that a rival's payload takes on a link, in packets as long as ours, with no header but the network's."""
    packet_bytes = datagram_bytes(transfer.codes_per_packet, transfer.words_per_packet)
    return payload_bytes + math.ceil(payload_bytes / packet_bytes) * transfer.overhead_bytes


def _latency_s(fabric: Fabric, transfer: Transfer, far: bool) -> float:
    """From the last bit sent to the last bit received, packet by packet through one switch or, if far, three."""
    hops, switches = (4, 3) if far else (2, 1)
    packet_bytes = datagram_bytes(transfer.codes_per_packet, transfer.words_per_packet) + transfer.overhead_bytes
    return hops * fabric.delay_s + switches * fabric.switch_s + (hops - 1) * packet_bytes / fabric.bytes_per_s


def ring(fabric: Fabric, transfer: Transfer) -> float:
    """Seconds of a ring all-reduce in order of ranks, so that each link between switches carries one stream."""
    workers = fabric.workers
    part_s = _wire_bytes(transfer.tensor_bytes / workers, transfer) / fabric.bytes_per_s
    ranks = np.arange(workers)
    below = ranks // (workers // fabric.leaves)
    far = below != np.roll(below, -1)
    latency = np.where(far, _latency_s(fabric, transfer, True), _latency_s(fabric, transfer, False))
    has, link_free = np.zeros(workers), np.zeros(workers)
    for _ in range(2 * (workers - 1)):
        link_free = np.maximum(has, link_free) + part_s
        has = np.roll(link_free + latency, 1)
    return float(has.max())


def halving_doubling(fabric: Fabric, transfer: Transfer) -> float:
    """Seconds of recursive halving and doubling; each step waits for its slowest link. Powers of two only."""
    steps = fabric.workers.bit_length() - 1
    if 1 << steps != fabric.workers:
        raise ConfigurationError(f"workers = {fabric.workers}; halving and doubling is for powers of two")
    per_leaf = fabric.workers // fabric.leaves
    total_s = 0.0
    for step in range(steps):
        far = 1 << step >= per_leaf
        load_bytes = _wire_bytes(transfer.tensor_bytes / (2 << step), transfer) * (per_leaf if far else 1)
        total_s += load_bytes / fabric.bytes_per_s + _latency_s(fabric, transfer, far)
    return 2 * total_s


@dataclass(frozen=True, slots=True)
class Row:
    """Virtual seconds for one number of workers."""

    workers: int
    leaves: int
    aggregate_s: float
    floor_s: float
    ring_s: float
    halving_doubling_s: float


def table(transfer: Transfer, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """A row for each number of workers."""
    return [
        Row(
            size,
            fabric.leaves,
            aggregate(fabric, transfer),
            floor(fabric, transfer),
            ring(fabric, transfer),
            halving_doubling(fabric, transfer),
        )
        for size in sizes
        for fabric in [Fabric(workers=size)]
    ]
