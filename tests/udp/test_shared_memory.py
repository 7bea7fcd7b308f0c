"""Shared memory beside the sockets: the same bits, taken where it can be mapped, and nothing depends on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fanin.numerics.reduction import COPIED
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import datagram_bytes
from tests.hostile.segment import DOWNLINK_WRITTEN_AT, LINE_BYTES, UPLINK_WRITTEN_AT, Segment
from tests.support.builders import Array, reduction
from tests.support.engines import DEADLINE_S, Engines
from tests.support.native_engines import gradients, joined, serving
from tests.support.native_engines import spec_of as any_spec_of

spec_of = partial(any_spec_of, slots=8)


@contextlib.contextmanager
def cluster(spec: JobSpec, *, flows: int = 1, shared: Sequence[Sequence[str] | None] = ()) -> Iterator[Engines]:
    """A job; `shared[rank]` replaces the paths that a rank is told, None keeps them."""
    with serving(flows=flows) as server:
        server.admit(spec)
        usual = server.shared_memory(spec.job)
        paths = [usual if told is None else told for told in shared] or [usual] * spec.workers
        with joined(server, spec, paths=paths) as engines:
            yield Engines(spec, server, engines)


def add_up(job: Engines, count: int, *, lanes: int = 32, seed: int = 5) -> list[Array]:
    """Every rank's result of summing one random array per rank, in place."""
    arrays = gradients(len(job.engines), count, seed)
    job.run(arrays, lanes=lanes)
    return arrays


@pytest.mark.parametrize("flows", [1, 2])
@pytest.mark.parametrize("lanes", [32, 8])
def test_the_bits_are_those_that_udp_yields(flows: int, lanes: int) -> None:
    spec = spec_of(3)
    with cluster(spec, flows=flows) as job:
        assert all(engine.shares_memory for engine in job.engines)
        shared = add_up(job, 50_000, lanes=lanes)
        assert all(engine.counters()["shared_memory_out"] > 0 for engine in job.engines)
        assert job.server.counters()["shared_memory_in"] > 0
    with cluster(spec, flows=flows, shared=[[]] * 3) as job:
        assert not any(engine.shares_memory for engine in job.engines)
        sockets = add_up(job, 50_000, lanes=lanes)
        assert all(engine.counters()["shared_memory_out"] == 0 for engine in job.engines)
    assert len({array.tobytes() for array in shared + sockets}) == 1


def test_workers_here_and_elsewhere_share_a_job_each_by_the_way_that_there_is() -> None:
    with cluster(spec_of(3), shared=[None, [], None]) as job:
        assert [engine.shares_memory for engine in job.engines] == [True, False, True]
        results = add_up(job, 20_000)
        assert len({array.tobytes() for array in results}) == 1
        here, elsewhere, _ = (engine.counters() for engine in job.engines)
    assert here["shared_memory_in"] >= here["results"] - here["timeouts"]
    assert elsewhere["shared_memory_in"] == 0


def test_what_comes_through_shared_memory_needs_no_tag_and_what_goes_by_udp_has_one() -> None:
    spec = replace(spec_of(3), data_key=bytes(range(16)))
    with cluster(spec, shared=[None, [], None]) as job:
        results = add_up(job, 20_000)
        assert len({array.tobytes() for array in results}) == 1
        counters = [engine.counters() for engine in job.engines]
        assert job.server.job_counters(spec.job)["dropped_tag"] == 0
        assert job.server.counters()["shared_memory_in"] > 0
    assert [each["dropped_tag"] for each in counters] == [0, 0, 0]


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_result_is_read_where_it_was_added_up_unless_a_late_worker_might_find_another_there(
    max_staleness: int,
) -> None:
    spec = replace(spec_of(2), max_staleness=max_staleness)
    with cluster(spec) as job:
        arrays = [np.full(20_000, rank, np.int32) for rank in range(2)]
        job.run(arrays, signature=7)
        assert all((array == 1).all() for array in arrays)
        with Segment(job.server.shared_memory(spec.job)[0]) as segment:
            lines = segment.number(DOWNLINK_WRITTEN_AT) / LINE_BYTES
        counters = job.server.counters()
    assert counters["shared_memory_out"] >= counters["rounds"] >= 20_000 // spec.words_per_packet
    copied = counters["rounds"] * (spec.packet_bytes // LINE_BYTES)  # answers to what timers send again always are
    assert lines < copied / 2 if max_staleness == 0 else lines >= copied


@pytest.mark.parametrize("path", ["/proc/1/fd/0", "/nonexistent", "/dev/zero", "", "/proc/self/exe"])
def test_a_path_that_is_no_memory_of_ours_means_udp(path: str) -> None:
    with cluster(spec_of(2), shared=[[path], [path]]) as job:
        assert not any(engine.shares_memory for engine in job.engines)
        assert len({array.tobytes() for array in add_up(job, 5_000)}) == 1


def test_memory_of_another_job_is_not_used() -> None:
    other = replace(spec_of(2, job=4), tokens=(2000, 2001))
    with serving() as server:
        server.admit(other)
        wrong = server.shared_memory(other.job)
        with cluster(spec_of(2), shared=[wrong, wrong]) as job:
            assert not any(engine.shares_memory for engine in job.engines)


def test_packets_that_find_no_room_go_by_udp() -> None:
    """A ring holds two windows at most, less what is lost where it wraps."""
    spec = any_spec_of(2, slots=16, words=16_352)
    assert datagram_bytes(1, spec.words_per_packet) > 65_000
    with cluster(spec) as job:
        for seed in range(3):
            assert len({array.tobytes() for array in add_up(job, 600_000, seed=seed)}) == 1


@pytest.mark.parametrize("flows", [1, 2])
def test_what_one_worker_alone_contributes_is_written_where_the_others_read_it(flows: int) -> None:
    """Ranks own parts of one size, which begin and end within packets; then one has all, larger than two windows."""
    spec = spec_of(3)
    with cluster(spec, flows=flows) as job:
        for owned in ([30_001] * 3, [0, 90_003, 0]):
            total = sum(owned)
            expected = np.random.default_rng(total).integers(0, 256, total, np.uint8)
            starts = np.cumsum([0, *owned])[:-1]
            arrays = [np.zeros(total, np.uint8) for _ in owned]
            parts = [expected[start : start + count].copy() for start, count in zip(starts, owned, strict=True)]
            for array, part, start in zip(arrays, parts, starts, strict=True):
                array[start : start + part.size] = part
            tickets = [
                engine.submit(
                    reduction(part, array, count=total, lanes=COPIED, own_first=int(start), own_count=part.size)
                )
                for engine, part, array, start in zip(job.engines, parts, arrays, starts, strict=True)
            ]
            for engine, ticket, array in zip(job.engines, tickets, arrays, strict=True):
                assert engine.wait(ticket, DEADLINE_S)
                np.testing.assert_array_equal(array, expected)
        with contextlib.ExitStack() as opened:
            segments = [opened.enter_context(Segment(path)) for path in job.server.shared_memory(spec.job)]
            lines = sum(
                segment.number(segment.of_worker(worker, UPLINK_WRITTEN_AT)) / LINE_BYTES
                for segment in segments
                for worker in range(3)
            )
        counters = [engine.counters() for engine in job.engines]
        sent = sum(each["shared_memory_out"] for each in counters)
    whole_packets = 2 * 2  # two packets hold parts of two ranks each
    whole_packets += int(sum(each["retransmissions"] for each in counters))  # what goes again is copied
    copied = whole_packets * (spec.packet_bytes // LINE_BYTES + 1)
    assert sent <= lines <= sent + copied + 3 * flows * spec.packet_bytes // LINE_BYTES


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_gather_that_is_written_past_the_caches_arrives_at_any_address(offset: int) -> None:
    """4 MiB and more; parts begin and end within words, lines and packets."""
    owned = (1_500_001, 1_400_002, 1_300_003)
    total, starts = sum(owned), (0, 1_500_001, 2_900_003)
    expected = np.random.default_rng(offset).integers(0, 256, total, np.uint8)
    spec = any_spec_of(3, slots=16, words=4064)
    with cluster(spec) as job:
        arrays = [np.full(total + offset + 64, 0xA5, np.uint8) for _ in owned]
        landed = [array[offset : offset + total] for array in arrays]
        parts = [expected[start : start + count].copy() for start, count in zip(starts, owned, strict=True)]
        for array, part, start in zip(landed, parts, starts, strict=True):
            array[start : start + part.size] = part
        tickets = [
            engine.submit(reduction(part, array, count=total, lanes=COPIED, own_first=start, own_count=part.size))
            for engine, part, array, start in zip(job.engines, parts, landed, starts, strict=True)
        ]
        assert all(engine.wait(ticket, DEADLINE_S) for engine, ticket in zip(job.engines, tickets, strict=True))
    for array, kept in zip(arrays, landed, strict=True):
        np.testing.assert_array_equal(kept, expected)
        assert (array[:offset] == 0xA5).all()
        assert (array[offset + total :] == 0xA5).all()


def test_a_job_that_is_removed_gives_its_memory_up() -> None:
    spec = spec_of(2)
    with serving() as server:
        server.admit(spec)
        assert len(server.shared_memory(spec.job)) == 1
        server.remove(spec.job)
        assert server.shared_memory(spec.job) == ()
        server.admit(spec, share_memory=False)
        assert server.shared_memory(spec.job) == ()


def test_a_worker_that_closes_does_not_hold_up_the_others() -> None:
    """Its place in the downlink stands still from then on; evicted, the others fill the ring many times over."""
    spec = spec_of(3)
    with cluster(spec) as job:
        add_up(job, 10_000)
        job.engines[2].leave(DEADLINE_S)
        job.engines[2].close()
        job.server.evict(spec.job, 2)
        others = replace(job, engines=job.engines[:2])
        before = job.engines[0].counters()["shared_memory_in"]
        for seed in range(5):
            assert len({array.tobytes() for array in add_up(others, 100_000, seed=seed)}) == 1
        assert job.engines[0].counters()["shared_memory_in"] - before >= 5 * 100_000 // spec.words_per_packet


def test_the_switch_is_woken_at_most_once_for_a_round() -> None:
    """By whoever makes up the number that the round misses; retransmissions wake it always."""
    with cluster(spec_of(4)) as job:
        for _ in range(200):
            add_up(job, 100)
        counters = [engine.counters() for engine in job.engines]
    woken, timeouts = (sum(each[name] for each in counters) for name in ("shared_memory_doorbells", "timeouts"))
    assert woken <= counters[0]["results"] + timeouts
