"""How much of a tensor each shard of a job sums, so that the busiest link carries as little as it can.

n hosts have workers, and each may run a shard; spare hosts have shards only. In tensors on the wire, each way, a link
of a host whose shard sums a part s carries 1 - s to the other shards, and results of s to n - 1 hosts: 1 + (n - 2) s. A
spare one's carries n s. With equal links and k spares (0 <= k <= n) all links are equally busy when a spare host sums
2 (n - 1) / (n^2 + kn - 2k) of the tensor and a host with workers (n - k) / (n^2 + kn - 2k): BytePS, OSDI 2020, theorem
1. Here links may have unlike rates: all of them are to be busy equally long, and no part is negative.

Parts are then whole numbers, *weights*, which rank 0 tells all ranks: they deal alike, to the element.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

WHOLE = 1 << 16
"""Approximate sum of all weights: a part is exact to 15 millionths of the tensor."""
_TURN = 40_503
"""WHOLE over the golden ratio: successive turns times this, modulo WHOLE, are spread evenly (Fibonacci hashing)."""
MIN_PACKETS_PER_SHARD = 2
"""A reduction goes to as many shards as get that many packets each. With fewer, a round trip through one shard is as
quick; with more at a single shard, all of it would meet in that shard's link, n - 1 times."""


def optimal_parts(hosts: Sequence[float], spares: Sequence[float]) -> tuple[float, ...]:
    """The parts of the shards on `hosts` and on `spares`, in that order, given the rates of their links.

    They add up to 1. Hosts' shards get nothing where spare ones are enough.
    """
    n = len(hosts)
    if n == 0:
        return _normalized(spares)
    if n == 1:  # its ranks meet at home, and nothing need leave
        return (1.0, *(0.0 for _ in spares))
    busy = max(1 / rate for rate in hosts)  # what sending contributions takes, whoever sums them
    if n == 2:
        at_spares = [busy * rate / n for rate in spares]
        left = max(0.0, 1.0 - sum(at_spares))
        return _normalized([*(left * part for part in _normalized(hosts)), *at_spares])
    busy = max(busy, (1 + n / (n - 2)) / (sum(hosts) / (n - 2) + sum(spares) / n))
    at_hosts = [max(0.0, (busy * rate - 1) / (n - 2)) for rate in hosts]
    return _normalized([*at_hosts, *(busy * rate / n for rate in spares)])


def _normalized(parts: Sequence[float]) -> tuple[float, ...]:
    whole = sum(parts)
    return tuple(part / whole for part in parts)


def link_loads(parts: Sequence[float], hosts: int) -> tuple[float, ...]:
    """Tensors that each link carries each way, given the parts of the shards on `hosts` hosts and on spare ones."""
    return tuple(map(sum, link_streams(parts, hosts)))


def link_streams(parts: Sequence[float], hosts: int) -> tuple[tuple[float, float], ...]:
    """Tensors on each link's way out: contributions of its host, and results for the others. On the way in they change
    places.
    """
    return tuple(
        (1 - part, (hosts - 1) * part) if number < hosts else (0.0, hosts * part) for number, part in enumerate(parts)
    )


def weights_of(parts: Sequence[float]) -> tuple[int, ...]:
    """Return whole weights in proportion to the parts: all 1 for equal parts, and 0 for a part below half a unit, whose
    shard is not worth a flow.
    """
    units = tuple(round(part * WHOLE) for part in parts)
    return tuple(1 for _ in units) if len(set(units)) == 1 else units


@dataclass(frozen=True, slots=True)
class Spread:
    """How reductions are dealt to shards of these weights, all positive."""

    weights: tuple[int, ...]
    least_packets: int = MIN_PACKETS_PER_SHARD
    """A shard that would get fewer gets none."""

    @classmethod
    def evenly(cls, shards: int) -> Spread:
        """Spread reductions over so many shards with equal weights."""
        return cls((1,) * shards)

    @property
    def shards(self) -> int:
        """Number of shards of the job."""
        return len(self.weights)

    def part(self, shard: int) -> float:
        """A shard's part of a large reduction."""
        return self.weights[shard] / sum(self.weights)

    def only(self, shards: Sequence[int]) -> Spread:
        """The spread over the shards that are left, in proportion."""
        return replace(self, weights=tuple(self.weights[shard] for shard in shards))

    def in_turn(self, turn: int) -> int:
        """The shard that the `turn`-th reduction goes to, if it is small."""
        if len(set(self.weights)) == 1:
            return turn % len(self.weights)
        ends = list(itertools.accumulate(self.weights))
        return bisect_right(ends, turn * _TURN % WHOLE * ends[-1] // WHOLE)

    def shares(self, count: int, packet_elements: int, turn: int) -> Iterator[tuple[int, int, int]]:
        """Yield each shard's share of the `turn`-th reduction, of so many elements, as (shard, first, end).

        Cuts are between packets, of `packet_elements` elements each; 0: the reduction is not cut.
        """
        packets = -(-count // packet_elements) if packet_elements else 0
        worth = min(self.shards, packets // self.least_packets)
        if worth <= 1:
            yield self.in_turn(turn), 0, count
            return
        start = 0 if worth == self.shards else self.in_turn(turn)
        shards = [(start + following) % self.shards for following in range(worth)]
        whole, before = sum(self.weights[shard] for shard in shards), 0
        for shard in shards:
            first, end = (packets * at // whole * packet_elements for at in (before, before + self.weights[shard]))
            before += self.weights[shard]
            if end > first:
                yield shard, first, min(end, count)
