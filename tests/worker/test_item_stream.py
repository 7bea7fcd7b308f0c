"""Moments at which items may be sent, and the items of an operation: host/machine/item_stream.py, operation.py."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.host.machine.item_stream import ItemStream
from fanin.host.machine.operation import Operation
from fanin.protocol.job import WINDOW_POOLS
from fanin.protocol.wire import MAX_BASE
from tests.support.cluster import job, reduction

SPEC = job(slots=4, words_per_packet=8)
CODES = np.zeros(1, np.uint16)


def floats(chunks: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.ones(8 * chunks, np.float32)


def operation(first_item: int, chunks: int, dtype: type[np.generic] = np.float32) -> Operation:
    return Operation(1, reduction(np.ones(8 * chunks, dtype)), SPEC, 0, 1, first_item)


def stream_of(*operations: Operation) -> ItemStream:
    stream = ItemStream(SPEC.slots, SPEC.window_items)
    for given in operations:
        stream.append(given)
    return stream


def taken(stream: ItemStream) -> list[int]:
    return list(iter(stream.take, None))


# R-WORKER-2
@pytest.mark.parametrize(("chunks", "lead", "items"), [(1, 1, 2), (3, 3, 6), (4, 4, 8), (10, 4, 14)])
def test_codes_travel_one_pool_ahead_of_words(chunks: int, lead: int, items: int) -> None:
    given = operation(100, chunks)
    assert (given.lead, given.items) == (lead, items)
    every = range(100, 100 + items)
    assert [c for item in every if (c := given.codes_chunk(item)) is not None] == list(range(chunks))
    assert [c for item in every if (c := given.words_chunk(item)) is not None] == list(range(chunks))
    assert given.words_chunk(100 + lead) == 0


def test_integers_need_no_codes() -> None:
    given = operation(0, 5, np.int32)
    assert (given.lead, given.items, given.code_count) == (0, 5, 0)


# R-WORKER-1
def test_a_pool_of_items_may_be_sent_at_first() -> None:
    assert taken(stream_of(operation(0, 10))) == [0, 1, 2, 3]


# R-WORKER-1
def test_a_finished_item_lets_its_slot_go_on() -> None:
    stream = stream_of(operation(0, 10))
    taken(stream)
    stream.finish(2, CODES)
    assert taken(stream) == [6]
    stream.finish(6, CODES)
    assert taken(stream) == [10]


# R-WORKER-2
def test_words_wait_for_their_codes_also_across_slots() -> None:
    stream = stream_of(operation(0, 2), operation(4, 1))
    assert taken(stream) == [0, 1]
    stream.finish(1, CODES)
    assert taken(stream) == [3]
    stream.finish(0, CODES)
    assert taken(stream) == [2, 4]
    stream.finish(4, CODES)
    assert taken(stream) == [5]


# R-WORKER-1
def test_no_slot_runs_away_from_the_oldest_unfinished_item() -> None:
    stream = stream_of(operation(0, 100, np.int32))
    taken(stream)
    ahead = 1
    while True:
        stream.finish(ahead, CODES)
        if taken(stream) == []:
            break
        ahead += SPEC.slots
    assert ahead + SPEC.slots == 1 + WINDOW_POOLS * SPEC.slots
    stream.finish(0, CODES)
    assert taken(stream) == [4, ahead + SPEC.slots]


def test_an_item_is_queued_once_however_often_it_is_asked_for() -> None:
    stream = stream_of(operation(0, 10))
    taken(stream)
    stream.send_again(1)
    stream.send_again(1)
    assert taken(stream) == [1]


def test_what_is_finished_while_it_waits_to_be_sent_again_is_not_sent() -> None:
    stream = stream_of(operation(0, 1))
    taken(stream)
    stream.send_again(0)
    stream.finish(0, CODES)
    assert taken(stream) == [1]


def test_a_job_that_has_used_up_its_bases_says_so() -> None:
    stream = ItemStream(SPEC.slots, SPEC.window_items)
    stream.end_item = (MAX_BASE - 1) * SPEC.slots
    with pytest.raises(OverflowError, match="rounds"):
        stream.append(operation(stream.end_item, 20))


@pytest.mark.parametrize("flow_count", [1, 2, 3, 7])
def test_flows_cover_every_chunk_once(flow_count: int) -> None:
    asked = reduction(floats(5)[:-3])
    flows = [Operation(1, asked, SPEC, flow, flow_count, 0) for flow in range(flow_count)]
    assert sum(flow.chunks for flow in flows) == 5
    words = sorted(flow.word_count(flow.first_item + flow.lead + c) for flow in flows for c in range(flow.chunks))
    assert words == [5, 8, 8, 8, 8]


def test_signatures_tell_operations_apart() -> None:
    x = floats(2)
    given = [
        Operation(1, reduction(x), SPEC, 0, 1, 0),
        Operation(2, reduction(x), SPEC, 0, 1, 0),
        Operation(1, reduction(x[:-1]), SPEC, 0, 1, 0),
        Operation(1, reduction(x.view(np.int32)), SPEC, 0, 1, 0),
        Operation(1, reduction(x, lanes=8), SPEC, 0, 1, 0),
        Operation(1, reduction(x, tag=1), SPEC, 0, 1, 0),
        Operation(1, reduction(x, signature=77), SPEC, 0, 1, 0),
    ]
    assert len({each.signature for each in given}) == len(given)
    assert given[-1].signature == 77
    for own in (reduction(x, divisor=2.0), reduction(x, factor=0.5)):
        assert Operation(1, own, SPEC, 0, 1, 0).signature == given[0].signature, "each rank's own business"
