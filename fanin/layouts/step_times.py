"""The predicted time of a training step for one layout of ranks, in closed form.

The step is GPipe's (Huang et al. 2019, arXiv:1811.06965): every replica runs all micro-batches forward, then all
backward, and then each stage sums its gradients over the replicas. Groups are placed as in Holmes (Yang et al. 2024,
arXiv:2312.03549): a stage is a data-parallel group, and layers are dealt to stages in proportion to speed.

Assumptions:

* Identical micro-batches pass stages and links as jobs pass the machines of a flow shop: m of them take the sum of all
  parts and (m - 1) times the longest part. Sending overlaps computing. A backward pass computes twice as long as a
  forward pass.
* All flows of a phase are there at once and share links evenly; links inside a host take no time.
* Sums begin after the last backward pass, in all stages at once, as rings that visit the hosts of a rack one after the
  other: 2 (d - 1) / d of a stage's gradients cross each link of the ring, and the busiest link decides.
* A stage is as fast as its slowest rank.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fanin.layouts.cluster import NO_RACK, Cluster

Grid = tuple[tuple[int, ...], ...]
"""Host of the rank of each stage and replica: `grid[stage][replica]`."""
FORWARD_SHARE = 1 / 3
"""Share of a micro-batch's computing that its forward pass takes."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a step."""

    pipeline_s: float
    """The slowest replica's forward and backward passes."""
    sums_s: float
    """Sums of gradients, of all stages at once."""

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.pipeline_s + self.sums_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A division of ranks into stages and replicas, and the work of a step in it."""

    cluster: Cluster
    stages: int
    replicas: int
    layers: int
    micro_batches: int
    """Micro-batches of each replica in a step."""
    layer_s: float
    """Computing of one micro-batch in one layer, forward and backward, at speed 1."""
    layer_bytes: float
    """Gradients of one layer."""
    activation_bytes: float
    """Bytes of one micro-batch at a boundary between stages, each way."""

    def layers_of(self, grid: Grid) -> list[int]:
        """Layers of each stage."""
        return deal_layers(self.layers, [min(self.cluster.speeds[host] for host in stage) for stage in grid])

    def times(self, grid: Grid) -> Times:
        """Times of a step in this layout."""
        layers = self.layers_of(grid)
        speeds = [min(self.cluster.speeds[host] for host in stage) for stage in grid]
        computing = [self.layer_s * count / speed for count, speed in zip(layers, speeds, strict=True)]
        return Times(self._pipeline_s(grid, computing), self._sums_s(grid, layers))

    def _pipeline_s(self, grid: Grid, computing: Sequence[float]) -> float:
        """Both passes of the slowest replica."""
        more = self.micro_batches - 1
        longest, fill_s = max(computing), sum(computing)
        alone_s = fill_s + more * longest
        slowest_s = alone_s
        for hops in self._hop_times(grid):
            if not hops:
                continue
            busiest = max(hops)
            travel_s = sum(hops) + len(hops) * self.cluster.round_trip_s / 2
            passes = (FORWARD_SHARE * longest, (1 - FORWARD_SHARE) * longest)
            took_s = fill_s + 2 * travel_s + more * sum(max(each, busiest) for each in passes)
            slowest_s = max(slowest_s, took_s)
        return slowest_s

    def _hop_times(self, grid: Grid) -> list[list[float]]:
        """For each replica, the seconds that one micro-batch keeps the links of each boundary between hosts busy.

        Both passes take the same: one's flows are the other's, reversed, and links carry as much each way.
        """
        cluster, rack_of = self.cluster, self.cluster.rack_of
        out, into = [0] * len(cluster.ranks), [0] * len(cluster.ranks)
        up, down = [0] * len(cluster.racks), [0] * len(cluster.racks)
        for before, after in itertools.pairwise(grid):
            for one, two in zip(before, after, strict=True):
                if one != two:
                    out[one] += 1
                    into[two] += 1
                    if rack_of[one] != rack_of[two]:
                        _count(up, rack_of[one])
                        _count(down, rack_of[two])
        bits = 8 * self.activation_bytes
        found: list[list[float]] = [[] for _ in range(self.replicas)]
        for before, after in itertools.pairwise(grid):
            for replica, (one, two) in enumerate(zip(before, after, strict=True)):
                if one == two:
                    continue
                share = max(out[one] / cluster.rates[one], into[two] / cluster.rates[two])
                if (near := rack_of[one]) != (far := rack_of[two]):
                    share = max(share, up[near] / cluster.uplinks[near] if near != NO_RACK else 0.0)
                    share = max(share, down[far] / cluster.uplinks[far] if far != NO_RACK else 0.0)
                found[replica].append(bits * share)
        return found

    def _sums_s(self, grid: Grid, layers: Sequence[int]) -> float:
        cluster, rack_of = self.cluster, self.cluster.rack_of
        links, uplinks = [0.0] * len(cluster.ranks), [0.0] * len(cluster.racks)
        ring = 2 * (self.replicas - 1) / self.replicas
        travels = False
        for stage, count in zip(grid, layers, strict=True):
            hosts = set(stage)
            if len(hosts) == 1:
                continue
            travels = True
            bits = 8 * ring * count * self.layer_bytes
            for host in hosts:
                links[host] += bits
            # A host without a rack is a place of its own.
            places = {(rack_of[host], host if rack_of[host] == NO_RACK else NO_RACK) for host in hosts}
            for rack, _ in places if len(places) > 1 else ():
                if rack != NO_RACK:
                    uplinks[rack] += bits
        if not travels:
            return 0.0
        busy = [load / rate for load, rate in zip([*links, *uplinks], [*cluster.rates, *cluster.uplinks], strict=True)]
        return max(busy) + 2 * (self.replicas - 1) * cluster.round_trip_s

    def least_s(self) -> float:
        """Lower bound on the step time of any layout: computing at the greatest speed, and no waiting for links but for
        the sums that every host must send because it holds fewer ranks than a stage has.
        """
        cluster = self.cluster
        speed = max(cluster.speeds)
        most_layers = -(-self.layers // self.stages)
        computing_s = self.layer_s * (self.layers + (self.micro_batches - 1) * most_layers) / speed
        if self.replicas <= max(cluster.ranks) or self.replicas == 1:
            return computing_s
        least_layers = self.layers // self.stages if len(set(cluster.speeds)) == 1 else 1
        bits = 8 * 2 * (self.replicas - 1) / self.replicas * least_layers * self.layer_bytes
        return computing_s + bits / min(cluster.rates) + 2 * (self.replicas - 1) * cluster.round_trip_s


def _count(flows: list[int], rack: int) -> None:
    if rack != NO_RACK:
        flows[rack] += 1


def deal_layers(layers: int, speeds: Sequence[float]) -> list[int]:
    """Layers of each stage: one each, and every further layer where the stage then takes least time (Holmes's
    self-adapting partition). With equal speeds they differ by at most one.
    """
    dealt = [1] * len(speeds)
    waiting = [(2 / speed, stage) for stage, speed in enumerate(speeds)]
    heapq.heapify(waiting)
    for _ in range(layers - len(speeds)):
        _, stage = waiting[0]
        dealt[stage] += 1
        heapq.heapreplace(waiting, ((dealt[stage] + 1) / speeds[stage], stage))
    return dealt
