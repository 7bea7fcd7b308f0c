"""Limits of an all-reduce over a tree of switches: links, slots, memory, packets of the busiest switch, and bits.

Rules of this file
------------------
* Nothing is simulated: each figure is arithmetic on the fabric of scale.py and on the formulas by which jobs are
  admitted (fanin/protocol/job.py, fanin/numerics/lanes.py). tests/simulator/test_scale.py compares slots and packets
  with the simulation of the real machines.
* A switch of the tree has a slot for each packet of the window, whatever the number of workers. Depth costs round-trip
  time, and so slots; a switch only ever adds its own children's contributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fanin.emulation.simulator.scale import Fabric, Transfer
from fanin.numerics import lanes
from fanin.protocol.job import JobSpec

LANE_BITS = 32


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one all-reduce."""

    workers: int
    round_trip_s: float
    """Time from the first bit of a contribution to the last bit of its result, with no other packet on the way."""
    link_s: float
    """Time that all packets of a worker take on its link."""
    window_s: float
    """Time of all windows, at one round trip each."""
    slots: int
    """Fewest slots with which the first result comes back before a worker has sent its window."""
    switch_bytes: int
    """Memory of a job with that many slots, at every switch of the tree."""
    busiest_packets: int
    """Packets into and out of the switch with the most children, per reduction."""
    busiest_packets_per_s: float
    """`busiest_packets` per second, if links are the limit."""
    bits: int
    """Bits, without sign, that a 32-bit lane leaves to one worker's largest element so that no sum overflows."""

    @property
    def bound_by(self) -> Literal["links", "slots"]:
        """The limit that takes longer: the links' bytes, or the windows' round trips."""
        return "links" if self.link_s >= self.window_s else "slots"


def bounds(fabric: Fabric, transfer: Transfer) -> Bounds:
    """Limits of a transfer over a fabric; ConfigurationError if no lane holds that many contributions."""
    sizes = transfer.item_bytes()
    packet_s = transfer.packet_bytes / fabric.bytes_per_s
    round_trip_s = packet_s + fabric.path_s(transfer.packet_bytes, fabric.levels)
    slots, link_s = math.ceil(round_trip_s / packet_s), sum(sizes) / fabric.bytes_per_s
    links_of = [
        int(counts.max()) + (level < fabric.levels)  # every switch but the root is a child as well
        for level, counts in enumerate(fabric.children, start=1)
    ]
    packets = 2 * max(links_of) * len(sizes)
    spec = JobSpec(
        job=0,
        generation=0,
        workers=1,
        quorum=1,
        slots=slots,
        words_per_packet=transfer.words_per_packet,
        codes_per_packet=max(1, transfer.codes_per_packet),
        tokens=(0,),
    )
    return Bounds(
        workers=fabric.workers,
        round_trip_s=round_trip_s,
        link_s=link_s,
        window_s=len(sizes) / transfer.window * round_trip_s,
        slots=slots,
        switch_bytes=spec.pool_bytes,
        busiest_packets=packets,
        busiest_packets_per_s=packets / link_s,
        bits=lanes.largest_step(LANE_BITS, fabric.workers).bit_length() - 1,
    )
