"""K < N and S > 0: what a worker may conclude from results that it is not in. Integers, each chunk owning a slot."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from fanin.protocol.wire import Flag, Kind, Packet, parse
from tests.support.cluster import Array, Cluster, job, reduction
from tests.support.network import SWITCH, Link

ITERATIONS = 12
SLOTS, WORDS = 2, 8


def iterate(cluster: Cluster, order: list[int]) -> list[list[Array]]:
    """Every worker reduces ITERATIONS arrays in place, as fast as it may, in this order; results by worker."""
    count = SLOTS * WORDS
    arrays = [[np.full(count, 1 << 2 * w, np.int32) for _ in range(ITERATIONS)] for w in range(cluster.spec.workers)]
    left = {worker: iter(arrays[worker]) for worker in order}
    for worker in itertools.cycle(order):
        if not left:
            break
        if worker in left and (array := next(left[worker], None)) is not None:
            cluster.submit(worker, reduction(array, signature=5))
        else:
            left.pop(worker, None)
        cluster.network.run_for(30e-6)
    cluster.run()
    return arrays


@pytest.mark.parametrize("link", [Link(), Link(loss=0.2, duplicate=0.2, reorder=0.3)], ids=["lossless", "hostile"])
@pytest.mark.parametrize(("quorum", "staleness"), [(1, 1), (2, 1), (3, 2), (1, 3)])
def test_every_worker_gets_the_same_results_and_nothing_is_lost(
    kinds: str, quorum: int, staleness: int, link: Link
) -> None:
    spec = job(workers=3, quorum=quorum, staleness=staleness, slots=SLOTS, words_per_packet=WORDS)
    cluster = Cluster.joined(kinds, spec=spec, link=link, seed=quorum + staleness)
    results = iterate(cluster, [0, 0, 1, 2])
    for results_of_one_round in zip(*results, strict=True):
        assert len({result.tobytes() for result in results_of_one_round}) == 1
    total = np.sum([result[0] for result in results[0]])
    contributed = ITERATIONS * sum(1 << 2 * worker for worker in range(3))
    assert total <= contributed
    late = contributed - total
    assert late <= staleness * sum(1 << 2 * worker for worker in range(3))


# R-RESULT-8
def test_a_result_without_our_contribution_is_left_for_the_answer(kind: str) -> None:
    """A worker whose first packet is lost sees a result that it is not in; it must not count it as its own."""
    spec = job(workers=2, quorum=1, staleness=1, slots=1, words_per_packet=8)
    cluster = Cluster.joined(kind, spec=spec)
    arrays = [np.full(8, worker + 1, np.int32) for worker in range(2)]
    lost: list[int] = []

    def lose_the_first_contribution_of_worker_1(_now: float, source: int, _destination: int, data: bytes) -> bool:
        if source == 2 and parse(data).kind is Kind.CONTRIBUTION and not lost:
            lost.append(1)
            return False
        return True

    cluster.network.wiretap = lose_the_first_contribution_of_worker_1
    for worker in (1, 0):
        cluster.submit(worker, reduction(arrays[worker], signature=5))
    cluster.network.run_until(lambda: cluster.workers[0].outstanding() == 0, limit_s=1)
    cluster.network.run_for(1e-3)
    assert cluster.workers[1].counters()["unacknowledged"] == 1
    assert (arrays[1] == 2).all()
    cluster.run()
    assert (arrays[0] == 1).all()
    assert (arrays[1] == 1).all()


# R-RESULT-7
def test_a_bare_answer_acknowledges_and_the_next_one_brings_the_result(kind: str) -> None:
    """Some targets cannot read one ring entry and add to another in one pass (docs/slot-machine.md)."""
    spec = job(workers=2, quorum=1, staleness=1, slots=1, words_per_packet=8)
    cluster = Cluster.joined(kind, spec=spec)
    arrays = [np.full(8, worker + 1, np.int32) for worker in range(2)]
    stripped: list[object] = []

    def strip_the_first_answer(_now: float, _source: int, destination: int, data: bytes) -> bool:
        packet = parse(data)
        if packet.kind is not Kind.ANSWER or stripped:
            return True
        bare = dataclasses.replace(packet, flags=Flag.BARE, words=np.empty(0, np.uint32))
        stripped.append(bare)
        cluster.network.inject(bare.to_bytes(), SWITCH, destination)
        return False

    cluster.network.wiretap = strip_the_first_answer
    cluster.submit(0, reduction(arrays[0], signature=5))
    cluster.run()
    cluster.submit(1, reduction(arrays[1], signature=5))
    before = cluster.network.now
    cluster.run()
    assert len(stripped) == 1
    assert cluster.network.now - before < 1e-3
    assert (arrays[1] == 1).all()


# R-RESULT-5
def test_a_bare_answer_without_the_workers_bit_acknowledges_nothing(kind: str) -> None:
    """A newcomer asks where it stands and is answered so: a late copy of the answer must not turn a pass into words."""
    spec = job(workers=2, quorum=2, staleness=1, slots=1, words_per_packet=8)
    cluster = Cluster.joined(kind, spec=spec)
    sent: list[Packet] = []

    def hold(_now: float, source: int, _destination: int, data: bytes) -> bool:
        packet = parse(data)
        if source == 2 and packet.kind is Kind.CONTRIBUTION:
            sent.append(packet)
        return True

    cluster.network.wiretap = hold
    array = np.full(8, 7, np.int32)
    cluster.submit(1, reduction(array, signature=5, passes=True))
    cluster.network.run_for(1e-3)
    stands = Packet(kind=Kind.ANSWER, job=spec.job, worker=1, generation=spec.generation, flags=Flag.BARE).to_bytes()
    cluster.network.inject(stands, source=SWITCH, destination=2)
    cluster.network.run_for(1e-3)
    own = np.full(8, 3, np.int32)
    cluster.submit(0, reduction(own, signature=5))
    cluster.run()
    assert [Flag.PASS in packet.flags for packet in sent] == [True]
    assert cluster.workers[1].counters()["duplicates"] == 1
    assert (array == 3).all()
    assert (own == 3).all()


def test_a_round_of_passes_only_sums_to_zero(kind: str) -> None:
    spec = job(workers=2, quorum=1, staleness=1, slots=1, words_per_packet=8)
    cluster = Cluster.joined(kind, spec=spec)
    cluster.network.cut(1)
    passing = Packet(
        kind=Kind.CONTRIBUTION, job=spec.job, worker=0, generation=spec.generation, flags=Flag.PASS
    ).to_bytes()
    cluster.network.heal(1)
    cluster.network.inject(passing, source=1, destination=SWITCH)
    cluster.network.run_for(1e-3)
    array = np.full(8, 9, np.int32)
    cluster.submit(1, reduction(array, signature=5))
    cluster.run()
    assert (array == 0).all()
