"""Faults of the network do not show in the results: loss, duplicates, reordering, corruption, partitions, pauses."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.numerics.reduction import Element
from fanin.protocol.timers import measures
from tests.support.cluster import Array, Cluster, expected, job, reduction
from tests.support.network import SWITCH, Link

HOSTILE = Link(loss=0.2, duplicate=0.1, reorder=0.2, corrupt=0.05)
SEEDS = range(5)


def inputs_of(workers: int, count: int) -> list[Array]:
    return list(np.random.default_rng(11).standard_normal((workers, count)).astype(np.float32))


def ones(cluster: Cluster, chunks: int) -> None:
    cluster.all_reduce([np.ones(chunks * cluster.spec.words_per_packet, np.float32)] * cluster.spec.workers)


@pytest.mark.parametrize("switch", ["twin", "native"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hostile_network_does_not_change_a_bit(kinds: str, switch: str, seed: int) -> None:
    spec = job(workers=3, checksum=True)
    inputs = inputs_of(3, 600)
    cluster = Cluster.joined(kinds, spec=spec, switch=switch, link=HOSTILE, seed=seed)
    results = cluster.all_reduce(inputs)
    want = expected(spec, inputs, Element.FLOAT32)
    assert all(result.tobytes() == want.tobytes() for result in results)
    assert all(cluster.news(worker) == [] for worker in range(3))
    assert cluster.total("dropped_checksum") > 0
    assert cluster.total("duplicates") > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_error_feedback_survives_a_hostile_network(kind: str, seed: int) -> None:
    spec = job(workers=2, checksum=True)
    inputs = inputs_of(2, 300)
    outcomes = []
    for link in (Link(), HOSTILE):
        residuals = [np.full(300, 0.01, np.float32) for _ in inputs]
        cluster = Cluster.joined(kind, spec=spec, link=link, seed=seed)
        for _ in range(3):
            arrays = [np.array(x) for x in inputs]
            for worker in range(2):
                cluster.submit(worker, reduction(arrays[worker], lanes=8, residual=residuals[worker]))
            cluster.run()
        outcomes.append([x.tobytes() for x in (*arrays, *residuals)])
    assert outcomes[0] == outcomes[1]


def test_one_percent_loss_leaves_more_than_half_of_the_goodput(kind: str) -> None:
    spec = job(workers=4, slots=16, words_per_packet=64)
    times = []
    for loss in (0.0, 0.01):
        cluster = Cluster.joined(kind, spec=spec, seed=1)
        cluster.network.link = Link(bytes_per_s=4e6, loss=loss)
        started = cluster.network.now
        ones(cluster, chunks=400)
        times.append(cluster.network.now - started)
    assert times[1] < 2 * times[0]


def test_a_lossless_network_sees_no_retransmission(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=3))
    ones(cluster, chunks=100)
    assert cluster.total("retransmissions") == cluster.total("duplicates") == 0
    receipts = sum(measures(order) for order in range(1, 100 + 4 + 1))
    assert cluster.total("packets_out") == 3 * (100 + 4 + 1)
    assert cluster.total("packets_in") == 3 * (100 + 4 + 1 + receipts)


def test_retransmissions_stay_in_proportion_to_losses(kind: str) -> None:
    """Each loss makes every worker send one packet again; more than twice that would be a storm."""
    spec = job(workers=3, slots=64, words_per_packet=64)
    cluster = Cluster.joined(kind, spec=spec, seed=4)
    count = lost = 0

    def drop_every_fiftieth(_now: float, _source: int, _destination: int, _data: bytes) -> bool:
        nonlocal count, lost
        count += 1
        lost += count % 50 == 0
        return count % 50 != 0

    cluster.network.link = Link(bytes_per_s=31e6)
    cluster.network.wiretap = drop_every_fiftieth
    ones(cluster, chunks=300)
    assert lost > 30
    assert cluster.total("retransmissions") < 2 * 3 * lost


def test_a_partition_that_heals_only_delays(kind: str) -> None:
    spec = job(workers=2)
    cluster = Cluster.joined(kind, spec=spec)
    inputs = inputs_of(2, 5000)
    arrays = [np.array(x) for x in inputs]
    for worker in range(2):
        cluster.submit(worker, reduction(arrays[worker]))
    cluster.network.run_for(500e-6)
    cluster.network.cut(1)
    cluster.network.run_for(3.0)
    assert cluster.workers[0].outstanding() == cluster.workers[1].outstanding() == 1
    cluster.network.heal(1)
    cluster.run(limit_s=2.0)
    assert arrays[0].tobytes() == arrays[1].tobytes() == expected(spec, inputs, Element.FLOAT32).tobytes()


def test_a_peer_that_is_late_costs_few_packets(kind: str) -> None:
    """Waiting 4 s for a peer, a worker asks some ten times (doubling), not once per timeout."""
    cluster = Cluster.joined(kind, spec=job(workers=2))
    arrays = [np.ones(500, np.float32) for _ in range(2)]
    cluster.submit(0, reduction(arrays[0]))
    cluster.network.run_for(4.0)
    assert 3 <= cluster.workers[0].counters()["retransmissions"] <= 16
    cluster.submit(1, reduction(arrays[1]))
    cluster.run(limit_s=0.5)
    assert (arrays[0] == 2).all()
    assert (arrays[1] == 2).all()


def test_a_worker_that_was_stopped_goes_on(kind: str) -> None:
    """After SIGSTOP and SIGCONT it must not take its own sleep for the silence of the switch."""
    cluster = Cluster.joined(kind, spec=job(workers=2, liveness_timeout_s=5.0))
    arrays = [np.ones(5000, np.float32) for _ in range(2)]
    for worker in range(2):
        cluster.submit(worker, reduction(arrays[worker]))
    cluster.network.run_for(200e-6)
    cluster.network.stop(1)
    cluster.network.run_for(4.5)
    cluster.network.resume(1)
    cluster.run(limit_s=2.0)
    assert (arrays[0] == 2).all()
    assert cluster.news(0) == cluster.news(1) == []


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_burst_that_loses_the_whole_window_costs_few_timeouts(kind: str, dtype: type[np.generic]) -> None:
    """Integers: nothing comes after the window that is lost, whose results would uncover it."""
    cluster = Cluster.joined(kind, spec=job(workers=2, slots=64))
    array = [np.ones(64 * 16, dtype) for _ in range(2)]
    cluster.network.cut(SWITCH)
    for worker in range(2):
        cluster.submit(worker, reduction(array[worker]))
    cluster.network.run_for(1e-3)
    cluster.network.heal(SWITCH)
    cluster.run(limit_s=0.1)
    assert cluster.total("timeouts") <= 8


def test_a_window_that_is_lost_costs_a_few_round_trips_and_no_timers(kind: str) -> None:
    """For the length of one round trip of 20 ms a worker sends and hears nothing: 256 contributions and results."""
    times = []
    for outage_s in (0.0, 0.02):
        link = Link(delay_s=0.01, bytes_per_s=12.5e6)
        cluster = Cluster.joined(kind, spec=job(workers=2, slots=256, words_per_packet=16), seed=1, link=link)
        for worker in range(2):
            cluster.submit(worker, reduction(np.ones(2500 * 16, np.int32)))
        cluster.network.run_for(0.2)
        begun = cluster.network.now
        cluster.network.cut(1)
        cluster.network.run_for(outage_s)
        cluster.network.heal(1)
        cluster.run(limit_s=20.0)
        times.append(cluster.network.now - begun)
    assert times[1] < times[0] + 25 * 0.02, "one repetition per round trip takes 250"
    assert cluster.total("timeouts") <= 6
    assert cluster.total("retransmissions") <= 1.1 * 256


@pytest.mark.parametrize("outage_s", [0.1, 1.0])
def test_an_outage_is_one_congestion_and_what_follows_its_repair_does_not_wait(kind: str, outage_s: float) -> None:
    """Results that it took are asked for over ten round trips: each of them cut the window, and with the window of two
    packets that a path has of which nothing is heard, the pace counted seconds for the repetitions."""
    link = Link(delay_s=0.02, bytes_per_s=12.5e6)
    cluster = Cluster.joined(kind, spec=job(workers=2, slots=256, words_per_packet=256), seed=1, link=link)
    for worker in range(2):
        cluster.submit(worker, reduction(np.ones(1500 * 256, np.int32)))
    cluster.network.run_for(0.2)
    cluster.network.cut(1)
    cluster.network.run_for(outage_s)
    cluster.network.heal(1)
    healed, packets = cluster.network.now, cluster.workers[0].counters()["packets_out"]
    cluster.run(limit_s=20.0)
    assert cluster.workers[0].counters()["cuts"] <= 1
    assert cluster.workers[0].counters()["packets_out"] > packets + 1000
    assert cluster.network.now - healed < 1.6
