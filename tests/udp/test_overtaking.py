"""Packets without words go ahead of those that wait at a host's device; nothing does behind words that may be under
way.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tests.support.builders import Array, moved, reduction
from tests.support.engines import Engines
from tests.support.native_engines import cluster, gradients
from tests.support.native_engines import spec_of as any_spec_of

SLOTS = 8
COUNT = 100_000
"""Bytes or elements: many times what the slots carry."""

spec_of = partial(any_spec_of, slots=SLOTS)


def ahead(job: Engines) -> list[int]:
    """Datagrams that went ahead: the ranks', then the switch's."""
    return [end.counters()["socket_ahead"] for end in (*job.engines, job.server)]


def broadcast(job: Engines) -> list[Array]:
    """Rank 0's bytes, at all ranks."""
    given = np.arange(COUNT, dtype=np.uint32).astype(np.uint8)
    nothing = np.empty(0, np.uint8)
    results = [given, *(np.zeros(COUNT, np.uint8) for _ in job.engines[1:])]
    asked = [moved(given, 0, COUNT, nothing, 0), *(moved(nothing, 0, COUNT, result, 0) for result in results[1:])]
    job.carry_out(asked)
    return results


def test_passes_go_ahead_and_so_do_bare_results() -> None:
    with cluster(spec_of(3)) as job:
        results = broadcast(job)
        root, *others, switch = ahead(job)
    assert all((result == results[0]).all() for result in results)
    assert root == 0
    assert min(others) > 0
    assert switch > 0  # to the root, which keeps nothing


def test_words_keep_their_place() -> None:
    with cluster(spec_of(3)) as job:
        job.run(gradients(3, COUNT))
        assert ahead(job) == [0, 0, 0, 0]


def test_nothing_goes_ahead_before_there_was_a_row_of_as_many_as_there_are_slots() -> None:
    """Bare results come in rows of half as many here, between sums that everybody keeps."""
    spec = spec_of(3)
    count = spec.words_per_packet * (SLOTS // 2)
    with cluster(spec) as job:
        for keeps in (3, 1, 3, 1, 3, 1):
            arrays = [np.full(count, 1 + rank, np.int32) for rank in range(3)]
            job.carry_out([reduction(array, keep_count=count * (rank < keeps)) for rank, array in enumerate(arrays)])
            assert all((array == 6).all() for array in arrays[:keeps])
        assert ahead(job) == [0, 0, 0, 0]


def test_where_rounds_do_not_wait_for_all_workers_a_switch_sends_in_order() -> None:
    with cluster(replace(spec_of(3), quorum=2, max_staleness=1)) as job:
        arrays = [np.full(COUNT, 1, np.int32) for _ in range(3)]
        results = [np.zeros_like(array) for array in arrays]
        for _ in range(3):
            job.carry_out(
                [
                    reduction(array, result, signature=1, passes=rank == 2)
                    for rank, (array, result) in enumerate(zip(arrays, results, strict=True))
                ],
            )
        assert all((result == 2).all() for result in results)
        *contributors, passer, switch = ahead(job)
        assert [*contributors, switch] == [0, 0, 0]
        assert passer > 0
