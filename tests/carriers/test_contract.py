"""Every native carrier keeps the contract of native/io/carrier.hpp: the same cases for each row of its table."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.hostile.segment import LINE_BYTES, UPLINK_READ_AT, UPLINK_WRITTEN_AT, Segment
from tests.support.native_engines import native, spec_of

SPEC = spec_of(3, slots=8)
"""Windows of 8 packets of about 1 KiB."""
NAMES = native.carriers()
BYPASSES = NAMES[1:]
LONGEST = 65_507
"""Bytes of the longest datagram: UDP over IPv4."""


@pytest.fixture(params=NAMES)
def rig(request: pytest.FixtureRequest) -> Any:
    return joined(request.param)


def joined(name: str, spec: Any = SPEC) -> Any:
    """A rig whose workers have all been welcomed."""
    made = native.CarrierRig(name, spec)
    for worker in range(spec.workers):
        made.join(worker)
    return made


def readable(rig: Any, worker: int) -> bool:
    """Whether a thread of the worker that sleeps in poll would wake."""
    return bool(select.select([rig.worker_fd(worker)], [], [], 0)[0])


def numbered(count: int, length: int = 200) -> list[bytes]:
    """Make datagrams that differ from each other."""
    return [index.to_bytes(4, "big") * (length // 4) for index in range(count)]


# --- batches ---


def test_a_batch_arrives_whole_and_in_order_with_the_number_of_its_sender(rig: Any) -> None:
    batches = {worker: [bytes([worker, index]) * (1 + 9 * index) for index in range(20)] for worker in range(3)}
    for worker, batch in batches.items():
        assert rig.up(worker, batch)[0] == len(batch)
    arrived = rig.at_switch()
    for worker, batch in batches.items():
        assert [data for data, source in arrived if source == rig.source_of(worker)] == batch
    assert len(arrived) == 60


def test_workers_have_different_numbers(rig: Any) -> None:
    assert len({rig.source_of(worker) for worker in range(3)}) == 3


def test_a_train_reaches_every_destination_and_nobody_else(rig: Any) -> None:
    train = numbered(12)
    assert rig.down([0, 2], train)
    assert rig.at_worker(0) == rig.at_worker(2) == train
    assert rig.at_worker(1) == []


def test_trains_to_different_destinations_stay_apart(rig: Any) -> None:
    for worker in (0, 1, 2, 1):
        assert rig.down([worker], [b"for %d" % worker])
    assert [rig.at_worker(worker) for worker in range(3)] == [[b"for 0"], [b"for 1"] * 2, [b"for 2"]]


@pytest.mark.parametrize("name", NAMES)
def test_datagrams_of_any_length_arrive_whole(name: str) -> None:
    rig = joined(name, spec_of(1, words=8 * 2000, slots=4))
    for length in (1, 3, 36, 55, 56, 57, 1000, 16_001, LONGEST):
        data = bytes(index * 7 % 251 for index in range(length))
        assert rig.up(0, [data])[0] == 1
        assert [arrived for arrived, _ in rig.at_switch()] == [data]
        assert rig.down([0], [data])
        assert rig.at_worker(0) == [data]


def test_nothing_comes_where_nothing_was_sent(rig: Any) -> None:
    assert rig.at_switch() == []
    assert [rig.at_worker(worker) for worker in range(3)] == [[], [], []]


# --- room ---


def test_without_a_reader_nothing_waits_and_all_that_had_room_arrives(rig: Any) -> None:
    """A bypass says that it has no room. The base carrier takes everything, and counts what the kernel drops."""
    batch = numbered(20_000)
    taken, _ = rig.up(0, batch)
    arrived = [data for data, _ in rig.at_switch()]
    assert arrived == batch[: len(arrived)]
    assert 0 < len(arrived) <= taken
    assert len(arrived) + rig.overflows == taken


def test_room_comes_back_once_the_other_side_has_read(rig: Any) -> None:
    """Many times around a ring."""
    for _ in range(20):
        taken, _ = rig.up(0, numbered(60))
        assert len(rig.at_switch()) == taken == 60
        assert rig.down([0, 1, 2], numbered(40))
        assert [len(rig.at_worker(worker)) for worker in range(3)] == [40] * 3


@pytest.mark.parametrize("name", BYPASSES)
def test_a_bypass_without_room_for_all_of_a_train_says_so(name: str) -> None:
    rig = joined(name)
    sent = 0
    while rig.down([0, 1, 2], numbered(4)):
        sent += 4
        assert sent < 20_000
    assert rig.at_worker(1)[:sent] == numbered(4) * (sent // 4)
    assert not rig.down([0, 1, 2], numbered(4))  # the others have not read
    for worker in (0, 2):
        assert len(rig.at_worker(worker)) >= sent
    assert rig.down([0, 1, 2], numbered(4))


# --- waking ---


def test_a_worker_that_sleeps_in_poll_is_woken_by_what_comes(rig: Any) -> None:
    assert rig.may_sleep(1)
    assert not readable(rig, 1)
    assert rig.down([0, 1], [b"result"])
    rig.idle()
    assert readable(rig, 1)
    assert rig.at_worker(1) == [b"result"]


@pytest.mark.parametrize("name", BYPASSES)
def test_a_worker_that_is_awake_is_not_rung(name: str) -> None:
    rig = joined(name)
    assert rig.may_sleep(1)
    rig.awake(1)
    assert rig.down([0, 1], [b"result"])
    rig.idle()
    assert not readable(rig, 1)


@pytest.mark.parametrize("name", BYPASSES)
def test_who_sleeps_on_the_bell_hears_it(name: str) -> None:
    rig = joined(name)
    before = rig.bell(2)
    assert rig.may_sleep(2, on_bell=True)
    assert rig.down([2], [b"result"])
    rig.idle()
    assert rig.bell(2) != before
    assert not readable(rig, 2)


@pytest.mark.parametrize("name", BYPASSES)
def test_nobody_goes_to_sleep_on_what_has_come_already(name: str) -> None:
    rig = joined(name)
    assert rig.down([0], [b"result"])
    assert not rig.may_sleep(0)
    assert rig.at_worker(0) == [b"result"]
    assert rig.may_sleep(0)
    assert rig.switch_may_sleep(missing=1)
    rig.up(0, [b"contribution"])
    assert not rig.switch_may_sleep(missing=1)


def test_a_switch_that_sleeps_is_woken_by_the_worker_that_makes_up_the_round(rig: Any) -> None:
    """By the base carrier's own datagram, or because the bypass asks for a doorbell."""
    assert rig.switch_may_sleep(missing=2)
    _, first = rig.up(0, [b"contribution"])
    _, second = rig.up(2, [b"contribution"])
    assert (first, second) in ((False, False), (False, True))
    assert len(rig.at_switch()) == 2


@pytest.mark.parametrize("name", BYPASSES)
def test_a_switch_that_sleeps_is_rung_once(name: str) -> None:
    rig = joined(name)
    assert rig.switch_may_sleep(missing=1)
    assert rig.up(0, [b"contribution"]) == (1, True)
    assert rig.up(1, [b"contribution"]) == (1, False)
    assert sum(rig.worker_counters(worker)["shared_memory_doorbells"] for worker in range(3)) == 1


@pytest.mark.parametrize("name", BYPASSES)
def test_much_data_wakes_the_switch_before_the_round_is_whole(name: str) -> None:
    rig = joined(name)
    assert rig.switch_may_sleep(missing=3)
    assert rig.up(0, [bytes(1)]) == (1, False)
    assert rig.up(0, [bytes(8000)] * 2)[1]


# --- hanging up ---


def test_a_worker_that_has_closed_does_not_work_any_more(rig: Any) -> None:
    assert rig.works(1)
    rig.close_worker(1)
    assert not rig.works(1)
    assert rig.works(0)
    assert rig.worker_counters(1).keys() == rig.worker_counters(0).keys()


def test_others_go_on_when_a_worker_hangs_up(rig: Any) -> None:
    rig.close_worker(1)
    rig.detach(1)
    for _ in range(100):
        assert rig.down([0, 2], numbered(8))
        assert rig.at_worker(0) == rig.at_worker(2) == numbered(8)
        rig.up(0, numbered(8))
        assert [data for data, _ in rig.at_switch()] == numbered(8)


@pytest.mark.parametrize("name", BYPASSES)
def test_nothing_goes_by_a_bypass_to_who_has_left_it(name: str) -> None:
    rig = joined(name)
    rig.close_worker(1)
    assert not rig.down([1], [b"result"])
    assert not rig.down([0, 1], [b"result"])
    rig.detach(2)
    assert not rig.down([2], [b"result"])
    assert rig.up(2, [b"contribution"]) == (0, False)


@pytest.mark.parametrize("name", BYPASSES)
def test_a_job_that_was_removed_leaves_no_way_by_its_bypass(name: str) -> None:
    rig = joined(name)
    rig.close_switch()
    assert not rig.down([0], [b"result"])
    assert rig.at_worker(0) == []
    assert rig.works(0)


def test_over_udp_a_closed_switch_shows_at_the_worker() -> None:
    rig = joined("udp")
    rig.close_switch()
    rig.up(0, [b"contribution"])
    assert rig.at_worker(0) == []
    assert "nobody listens" in rig.trouble(0)


# --- what breaks the rules ---


def test_who_has_not_joined_is_not_heard_by_a_bypass() -> None:
    for name in BYPASSES:
        rig = native.CarrierRig(name, SPEC)
        rig.join(0)
        rig.up(1, numbered(5))
        assert rig.at_switch() == []
        assert rig.skipped == 5
        assert not rig.down([0], [b"result"]) or rig.at_worker(1) == []


@pytest.mark.parametrize("waits", [False, True])
def test_what_the_switch_still_reads_stays_until_a_window_has_come_after_it(waits: bool) -> None:
    """A worker finds room for a window all the same."""
    rig = joined("shared memory")
    rig.waits = waits
    length, window = 1000, 8
    with segment_of(rig) as segment:

        def unreleased() -> int:
            written, read = (segment.number(segment.of_worker(0, at)) for at in (UPLINK_WRITTEN_AT, UPLINK_READ_AT))
            return written - read

        for number in range(5 * window):
            assert rig.up(0, [bytes([number]) * length])[0] == 1
            assert [data for data, _ in rig.at_switch()] == [bytes([number]) * length]
            assert unreleased() <= (window + 1) * SPEC.packet_bytes if waits else unreleased() == 0
    assert bool(rig.let_go_bytes) == waits


Harm = Callable[[Segment, int], None]


def truncated(segment: Segment, at: int) -> None:
    """A record that says that it goes on beyond what was written."""
    segment.uplink(0)[at : at + 4].view("u4")[0] = 5000


def endless(segment: Segment, at: int) -> None:
    """One longer than any datagram."""
    segment.uplink(0)[at : at + 4].view("u4")[0] = 0x7FFF_FFFF


def hollow(segment: Segment, at: int) -> None:
    """One without a byte."""
    segment.uplink(0)[at : at + 4].view("u4")[0] = 0


def backwards(segment: Segment, at: int) -> None:
    """A position before that of the reader."""
    where = segment.of_worker(0, UPLINK_WRITTEN_AT)
    segment.put(where, segment.number(segment.of_worker(0, UPLINK_READ_AT)) - LINE_BYTES & (1 << 64) - 1)


@contextmanager
def segment_of(rig: Any) -> Iterator[Segment]:
    with Segment(rig.offer) as segment:
        yield segment


@pytest.mark.parametrize("harm", [truncated, endless, hollow])
def test_what_was_whole_before_a_broken_record_is_taken_and_the_ring_is_left(harm: Harm) -> None:
    rig = joined("shared memory")
    rig.up(0, [bytes(20), bytes(30)])
    with segment_of(rig) as segment:
        harm(segment, LINE_BYTES)
    assert rig.at_switch() == [(bytes(20), rig.source_of(0))]
    assert rig.switch_counters()["shared_memory_broken"] == 1
    assert rig.up(0, [bytes(20)]) == (0, False)  # by the base carrier from here on
    assert not rig.down([0], [b"result"])
    assert rig.up(1, [bytes(20)])[0] == 1
    assert len(rig.at_switch()) == 1


def test_a_ring_whose_writer_goes_backwards_is_left() -> None:
    rig = joined("shared memory")
    rig.up(0, [bytes(20), bytes(30)])
    with segment_of(rig) as segment:
        backwards(segment, 0)
    assert rig.at_switch() == []
    assert rig.switch_counters()["shared_memory_broken"] == 1


def test_a_worker_leaves_a_broken_ring_and_goes_on_by_the_base_carrier() -> None:
    rig = joined("shared memory")
    rig.down([0, 1], [bytes(20), bytes(30)])
    with segment_of(rig) as segment:
        segment.uplink(3)[LINE_BYTES : LINE_BYTES + 4].view("u4")[0] = 5000
    assert rig.at_worker(0) == [bytes(20)]
    assert not rig.works(0)
    assert rig.worker_counters(0)["shared_memory_broken"] == 1
    assert not rig.down([0], [b"result"])


def test_a_name_that_no_carrier_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no carrier is called carrier pigeon"):
        native.CarrierRig("carrier pigeon", SPEC)
