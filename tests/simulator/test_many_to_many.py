"""A shard on every host, in virtual time: contributions and results of all meet in the queues of every link.

The machines are native, as in test_shared_links.py.
"""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest

from fanin.protocol.spread import Spread, optimal_parts, weights_of
from tests.support.machines import WORKER_MACHINES
from tests.support.many_to_many import ManyToMany
from tests.support.network import Link
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")

WORDS = 352
PACKET_BYTES = WORDS * 4 + 36
QUEUE_BYTES = 1 << 20


def reduce(
    hosts: int,
    bits_per_s: float,
    slots: int,
    chunks: int,
    queue_bytes: int = QUEUE_BYTES,
    *,
    delay_s: float = 20e-6,
    loss: float = 0.0,
    seed: int = 0,
) -> tuple[ManyToMany, float]:
    """One all-reduce of `chunks` packets per worker and shard; and what part of it the links alone needed."""
    link = Link(delay_s=delay_s, bytes_per_s=bits_per_s / 8, queue_bytes=queue_bytes)
    cluster = ManyToMany(hosts, link, seed=seed, slots=slots, words_per_packet=WORDS)
    cluster.lose(loss)
    begun = cluster.network.now
    results = cluster.all_reduce([np.full(chunks * hosts * WORDS, 1 + rank, np.int32) for rank in range(hosts)])
    assert all((result == hosts * (hosts + 1) // 2).all() for result in results)
    ideal_s = 2 * (hosts - 1) * chunks * PACKET_BYTES / link.bytes_per_s
    return cluster, ideal_s / (cluster.network.now - begun)


def test_where_flows_share_the_window_of_one_nothing_is_lost_and_nothing_goes_again() -> None:
    """Four flows with 512 KiB each would overflow them, and one lost contribution holds up all workers."""
    cluster, of_ideal = reduce(4, 1e9, slots=360, chunks=600)
    assert cluster.overflows == 0
    assert cluster.total("retransmissions") == 0
    assert of_ideal > 0.98


def spread_over(hosts: int, spares: int) -> Spread:
    return Spread(weights_of(optimal_parts([1.0] * hosts, [1.0] * spares)))


@pytest.mark.parametrize(("hosts", "spares"), [(4, 0), (4, 2), (8, 4)])
def test_every_link_carries_what_the_theorem_says_and_spare_ones_make_it_less(hosts: int, spares: int) -> None:
    link = Link(delay_s=20e-6, bytes_per_s=1.25e8, queue_bytes=QUEUE_BYTES)
    cluster = ManyToMany(hosts, link, spread=spread_over(hosts, spares), slots=360, words_per_packet=WORDS)
    before = [cluster.link_bytes(host) for host in range(hosts + spares)]
    packets, begun = 4000, cluster.network.now
    results = cluster.all_reduce([np.full(packets * WORDS, 1 + rank, np.int32) for rank in range(hosts)])
    took_s = cluster.network.now - begun
    assert all((result == hosts * (hosts + 1) // 2).all() for result in results)
    theorem = 2 * hosts * (hosts - 1) / (hosts**2 + spares * hosts - 2 * spares)
    for host in range(hosts + spares):
        for now, earlier in zip(cluster.link_bytes(host), before[host], strict=True):
            assert (now - earlier) / (packets * PACKET_BYTES) == pytest.approx(theorem, rel=0.02)
    assert cluster.overflows == 0
    assert theorem * packets * PACKET_BYTES / link.bytes_per_s / took_s > 0.93


@pytest.mark.parametrize(("hosts", "bits_per_s", "slots"), [(8, 1e8, 360), (4, 1e9, 360)])
def test_where_nothing_is_lost_next_to_nothing_goes_again(hosts: int, bits_per_s: float, slots: int) -> None:
    """Queues grow from nothing to many round trips within one: every worker was made to send everything twice."""
    chunks = 300
    cluster, of_ideal = reduce(hosts, bits_per_s, slots, chunks)
    assert cluster.overflows == 0
    assert cluster.total("retransmissions") < 0.02 * chunks * hosts**2
    assert of_ideal > 0.94


@pytest.mark.parametrize("queue_kib", [64, 256])
def test_short_queues_cost_what_they_lose(queue_kib: int) -> None:
    """Cold: the first windows to all shards meet in every link."""
    cluster, of_ideal = reduce(8, 1e8, 360, 300, queue_kib << 10)
    assert of_ideal > 0.9
    assert cluster.total("retransmissions") < 1.5 * cluster.overflows + 8**2


@pytest.mark.parametrize(
    ("loss", "of_ideal"),
    [(0.0001, 0.9), thorough(0.01, 0.85), (0.05, 0.6)],
)
def test_over_shards_one_or_two_packets_go_again_for_each_that_was_lost(loss: float, of_ideal: float) -> None:
    """Cold, from the first packets on. Two: at the end of a transfer what is in doubt is asked for early.

    On the mean of a few: a packet that is lost at the very end waits for a timer, a tenth of these transfers.
    """
    runs = [reduce(8, 1e8, 360, 300, delay_s=1e-3, loss=loss, seed=seed) for seed in range(5)]
    lost = sum(cluster.lost + cluster.overflows for cluster, _ in runs)
    assert sum(cluster.total("retransmissions") for cluster, _ in runs) <= 2 * lost + 8 * len(runs)
    assert mean(reached for _, reached in runs) > of_ideal
