"""A machine's memory is bounded by its window, for any number of packets."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np

from fanin.host.machine.worker_machine import WorkerMachine
from tests.support.cluster import Cluster, job

ROUNDS = 8


def test_the_twin_holds_no_more_after_many_reductions_than_after_few() -> None:
    cluster = Cluster.joined("twin", spec=job())
    array = [np.ones(200, np.float32)] * 2
    held = []
    tracemalloc.start()
    try:
        for _ in range(ROUNDS):
            cluster.all_reduce(array)
            for told in cluster.network.worker_events:
                told.clear()
            gc.collect()  # numpy's `ctypes` attribute makes cycles
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert isinstance(cluster.workers[0], WorkerMachine)
    assert max(held[ROUNDS // 2 :]) < held[1] + 20_000


def test_the_native_machine_allocates_nothing_after_its_first_reductions(kind: str) -> None:
    if kind == "twin":
        return
    cluster = Cluster.joined(kind, spec=job(slots=64))
    small, large = ([np.ones(count, np.float32)] * 2 for count in (40, 20_000))
    cluster.all_reduce(small)
    held = cluster.workers[0].buffer_bytes()  # type: ignore[attr-defined]
    assert held < 100_000
    for _ in range(3):
        cluster.all_reduce(large)
        cluster.all_reduce(small)
    assert cluster.workers[0].buffer_bytes() == held  # type: ignore[attr-defined]
