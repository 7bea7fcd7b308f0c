"""Time of one all-reduce over up to a thousand hosts with a shard each, from when each packet passes each link.

Rules of this file
------------------
* The model is that of scale.py, with a shard on every host: a flow sends item t + P when it has result t, a shard
  passes a slot on when the last contribution has arrived, and a link passes packets on in the order of arrival. The
  links meet in a non-blocking switch. Packets to a host's own shard use no link and no time.
* All hosts do the same at the same time: host h sends to the shards of h + 1, h + 2, ... in turn. So it suffices to
  follow one host: when it sends to the k-th host after it, it receives the same from the k-th host before it.
* tests/simulator/test_scale_hosts.py compares it with the packet-level simulation of the real machines, which all begin
  with the first shard. Nothing is lost here, and queues are as long as needed.
* Rivals use the same links, as in scale.py, below one switch with ports for all.
"""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass

from fanin.emulation.simulator.scale import Fabric, Transfer, halving_doubling, ring
from fanin.errors import ConfigurationError
from fanin.protocol.spread import MIN_PACKETS_PER_SHARD
from fanin.protocol.window import MIN_SHARE_SLOTS

HOSTS = (8, 16, 32, 64, 128, 256, 512, 1024)
WINDOW = 360
"""Slots of all flows of a host together: 512 KiB of packets (fanin/protocol/window.py)."""
MAX_CROSSOVER_BYTES = 1 << 26
"""Largest tensor at which rivals are compared; sizes are powers of two."""

_SENT, _ARRIVED = 0, 1
"""Kinds of events: a packet reaches the queue of its sender's link, or that of its receiver's."""


class _Link:
    """One direction of a host's link, which passes packets on one after another."""

    def __init__(self, fabric: Fabric) -> None:
        self._free_at = 0.0
        self._fabric = fabric

    def carry(self, now: float, size_bytes: float) -> float:
        """Time at which a packet that is queued `now` arrives at the other end."""
        self._free_at = max(now, self._free_at) + size_bytes / self._fabric.bytes_per_s
        return self._free_at + self._fabric.delay_s


def spread_over_hosts(fabric: Fabric, transfer: Transfer) -> float:
    """Seconds from the common start until every host has every result.

    Raises ConfigurationError if the tensor is too small for a part at every shard.
    """
    hosts = fabric.workers
    if transfer.chunks < MIN_PACKETS_PER_SHARD * hosts:
        raise ConfigurationError(
            f"{transfer.tensor_bytes} bytes are not enough for a part at each of {hosts} shards", "the bytes"
        )
    window = max(MIN_SHARE_SLOTS, transfer.window // hosts)
    sizes = dataclasses.replace(transfer, tensor_bytes=transfer.tensor_bytes // hosts, window=window).item_bytes()
    up, down = _Link(fabric), _Link(fabric)
    missing = [hosts - 1] * len(sizes)
    """By item of this host's shard, missing contributions of others; its own arrives with the first of them."""
    events: list[tuple[float, int, int, int, bool, int]] = []
    number = 0

    def happens(at: float, what: int, peer: int, result: bool, item: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, what, peer, result, item))

    def send(now: float, peer: int, result: bool, item: int) -> None:
        happens(up.carry(now, sizes[item]) + fabric.switch_s, _ARRIVED, peer, result, item)

    for item in range(min(window, len(sizes))):
        for peer in range(1, hosts):
            happens(0.0, _SENT, peer, False, item)
    now = 0.0
    while events:
        now, _, what, peer, result, item = heapq.heappop(events)
        if what == _SENT:
            send(now, peer, result, item)
            continue
        there = down.carry(now, sizes[item])
        if not result:
            missing[item] -= 1
            if missing[item] == 0:
                for each in range(1, hosts):
                    happens(there, _SENT, each, True, item)
        elif item + window < len(sizes):
            happens(there, _SENT, peer, False, item + window)
        now = max(now, there)
    return now


def floor_over_hosts(fabric: Fabric, transfer: Transfer) -> float:
    """Lower bound: time that 2 (n - 1) / n of the tensor takes on a link, in packets with their headers."""
    words = dataclasses.replace(transfer, codes_per_packet=0).item_bytes()
    return 2 * (fabric.workers - 1) / fabric.workers * sum(words) / fabric.bytes_per_s


@dataclass(frozen=True, slots=True)
class HostsRow:
    """Virtual seconds for one number of hosts, and the sizes up to which fanin is faster than each rival."""

    hosts: int
    spread_s: float
    floor_s: float
    ring_s: float
    halving_doubling_s: float
    faster_than_ring_bytes: int
    """Largest power of two at which fanin is faster, among sizes that give every shard a part; 0: none."""
    faster_than_halving_bytes: int


def table_over_hosts(
    transfer: Transfer, hosts: tuple[int, ...] = HOSTS, *, largest_bytes: int = MAX_CROSSOVER_BYTES
) -> list[HostsRow]:
    """A row for each number of hosts, below one switch; rivals are also compared at other sizes, up to
    `largest_bytes`."""
    return [_row(Fabric(workers=each, ports=each), transfer, largest_bytes) for each in hosts]


def _row(fabric: Fabric, transfer: Transfer, largest_bytes: int) -> HostsRow:
    than_ring = than_halving = 0
    tensor_bytes = 1
    while tensor_bytes <= largest_bytes:
        smaller = dataclasses.replace(transfer, tensor_bytes=tensor_bytes)
        if smaller.chunks >= MIN_PACKETS_PER_SHARD * fabric.workers:
            ours = spread_over_hosts(fabric, smaller)
            than_ring = tensor_bytes if ours < ring(fabric, smaller) else than_ring
            than_halving = tensor_bytes if ours < halving_doubling(fabric, smaller) else than_halving
        tensor_bytes *= 2
    return HostsRow(
        fabric.workers,
        spread_over_hosts(fabric, transfer),
        floor_over_hosts(fabric, transfer),
        ring(fabric, transfer),
        halving_doubling(fabric, transfer),
        than_ring,
        than_halving,
    )
