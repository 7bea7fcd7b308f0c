"""A job beside CUBIC flows behind one link, in virtual time: neither starves the other (docs/performance.md)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.builders import reduction
from tests.support.cluster import WORKER_MACHINES, Cluster, job
from tests.support.cubic import SEGMENT_BYTES, CubicReceiver, CubicSender
from tests.support.network import Link

pytestmark = pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")

WORDS, SLOTS, CHUNKS = 352, 362, 2000
PACKET_BYTES = WORDS * 4 + 36
BYTES_PER_S = 12.5e6
WORKERS = 2
FIRST_SENDER = 1000
WARM_UP_S, MEASURED_S = 1.5, 3.0
LATE_S = 5e-4
"""How late a worker wakes up, at most; TCP is in the kernel. Without that a worker sends exactly when a packet of its
own has left the queue: it finds room, always, and every overflow meets the bursts of the others."""


def shares(flows: int, seed: int) -> tuple[float, list[float], float]:
    """A worker's share of its fair share, each TCP flow's, and what of the link all have together."""
    spec = job(workers=WORKERS, slots=SLOTS, words_per_packet=WORDS)
    cluster = Cluster.joined("native", spec=spec, switch="native", seed=seed, link=Link(delay_s=20e-6))
    network = cluster.network
    senders = [CubicSender(FIRST_SENDER + 2 * flow + 1) for flow in range(flows)]
    behind = [1 + worker for worker in range(WORKERS)] + [FIRST_SENDER + 2 * flow for flow in range(flows)]
    network.share(behind, Link(delay_s=20e-6, bytes_per_s=BYTES_PER_S, queue_bytes=256 << 10))
    for flow, sender in enumerate(senders):
        network.attach(FIRST_SENDER + 2 * flow, sender)
        network.attach(FIRST_SENDER + 2 * flow + 1, CubicReceiver(FIRST_SENDER + 2 * flow))
    for worker in range(WORKERS):
        network.wakes_late(1 + worker, LATE_S)
        for _ in range(10):
            cluster.submit(worker, reduction(np.ones(CHUNKS * WORDS, np.int32)))

    def progress() -> list[int]:
        results = sum(worker.counters()["results"] for worker in cluster.workers)
        return [results * PACKET_BYTES // WORKERS, *(sender.delivered * SEGMENT_BYTES for sender in senders)]

    network.run_for(WARM_UP_S)
    before = progress()
    network.run_for(MEASURED_S)
    members = WORKERS + flows
    rates = [(b - a) * members / MEASURED_S / BYTES_PER_S for a, b in zip(before, progress(), strict=True)]
    return rates[0], rates[1:], (WORKERS * rates[0] + sum(rates[1:])) / members


@pytest.mark.parametrize("flows", [1, 4])
def test_workers_and_cubic_flows_have_about_a_fair_share_each(flows: int) -> None:
    worker, tcp, together = shares(flows, seed=1)
    assert 0.75 < worker < 1.25, (worker, tcp)
    assert 0.75 < sum(tcp) / flows < 1.4, (worker, tcp)
    assert together > 0.95
