"""Reductions through real sockets: the sums are right, and their bits do not depend on how packets travelled."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.numerics.reduction import Element
from tests.support.builders import Array, reduction
from tests.support.engines import DEADLINE_S
from tests.support.native_engines import DEFAULT_LIMIT_BYTES, cluster, gradients, joined, serving, spec_of


def summed(workers: int, count: int, *, lanes: int = 32, flows: int = 1, **options: Any) -> Array:
    """The result of every rank; asserts that all get the same."""
    with cluster(spec_of(workers), flows=flows, **options) as job:
        arrays = gradients(workers, count)
        job.run(arrays, lanes=lanes)
    for array in arrays[1:]:
        assert array.tobytes() == arrays[0].tobytes()
    return arrays[0]


@pytest.mark.parametrize(("lanes", "tolerance"), [(32, 1e-6), (16, 2e-3), (8, 0.5), (4, 8.0)])
def test_every_rank_gets_the_sum_and_the_same_bits(lanes: int, tolerance: float) -> None:
    expected = np.sum([array.astype(np.float64) for array in gradients(3, 20_000)], axis=0)
    if lanes == 4:
        assert np.abs(summed(2, 20_000, lanes=4) - np.sum(gradients(2, 20_000), axis=0)).max() < tolerance
    else:
        assert np.abs(summed(3, 20_000, lanes=lanes) - expected).max() < tolerance


@pytest.mark.parametrize(
    ("element", "dtype"), [(Element.INT32, np.int32), (Element.INT16, np.int16), (Element.UINT8, np.uint8)]
)
def test_integers_are_exact(element: Element, dtype: type) -> None:
    info = np.iinfo(dtype)
    random = np.random.default_rng(9)
    arrays = [random.integers(info.min // 3, info.max // 3, 5_001, dtype=dtype, endpoint=True) for _ in range(3)]
    expected = np.sum(arrays, axis=0, dtype=np.int64)
    with cluster(spec_of(3)) as job:
        job.run(arrays, element=element)
    assert (arrays[0] == expected).all()


@pytest.mark.parametrize("flows", [2, 3])
def test_flows_do_not_change_a_bit(flows: int) -> None:
    assert summed(2, 30_001, flows=flows).tobytes() == summed(2, 30_001).tobytes()


def test_packets_sent_one_by_one_make_the_same_bits() -> None:
    assert summed(3, 30_001, offload=False).tobytes() == summed(3, 30_001).tobytes()


def test_trains_are_used_only_where_they_may_be() -> None:
    def trains(offload: bool) -> int:
        with cluster(spec_of(1), offload=offload) as job:
            job.run(gradients(1, 100_000))
            counters: dict[str, int] = job.engines[0].counters()
            return counters["socket_trains"] + counters["socket_coalesced"]

    assert trains(False) == 0
    if trains(True) == 0:
        pytest.skip("this kernel has no UDP GSO and GRO")


def test_results_with_and_without_words_go_out_in_trains() -> None:
    """A round with bare results is two datagrams, for different workers, and receipts come in between."""
    with cluster(spec_of(3)) as job:
        arrays = [np.full(300_000, rank + 1, np.int32) for rank in range(3)]
        results = [np.zeros(100_000, np.int32) for _ in range(3)]
        for _ in range(2):
            tickets = [
                engine.submit(reduction(array, result, keep_first=100_000 * rank, keep_count=100_000))
                for rank, (engine, array, result) in enumerate(zip(job.engines, arrays, results, strict=True))
            ]
            assert all(engine.wait(ticket, DEADLINE_S) for engine, ticket in zip(job.engines, tickets, strict=True))
        counters = job.server.counters()
        of_job = job.server.job_counters(job.spec.job)
        receipts = sum(engine.counters()["receipts"] for engine in job.engines)
    assert all((result == 6).all() for result in results)
    assert receipts > 0.8 * of_job["receipts"] > 0  # the last ones may be on their way
    if counters["socket_trains"] == 0:
        pytest.skip("this kernel has no UDP GSO and GRO")
    assert counters["socket_system_calls"] < of_job["packets_out"]


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize(("words", "codes"), [(352, 1), (4064, 4)])
def test_an_ordinary_users_buffers_hold_every_window(words: int, codes: int, offload: bool) -> None:
    spec = spec_of(4, words=words, codes=codes)
    with cluster(spec, receive_buffer_bytes=DEFAULT_LIMIT_BYTES, offload=offload) as job:
        for repetition in range(3):
            job.run(gradients(4, 300_000, repetition))
        resent = sum(engine.counters()["retransmissions"] for engine in job.engines)
        overflows = sum(end.counters()["socket_overflows"] for end in (*job.engines, job.server))
    # Where processes are held up for longer than a timer waits, what it sends comes on top of the window.
    assert overflows <= resent


def test_jobs_do_not_hear_of_each_other() -> None:
    with serving() as server:
        specs = [spec_of(2, job=job) for job in (1, 2, 3)]
        for spec in specs:
            server.admit(spec)
        with joined(server, specs[0]) as first, joined(server, specs[1]) as second, joined(server, specs[2]) as third:
            jobs = [first, second, third]
            arrays = [gradients(2, 10_000, seed) for seed in range(3)]
            expected = [sum(pair) for pair in arrays]
            tickets = [
                [engine.submit(reduction(array)) for engine, array in zip(engines, pair, strict=True)]
                for engines, pair in zip(jobs, arrays, strict=True)
            ]
            for engines, numbers in zip(jobs, tickets, strict=True):
                assert all(engine.wait(ticket, DEADLINE_S) for engine, ticket in zip(engines, numbers, strict=True))
        for pair, total in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(pair[0], total, atol=1e-5)
            assert pair[0].tobytes() == pair[1].tobytes()
        assert sorted(server.jobs()) == [1, 2, 3]


def test_an_empty_reduction_is_done_at_once() -> None:
    with cluster(spec_of(2)) as job:
        ticket = job.engines[0].submit(reduction(np.empty(0, np.float32)))
        assert job.engines[0].wait(ticket, 0.0)


def test_a_wait_ends_with_its_timeout_and_the_reduction_goes_on() -> None:
    with cluster(spec_of(2)) as job:
        first, second = job.engines
        mine, other = gradients(2, 1000)
        expected = mine + other
        ticket = first.submit(reduction(mine))
        assert not first.wait(ticket, 0.01)
        assert not first.done(ticket)
        second.submit(reduction(other))
        assert first.wait(ticket, DEADLINE_S)
        np.testing.assert_allclose(mine, expected, atol=1e-5)


def test_many_threads_may_wait_at_once() -> None:
    count = 6
    with cluster(spec_of(2)) as job:
        arrays = [[np.full(5_000, rank + 1, np.int32) for _ in range(count)] for rank in range(2)]
        tickets = [job.engines[0].submit(reduction(array)) for array in arrays[0]]
        waited: list[bool] = []
        threads = [
            threading.Thread(target=lambda ticket=ticket: waited.append(job.engines[0].wait(ticket, DEADLINE_S)))
            for ticket in reversed(tickets)
        ]
        for thread in threads:
            thread.start()
        for array in arrays[1]:
            job.engines[1].submit(reduction(array))
        for thread in threads:
            thread.join()
    assert waited == [True] * count
    assert all((array == 3).all() for array in arrays[0])


def test_finished_reductions_are_told_of_in_order_to_who_asks() -> None:
    with cluster(spec_of(1)) as job:
        engine = job.engines[0]
        engine.subscribe()
        tickets = [engine.submit(reduction(np.ones(3_000, np.float32))) for _ in range(5)]
        assert [engine.next_event(DEADLINE_S).ticket for _ in tickets] == tickets


def test_the_engine_keeps_an_array_until_its_reduction_is_done() -> None:
    with cluster(spec_of(2)) as job:
        mine = np.ones(1000, np.float32)
        ticket = job.engines[0].submit(reduction(mine))
        address = mine.ctypes.data
        del mine
        again = np.ones(1000, np.float32)
        assert again.ctypes.data != address
        job.engines[1].submit(reduction(again))
        assert job.engines[0].wait(ticket, DEADLINE_S)


def test_lanes_too_narrow_for_the_workers_are_refused_with_the_remedy() -> None:
    with cluster(spec_of(8)) as job, pytest.raises(ConfigurationError, match="lanes"):
        job.engines[0].submit(reduction(np.ones(8, np.float32), lanes=4))


def test_memory_stays_small_however_long_the_tensor() -> None:
    with cluster(spec_of(1, words=4064, codes=4), flows=2) as job:
        job.run([np.ones(4_000_000, np.float32)])
        assert job.engines[0].buffer_bytes() < 64 << 20
