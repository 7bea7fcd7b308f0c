"""A job's workers and CUBIC flows behind one link, in virtual time: what share of it each gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.support.builders import reduction
from tests.support.cluster import Cluster, job
from tests.support.cubic import SEGMENT_BYTES, CubicReceiver, CubicSender
from tests.support.network import Link

WORDS, SLOTS, CHUNKS = 352, 362, 182
"""Words as long as frames are, slots as a host's socket holds, and chunks of 256 KiB: two such reductions are under way
at any time.
"""
PACKET_BYTES = WORDS * 4 + 36
FIRST_SENDER = 1000
LATE_S = 5e-4
"""How late a worker wakes up, at most; TCP is in the kernel. Without that a worker sends exactly when a packet of its
own has left the queue: it finds room, always, and every overflow meets the bursts of the others."""
TURN_S = 5e-4
"""How often a worker is given the next reduction."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a worker and of each TCP flow, relative to the fair share; and of the link by all together."""

    worker: float
    tcp: tuple[float, ...]
    together: float

    @property
    def mean_tcp(self) -> float:
        """Mean share of the TCP flows."""
        return sum(self.tcp) / len(self.tcp)


def shares(
    *, workers: int, flows: int, seed: int, bytes_per_s: float, queue_bytes: int, round_trip_s: float, seconds: float
) -> Shares:
    """Measured for so long, after half as long."""
    spec = job(workers=workers, slots=SLOTS, words_per_packet=WORDS)
    delay_s = round_trip_s / 2
    cluster = Cluster.joined("native", spec=spec, switch="native", seed=seed, link=Link(delay_s=delay_s))
    network = cluster.network
    senders = [CubicSender(FIRST_SENDER + 2 * flow + 1) for flow in range(flows)]
    behind = [1 + worker for worker in range(workers)] + [FIRST_SENDER + 2 * flow for flow in range(flows)]
    network.share(behind, Link(delay_s=delay_s, bytes_per_s=bytes_per_s, queue_bytes=queue_bytes))
    for flow, sender in enumerate(senders):
        network.attach(FIRST_SENDER + 2 * flow, sender)
        network.attach(FIRST_SENDER + 2 * flow + 1, CubicReceiver(FIRST_SENDER + 2 * flow))
    for worker in range(workers):
        network.wakes_late(1 + worker, LATE_S)

    def progress() -> list[int]:
        results = sum(worker.counters()["results"] for worker in cluster.workers)
        return [results * PACKET_BYTES // workers, *(sender.delivered * SEGMENT_BYTES for sender in senders)]

    def run(seconds: float) -> None:
        until = network.now + seconds
        while network.now < until:
            for worker, machine in enumerate(cluster.workers):
                while machine.outstanding() < 2:
                    cluster.submit(worker, reduction(np.ones(CHUNKS * WORDS, np.int32)))
            network.run_for(TURN_S)

    run(seconds / 2)
    before = progress()
    run(seconds)
    members = workers + flows
    rates = [(b - a) * members / seconds / bytes_per_s for a, b in zip(before, progress(), strict=True)]
    return Shares(rates[0], tuple(rates[1:]), (workers * rates[0] + sum(rates[1:])) / members)
