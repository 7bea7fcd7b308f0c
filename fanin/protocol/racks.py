"""Placement of the sums of hosts in racks, so that each byte crosses a rack's uplink once, each way.

A tensor is cut into slices. Every rack has a shard for each slice, at which its ranks meet; one of a slice's shards is
above the others, which are leaves of it (docs/control.md, *Trees of switches*). For S slices and R racks an uplink
carries, each way and in tensors, 1/S for each slice whose root is in another rack and (R - 1)/S for each whose root is
in its own: with two racks 1, however many hosts are in each, where a ring carries 2 (n - 1) / n and shards without
racks n / 2.

Roots are dealt to the racks in turn, so that uplinks and their two directions are loaded alike, and each is on another
host. In its own rack the leaf of a slice is beside the root; the other leaves go to the hosts with the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TWO = 2
"""Number of racks with which both uplinks are loaded alike, whichever racks the roots are in, so slices may be odd."""


@dataclass(frozen=True, slots=True)
class RackPlan:
    """Placement of roots and leaves on the hosts of racks. Hosts are numbers, as their racks list them."""

    racks: tuple[tuple[int, ...], ...]
    """The hosts of each; two racks or more, none empty."""
    roots: tuple[int, ...]
    """The host of each slice's root."""
    leaves: tuple[tuple[int, ...], ...]
    """For each rack, the host of each slice's leaf."""

    @classmethod
    def of(cls, racks: Sequence[Sequence[int]]) -> RackPlan:
        """Make the plan for these racks; every rank that knows them makes the same."""
        largest, count = max(map(len, racks)), len(racks)
        slices = largest if count == TWO else -(-largest // count) * count
        free = [list(hosts) for hosts in racks]
        roots: list[int] = []
        for number in range(min(slices, sum(map(len, racks)))):
            rack = next(each for turn in range(count) if free[each := (number + turn) % count])
            roots.append(free[rack].pop(0))
        return cls(tuple(map(tuple, racks)), tuple(roots), tuple(_leaves(hosts, roots) for hosts in racks))

    def rack_of(self, host: int) -> int:
        """The rack that a host is in."""
        return next(number for number, hosts in enumerate(self.racks) if host in hosts)

    def leaves_on(self, host: int) -> tuple[int, ...]:
        """The slices whose leaves a host runs for its rack."""
        return tuple(slice_ for slice_, at in enumerate(self.leaves[self.rack_of(host)]) if at == host)

    def uplink_load(self, rack: int) -> float:
        """Tensors that a rack's uplink carries each way."""
        here = sum(root in self.racks[rack] for root in self.roots)
        slices = len(self.roots)
        return (slices - here + here * (len(self.racks) - 1)) / slices

    def link_load(self, host: int, ranks: int = 1) -> float:
        """Tensors that a host's link carries each way, with so many ranks on every host of its rack."""
        return sum(self.link_streams(host, ranks))

    def link_streams(self, host: int, ranks: int = 1) -> tuple[float, float, float]:
        """Tensors that the host's link carries on the way out: contributions of its ranks, results for its neighbours,
        and sums that switches exchange. On the way in the first two change places.
        """
        slices, rack = len(self.roots), self.rack_of(host)
        beside = len(self.racks[rack]) - 1
        at_home = len(self.leaves_on(host))
        contributions, results = ranks * (slices - at_home), ranks * beside * at_home
        up = sum(self.roots[slice_] != host for slice_ in self.leaves_on(host))
        down = sum(root == host for root in self.roots) * (len(self.racks) - 1)
        return contributions / slices, results / slices, (up + down) / slices


def _leaves(hosts: Sequence[int], roots: Sequence[int]) -> tuple[int, ...]:
    """The hosts of a rack's leaves, one for each slice."""
    carried = {host: int(host in roots) for host in hosts}
    found = []
    for root in roots:
        host = root
        if root not in carried:
            host = min(hosts, key=lambda each: carried[each])
            carried[host] += 1
        found.append(host)
    return tuple(found)
