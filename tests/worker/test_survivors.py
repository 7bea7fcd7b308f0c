"""A job that survives losses, in virtual time: who goes on, who comes in, and what their results hold."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.protocol.events import MembersChanged, Stands
from tests.support.cluster import Array, Cluster, job, reduction
from tests.support.network import SWITCH, Link

WORKERS, SLOTS, WORDS = 3, 3, 8
NEW_TOKEN = 0xABCDEF
HOSTILE = Link(loss=0.1, duplicate=0.1, reorder=0.2)


def cluster_of(kinds: str, link: Link | None = None, **given: int) -> Cluster:
    spec = job(workers=WORKERS, slots=SLOTS, words_per_packet=WORDS, on_worker_loss="continue", **given)
    return Cluster.joined(kinds, spec=spec, link=link, seed=7)


def submit(cluster: Cluster, workers: list[int], value: int = 1) -> list[Array]:
    arrays = [np.full(SLOTS * WORDS, value << 4 * worker, np.int32) for worker in workers]
    for worker, array in zip(workers, arrays, strict=True):
        cluster.submit(worker, reduction(array, signature=5))
    return arrays


def lose(cluster: Cluster, worker: int) -> None:
    cluster.network.cut(1 + worker)
    cluster.switch.evict(cluster.spec.job, worker, cluster.network.now)
    cluster.network.speak(SWITCH)


def replace_worker(cluster: Cluster, kind: str, worker: int) -> None:
    """A new process in the place of one that is gone, with the address of the old one healed."""
    cluster.switch.admit_worker(cluster.spec.job, worker, NEW_TOKEN)
    kind = ("twin", "native")[worker % 2] if kind == "mixed" else kind
    given = {"switch": 0, "token": NEW_TOKEN, "newcomer": True}
    cluster.workers[worker] = newcomer = type(cluster.workers[worker])(cluster.spec, worker, **given)  # type: ignore[call-arg]
    cluster.network.heal(1 + worker)
    cluster.network.replace(worker, newcomer)


def changes(cluster: Cluster, worker: int) -> list[MembersChanged]:
    return [event for event in cluster.news(worker) if isinstance(event, MembersChanged)]


def hear(cluster: Cluster, worker: int, count: int) -> None:
    """Run until the worker has heard of so many changes: where a notice was lost, until a heartbeat has brought it."""
    cluster.network.run_until(lambda: len(changes(cluster, worker)) >= count, limit_s=10)


def stands(cluster: Cluster, worker: int) -> list[int]:
    return [event.base for event in cluster.network.worker_events[worker] if isinstance(event, Stands)]


# R-MEMBER-12
@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
def test_rounds_close_without_a_worker_that_is_gone(kinds: str, link: Link | None) -> None:
    cluster = cluster_of(kinds, link)
    submit(cluster, [0, 1, 2])
    cluster.run()
    cluster.network.cut(1 + 1)
    first, second = submit(cluster, [0, 2])
    assert not cluster.network.try_until(lambda: not cluster.workers[0].outstanding(), limit_s=1.0)
    lose(cluster, 1)
    cluster.network.run_until(lambda: not cluster.workers[0].outstanding(), limit_s=10)
    cluster.network.run_until(lambda: not cluster.workers[2].outstanding(), limit_s=10)
    assert first.tolist() == second.tolist() == [0x101] * (SLOTS * WORDS)
    for survivor in (0, 2):
        hear(cluster, survivor, 1)
        (change,) = changes(cluster, survivor)
        heard_late = link is not None and change.base == 2  # the notice was lost, and a heartbeat brings the news
        assert change == MembersChanged(1, 0b101, 0b010, 0, 2 if heard_late else 1)
        assert not cluster.workers[survivor].failed


def test_a_mean_divides_by_who_was_there(kinds: str) -> None:
    cluster = cluster_of(kinds)
    lose(cluster, 1)
    arrays = [np.full(SLOTS * WORDS, value, np.float32) for value in (2.0, 4.0)]
    for worker, array in zip((0, 2), arrays, strict=True):
        cluster.submit(worker, reduction(array, divisor=0.0))
    cluster.network.run_until(
        lambda: not (cluster.workers[0].outstanding() or cluster.workers[2].outstanding()), limit_s=10
    )
    assert arrays[0].tolist() == arrays[1].tolist() == [3.0] * (SLOTS * WORDS)


def test_a_result_says_who_is_in_each_of_its_packets(kinds: str) -> None:
    """Worker 1 has contributed to the first packets, and is gone before the others have."""
    cluster = cluster_of(kinds)
    early = np.full(2 * WORDS, 1, np.int32)
    cluster.submit(1, reduction(early, signature=5))
    cluster.network.run_for(0.01)
    lose(cluster, 1)
    arrivals = np.zeros((2, 2, 2), np.uint32)
    for round_number in (0, 1):
        for number, worker in enumerate((0, 2)):
            array = np.full(2 * WORDS, 1, np.int32)
            asked = reduction(array, signature=5, arrivals=arrivals[round_number, number].ctypes.data)
            cluster.submit(worker, asked)
        cluster.network.run_until(
            lambda: not (cluster.workers[0].outstanding() or cluster.workers[2].outstanding()), limit_s=10
        )
    assert arrivals.tolist() == [[[0b111, 0b111]] * 2, [[0b101, 0b101]] * 2]


# R-MEMBER-15
@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize(("quorum", "staleness"), [(3, 0), (1, 2)])
def test_a_newcomer_gets_in_step_and_takes_part(kind: str, quorum: int, staleness: int, link: Link | None) -> None:
    cluster = cluster_of(kind, link, quorum=quorum, staleness=staleness)
    submit(cluster, [0, 1, 2])
    cluster.run()
    lose(cluster, 1)
    survivors = (cluster.workers[0], cluster.workers[2])
    for _ in range(3):
        submit(cluster, [0, 2])
        cluster.network.run_until(lambda: not any(each.outstanding() for each in survivors), limit_s=20)
    hear(cluster, 0, 1)
    replace_worker(cluster, kind, 1)
    cluster.network.run_until(lambda: bool(stands(cluster, 1)), limit_s=20)
    (first,) = stands(cluster, 1)
    newcomer = cluster.workers[1]
    newcomer.begin(first + 1)
    cluster.network.submitted(1)
    for _ in range(first + 1 - 4):
        submit(cluster, [0, 2], 3)
        cluster.network.run_until(lambda: not any(each.outstanding() for each in survivors), limit_s=20)
    totals = []
    for _ in range(4):
        arrays = submit(cluster, [0, 1, 2])
        cluster.run()
        assert arrays[0].tolist() == arrays[1].tolist() == arrays[2].tolist()
        totals.append(int(arrays[0][0]))
    if staleness == 0:
        assert totals == [0x111] * 4
    hear(cluster, 0, 2)
    heard = [(event.gone, event.come, event.members) for event in changes(cluster, 0)]
    assert heard == [(0b010, 0, 0b101), (0, 0b010, 0b111)]


def test_a_newcomer_takes_no_reductions_before_it_is_in_step(kind: str) -> None:
    cluster = cluster_of(kind)
    lose(cluster, 1)
    replace_worker(cluster, kind, 1)
    array = np.zeros(4, np.int32)
    with pytest.raises(RuntimeError, match="running job"):
        cluster.workers[1].submit(reduction(array))


# R-MEMBER-14, R-MEMBER-15
def test_slots_that_stand_at_different_bases_begin_at_one(kind: str) -> None:
    """One slot is ahead of the others: the newcomer passes in those until all are where its reductions begin."""
    cluster = cluster_of(kind)
    lose(cluster, 1)
    for worker in (0, 2):
        cluster.submit(worker, reduction(np.full(WORDS, 1, np.int32), signature=5))  # slot 0 alone
    cluster.network.run_until(lambda: not cluster.workers[2].outstanding(), limit_s=10)
    replace_worker(cluster, kind, 1)
    cluster.network.run_until(lambda: bool(stands(cluster, 1)), limit_s=10)
    assert stands(cluster, 1) == [1]
    cluster.workers[1].begin(2)
    cluster.network.submitted(1)
    arrays = [np.full((2 * SLOTS - 1) * WORDS, 1 << 4 * worker, np.int32) for worker in (0, 2)]
    for worker, array in zip((0, 2), arrays, strict=True):
        cluster.submit(worker, reduction(array, signature=5))
    cluster.network.run_until(lambda: not cluster.workers[2].outstanding(), limit_s=10)
    assert arrays[0].tolist() == [0x101] * len(arrays[0])
    together = submit(cluster, [0, 1, 2])
    cluster.run()
    assert [array.tolist() for array in together] == [[0x111] * (SLOTS * WORDS)] * 3
