"""How many contributions may be under way, and how fast they go out (fanin/protocol/congestion.py)."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.protocol.congestion import Congestion
from fanin.protocol.pace import (
    BURST_PACKETS,
    DECREASE,
    DECREASE_MARKED,
    FIRST_SHARE,
    GROWTH,
    INITIAL_WINDOW,
    INITIAL_WINDOW_BYTES,
    LONGEST_FRAME_BYTES,
    LONGEST_UNQUEUED_S,
    MIN_PACED_ROUND_TRIP_S,
    MIN_WINDOW,
    PACING_GAIN_SLOW_START,
    SILENT_TIMEOUTS,
    WINDOWS_WAITING,
)
from fanin.protocol.wire import Kind, parse
from tests.support.cluster import Cluster, job, reduction
from tests.support.network import SWITCH, Link

PACKET_BYTES = 8192
"""Long enough that INITIAL_WINDOW is more than INITIAL_WINDOW_BYTES."""


def congested(slots: int = 100) -> Congestion:
    """A window that fills a queue: round trips are ten times as long as the shortest."""
    congestion = Congestion(slots, PACKET_BYTES)
    congestion.round_trip(0.001, 0.0)
    congestion.result(0, 0, 0)
    congestion.round_trip(0.010, 0.0)
    congestion.result(0, 0, 0)
    congestion.round_trip(0.010, 0.0)
    return congestion


# R-CONGESTION-5
def test_a_window_that_is_used_doubles_per_round_trip_up_to_the_pool() -> None:
    congestion = Congestion(65, PACKET_BYTES)
    assert congestion.window == INITIAL_WINDOW
    congestion.limited = True
    for order in range(10):
        congestion.result(order, 10, 0)
    assert congestion.window == 20
    for order in range(100):
        congestion.result(order, 100, 0)
    assert congestion.window == 65
    assert not congestion.has_room(65, 65)
    assert congestion.has_room(64, 64)


# R-CONGESTION-4
def test_a_flow_with_a_part_of_a_pool_starts_with_a_part_of_the_first_window() -> None:
    """A job over many shards has one for each, and all of them begin at once, over one link."""
    assert Congestion(45, PACKET_BYTES).window == 45 * FIRST_SHARE
    assert Congestion(12, PACKET_BYTES).window == 2 * MIN_WINDOW
    assert Congestion(3, PACKET_BYTES).window == 3


# R-CONGESTION-2
def test_what_is_no_longer_in_flight_makes_room_but_no_more_than_half_a_window() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    assert congestion.has_room(9, 14)
    assert not congestion.has_room(10, 14)
    assert not congestion.has_room(0, int(INITIAL_WINDOW * WINDOWS_WAITING))


# R-CONGESTION-4
def test_small_packets_start_with_the_same_bytes_rather_than_the_same_number() -> None:
    assert Congestion(1000, 256).window == INITIAL_WINDOW_BYTES // 256 > INITIAL_WINDOW
    assert Congestion(30, 256).window == 30


# R-CONGESTION-1
def test_nothing_limits_packets_that_are_longer_than_any_frame() -> None:
    """They stay within one machine: there is no link to share."""
    congestion = Congestion(62, LONGEST_FRAME_BYTES + 1)
    congestion.round_trip(0.001, 0.0)
    congestion.result(0, 0, 0)
    congestion.round_trip(0.100, 0.0)
    congestion.path_round_trip(0.100, 0.0)
    congestion.lost(5, next_order=10)
    for _ in range(SILENT_TIMEOUTS):
        congestion.expired(arrived=False, next_order=20)
    assert (congestion.window, congestion.cuts) == (62, 0)
    for _ in range(100):
        round_trip_s = congestion.paced_round_trip(0.100)
        assert congestion.may_send(round_trip_s, 0.0)
        congestion.sent(round_trip_s, 0.0)


# R-CONGESTION-6
def test_a_window_that_is_not_used_does_not_grow_and_is_kept() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    for order in range(100):
        congestion.result(order, 100, 0)
    assert congestion.window == INITIAL_WINDOW


# R-CONGESTION-7, R-CONGESTION-8
def test_a_loss_cuts_the_window_once_per_round_trip() -> None:
    congestion = congested()
    congestion.lost(5, next_order=10)
    congestion.lost(6, next_order=11)
    congestion.lost(9, next_order=12)
    assert congestion.window == INITIAL_WINDOW * DECREASE
    assert congestion.cuts == 1
    congestion.lost(10, next_order=20)
    assert congestion.window == INITIAL_WINDOW * DECREASE**2


# R-CONGESTION-8, R-CONGESTION-10
def test_a_mark_cuts_the_window_once_per_round_trip_and_less_than_a_loss() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    for order in range(5, 10):
        congestion.marked(order, next_order=10)
    assert (congestion.window, congestion.cuts) == (INITIAL_WINDOW * DECREASE_MARKED, 1)
    congestion.lost(9, next_order=12)
    assert congestion.cuts == 1, "it belongs to the same congestion"
    congestion.marked(10, next_order=20)
    assert congestion.window == INITIAL_WINDOW * DECREASE_MARKED**2


# R-CONGESTION-7
def test_a_cut_leaves_what_does_not_wait_in_queues() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    congestion.window = 40.0
    congestion.round_trip(0.0036, 0.0)
    for order in (0, 10):
        congestion.result(order, order + 10, 0)
        congestion.round_trip(0.0040, 0.0)
    congestion.lost(15, next_order=20)
    assert congestion.window == pytest.approx(36.0)
    assert congestion.cuts == 1


# R-CONGESTION-9
def test_a_queue_that_others_keep_full_is_not_taken_for_the_path() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    for order in range(0, 100, 10):
        congestion.round_trip(4 * LONGEST_UNQUEUED_S, 0.0)
        congestion.result(order, order + 10, 0)
    congestion.lost(105, next_order=110)
    assert congestion.window == INITIAL_WINDOW * DECREASE


def test_a_path_without_any_delay_has_no_queues() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    congestion.round_trip(0.0, 0.0)
    congestion.lost(5, next_order=10)
    assert congestion.cuts == 0


# R-CONGESTION-5
def test_a_window_that_was_cut_grows_by_what_is_fair_beside_tcp_per_window() -> None:
    congestion = congested()
    congestion.limited = True
    congestion.lost(5, next_order=10)
    congestion.result(9, 11, 0)
    assert congestion.window == INITIAL_WINDOW * DECREASE, "what was under way when it was cut says nothing new"
    for order in range(10, 17):
        congestion.result(order, 20, 0)
    assert congestion.window == pytest.approx(INITIAL_WINDOW * DECREASE + GROWTH, abs=0.05)


# R-CONGESTION-9
def test_a_loss_on_a_path_without_queues_is_by_chance() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    for _ in range(10):
        congestion.round_trip(0.0011, 0.0)
        congestion.round_trip(0.0010, 0.0)
    congestion.lost(5, next_order=10)
    assert (congestion.window, congestion.cuts) == (INITIAL_WINDOW, 0)


# R-CONGESTION-9
def test_peers_that_repeat_make_no_queue() -> None:
    """Some items take three times as long, since a peer's contribution to them was lost; most do not."""
    congestion = Congestion(100, PACKET_BYTES)
    for order in range(100):
        congestion.round_trip(0.003 if order % 3 else 0.001, 0.0)
        congestion.result(order, order + 10, 0)
    congestion.lost(95, next_order=110)
    assert congestion.cuts == 0


# R-CONGESTION-7
def test_the_window_never_falls_below_two_or_the_pool() -> None:
    for slots in (1, 2, 100):
        congestion = congested(slots)
        for order in range(100):
            congestion.lost(10 * order, next_order=10 * order + 1)
        assert 0 < congestion.window <= max(min(MIN_WINDOW, slots), 4.3)
        assert congestion.has_room(0, 0)


# R-CONGESTION-11
def test_timers_alone_cut_only_where_nothing_is_heard_for_some_in_a_row() -> None:
    congestion = Congestion(100, PACKET_BYTES)
    for _ in range(10):
        congestion.expired(arrived=True, next_order=20)
        congestion.expired(arrived=False, next_order=20)
        congestion.heard()
    assert congestion.window == INITIAL_WINDOW
    for _ in range(SILENT_TIMEOUTS):
        congestion.expired(arrived=False, next_order=20)
    assert congestion.window == MIN_WINDOW


# R-CONGESTION-12
def test_the_pace_is_twice_the_window_per_round_trip_in_bursts() -> None:
    congestion = Congestion(1000, PACKET_BYTES)
    round_trip_s, now, sent_at = 0.100, 0.0, []
    while now < 1.0:
        while congestion.may_send(round_trip_s, now):
            congestion.sent(round_trip_s, now)
            sent_at.append(now)
        now = congestion.held_until
    assert len(sent_at) == pytest.approx(INITIAL_WINDOW * PACING_GAIN_SLOW_START * 10, rel=0.05)
    assert max(np.unique(sent_at, return_counts=True)[1]) <= BURST_PACKETS + 1


# R-CONGESTION-13
def test_what_went_out_beyond_a_window_holds_up_the_next_for_a_round_trip_at_most() -> None:
    """Repetitions are not paced, and a burst is repaired with many while the window is short."""
    congestion = Congestion(100, PACKET_BYTES)
    congestion.path_round_trip(0.02, 0.0)
    for _ in range(200):
        congestion.sent(0.02, 1.0)
    assert 1.0 < congestion.held_until <= 1.02


# R-CONGESTION-12
def test_short_round_trips_are_not_paced() -> None:
    congestion = Congestion(1000, PACKET_BYTES)
    for _ in range(1000):
        congestion.sent(MIN_PACED_ROUND_TRIP_S / 2, 0.0)
        assert congestion.may_send(MIN_PACED_ROUND_TRIP_S / 2, 0.0)


@pytest.mark.parametrize("kind", ["twin", "native", "lockstep"])
def test_a_slow_worker_leaves_the_windows_of_the_others_as_they_are(kind: str) -> None:
    """One worker is stopped for so long that timers expire, three times; nothing is lost."""
    cluster = Cluster.joined(kind, spec=job(workers=3, slots=32), link=Link(delay_s=100e-6, bytes_per_s=12.5e6))
    for _ in range(3):
        arrays = [np.ones(16 * 200, np.int32) for _ in range(3)]
        for worker, array in enumerate(arrays):
            cluster.submit(worker, reduction(array))
        cluster.network.run_for(0.001)
        cluster.network.stop(3)
        cluster.network.run_for(0.5)
        cluster.network.resume(3)
        cluster.run()
    assert [worker.counters()["window"] for worker in cluster.workers] == [32, 32, 32]
    assert cluster.total("cuts") == cluster.total("losses") == 0
    assert cluster.workers[0].counters()["timeouts"] > 3


@pytest.mark.parametrize("kind", ["twin", "native", "lockstep"])
def test_only_the_worker_whose_contribution_is_lost_sends_again(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=4, slots=32), link=Link(delay_s=100e-6, bytes_per_s=12.5e6))
    losing = iter([True])

    def tap(_: float, source: int, destination: int, data: bytes) -> bool:
        contribution = destination == SWITCH and parse(data).kind is Kind.CONTRIBUTION
        return not (contribution and source == 2 and parse(data).slot == 7 and next(losing, False))

    cluster.network.wiretap = tap
    cluster.all_reduce([np.ones(16 * 400, np.int32)] * 4)
    assert [worker.counters()["retransmissions"] for worker in cluster.workers] == [0, 1, 0, 0]
    assert [worker.counters()["losses"] for worker in cluster.workers] == [0, 1, 0, 0]


@pytest.mark.parametrize("kind", ["twin", "native", "lockstep"])
def test_where_a_queue_marks_windows_shrink_before_it_overflows(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=2, slots=256, words_per_packet=64), link=Link(delay_s=20e-6))
    link = Link(delay_s=20e-6, bytes_per_s=1.25e6, queue_bytes=1 << 16, mark_bytes=1 << 13)
    shared = cluster.network.share([1, 2], link)
    cluster.all_reduce([np.ones(64 * 600, np.int32)] * 2)
    assert shared.up.overflows == shared.down.overflows == cluster.total("retransmissions") == 0
    assert shared.up.marked > 0
    assert cluster.total("marks") > 0
    assert cluster.total("cuts") > 0


# R-CONGESTION-2
@pytest.mark.parametrize("kind", ["twin", "native", "lockstep"])
def test_items_that_wait_for_a_peer_to_repeat_do_not_keep_new_ones_back(kind: str) -> None:
    """A peer loses nine of a window of ten. The one result shows that seven are overdue, and lets new items out."""
    spec = job(workers=2, slots=64, words_per_packet=1024)
    cluster = Cluster.joined(kind, spec=spec, link=Link(delay_s=1e-3, bytes_per_s=12.5e6))
    seen: list[int] = []

    def tap(_: float, source: int, destination: int, data: bytes) -> bool:
        packet = parse(data)
        if packet.kind is Kind.RECEIPT:  # they would say earlier what has arrived
            return False
        if destination != SWITCH or packet.kind is not Kind.CONTRIBUTION:
            return True
        if source == 1:
            seen.append(packet.slot)
        return not (source == 2 and packet.slot < INITIAL_WINDOW - 1)

    cluster.network.wiretap = tap
    arrays = [np.ones(1024 * 64, np.int32) for _ in range(2)]
    for worker, array in enumerate(arrays):
        cluster.submit(worker, reduction(array))
    cluster.network.run_for(0.0075)
    assert max(seen) == INITIAL_WINDOW * WINDOWS_WAITING
    cluster.network.wiretap = None
    cluster.run()


# R-CONGESTION-3
@pytest.mark.parametrize("kind", ["twin", "native"])
def test_workers_whose_windows_are_full_of_different_items_do_not_wait_for_each_other(kind: str) -> None:
    link = Link(delay_s=5e-6, bytes_per_s=12.5e6)
    cluster = Cluster.joined(kind, spec=job(workers=3, slots=32, words_per_packet=64), link=link, seed=7)
    cluster.network.link = Link(delay_s=5e-6, bytes_per_s=12.5e6, loss=0.1)
    cluster.all_reduce([np.ones(64 * 300, np.int32)] * 3, limit_s=5.0)
