"""Congestion in virtual time: workers that share a link, and links that lose frames (docs/performance.md).

The machines are native: the twin's sameness is for tests/worker/test_lockstep.py and tests/simulator/test_snapshot.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.cluster import WORKER_MACHINES, Cluster, job
from tests.support.network import Link, SharedLink
from tests.support.tree import LEAF, WORKER, Tree

pytestmark = pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")

WORDS, SLOTS = 352, 362
BYTES_PER_S = 12.5e6
"""Rate of the link, 100 Mbit/s."""
PACKET_BYTES = WORDS * 4 + 36


@dataclass
class Outcome:
    """The figures of an all-reduce."""

    of_ideal: float
    """Share of the payload and headers that the link could have carried, once."""
    resent: int
    lost: int


def joined(workers: int, seed: int = 1, delay_s: float = 20e-6) -> Cluster:
    """A cluster on links that are no limit."""
    spec = job(workers=workers, slots=SLOTS, words_per_packet=WORDS)
    return Cluster.joined("native", spec=spec, switch="native", seed=seed, link=Link(delay_s=delay_s))


def reduce_over(cluster: Cluster, chunks: int, packets_over_link: int) -> Outcome:
    """One all-reduce of so many packets per worker."""
    begun = cluster.network.now
    workers = cluster.spec.workers
    results = cluster.all_reduce([np.full(chunks * WORDS, 1 + rank, np.int32) for rank in range(workers)], limit_s=100)
    assert all((result == workers * (workers + 1) // 2).all() for result in results)
    ideal_s = packets_over_link * PACKET_BYTES / BYTES_PER_S
    return Outcome(ideal_s / (cluster.network.now - begun), cluster.total("retransmissions"), cluster.network.lost)


def over_shared_link(workers: int, queue_bytes: int, chunks: int = 1200, mark_bytes: int = 0) -> Outcome:
    """All workers behind one link of 100 Mbit/s, whose queue marks what has more than `mark_bytes` before it."""
    cluster = joined(workers)
    link = Link(delay_s=20e-6, bytes_per_s=BYTES_PER_S, queue_bytes=queue_bytes, mark_bytes=mark_bytes)
    shared: SharedLink = cluster.network.share([1 + worker for worker in range(workers)], link)
    outcome = reduce_over(cluster, chunks, workers * chunks)
    return Outcome(outcome.of_ideal, outcome.resent, shared.up.overflows + shared.down.overflows)


@pytest.mark.parametrize("queue_kib", [64, 256, 1024])
def test_eight_workers_behind_one_link_use_nine_tenths_of_it(queue_kib: int) -> None:
    outcome = over_shared_link(8, queue_kib << 10)
    assert outcome.of_ideal > 0.9
    assert outcome.resent <= 1.2 * outcome.lost


@pytest.mark.parametrize("mark_kib", [16, 64])
def test_where_the_link_marks_next_to_nothing_is_lost(mark_kib: int) -> None:
    outcome = over_shared_link(8, 256 << 10, mark_bytes=mark_kib << 10)
    assert outcome.of_ideal > 0.95
    assert outcome.lost == outcome.resent == 0


def test_incast_of_sixteen_workers_into_a_queue_of_128_kib() -> None:
    outcome = over_shared_link(16, 128 << 10, chunks=800)
    assert outcome.of_ideal > 0.85
    assert outcome.resent <= 2 * outcome.lost


def test_leaves_behind_one_link_to_their_root_use_nine_tenths_of_it() -> None:
    """Without a window of their own they sent up whatever was complete, and got 1 % through."""
    chunks, words = 600, WORDS
    tree = Tree(
        root="native", leaf="native", worker="native", per_leaf=4, slots=SLOTS, words_per_packet=words,
        link=Link(delay_s=20e-6),
    )  # fmt: skip
    hosts = [LEAF, LEAF + 1, *(WORKER + worker for worker in range(8))]
    link = tree.share(hosts, Link(delay_s=20e-6, bytes_per_s=BYTES_PER_S, queue_bytes=64 << 10))
    begun = tree.now
    results = tree.all_reduce([np.full(chunks * words, 1 + rank, np.int32) for rank in range(8)])
    assert all((result == 36).all() for result in results)
    assert 2 * chunks * PACKET_BYTES / BYTES_PER_S / (tree.now - begun) > 0.9
    assert link.up.overflows < 0.15 * 2 * chunks


@pytest.mark.parametrize("loss", [0.0001, 0.001, 0.01, 0.05])
def test_at_most_three_packets_go_again_for_each_that_was_lost(loss: float) -> None:
    resent = lost = 0
    for seed in range(3):
        cluster = joined(4, seed, 1e-3)
        cluster.network.link = Link(delay_s=1e-3, bytes_per_s=BYTES_PER_S, loss=loss)
        outcome = reduce_over(cluster, 1500, 1500)
        resent += outcome.resent
        lost += outcome.lost
    assert resent <= 1.5 * lost + 4, (resent, lost)


@pytest.mark.parametrize(("loss", "of_ideal"), [(0.0, 0.95), (0.001, 0.9), (0.01, 0.85), (0.05, 0.6)])
def test_frames_lost_by_chance_do_not_close_the_window(loss: float, of_ideal: float) -> None:
    cluster = joined(4, delay_s=1e-3)
    cluster.network.link = Link(delay_s=1e-3, bytes_per_s=BYTES_PER_S, loss=loss)
    assert reduce_over(cluster, 4000, 4000).of_ideal > of_ideal
