"""When a contribution is sent again (host/machine/loss_recovery.py): gaps, the timer, which round trips count."""

from __future__ import annotations

import pytest

from fanin.host.machine.loss_recovery import LossRecovery
from fanin.protocol.timers import (
    INITIAL_TIMEOUT_S,
    LINEAR_TIMEOUTS,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    REORDER_THRESHOLD,
    RetransmissionTimer,
)


def sent(recovery: LossRecovery, *slots: int, now: float = 0.0) -> None:
    for slot in slots:
        recovery.sent(slot, now)


def waits(recovery: LossRecovery, count: int) -> list[float]:
    """How long it waits until it sends something again, so many times in a row."""
    now, found = 0.0, []
    for _ in range(count):
        deadline = recovery.deadline()
        assert deadline is not None
        found.append(deadline - now)
        now = deadline
        sent(recovery, recovery.expire(now), now=now)
    return found


def test_a_result_that_is_overtaken_by_three_is_missed() -> None:
    recovery = LossRecovery()
    sent(recovery, *range(9))
    assert recovery.finished(1, 0.001) == []
    assert recovery.finished(2, 0.001) == []
    assert recovery.finished(REORDER_THRESHOLD, 0.001) == [0]
    assert recovery.finished(7, 0.001) == [4]


def test_where_three_cannot_overtake_one_is_enough() -> None:
    recovery = LossRecovery()
    sent(recovery, 0, 1, 2, 3, 4)
    assert recovery.finished(2, 0.001) == []
    assert recovery.finished(1, 0.001) == [0]
    assert recovery.finished(4, 0.001) == [3]


def test_a_gap_is_resent_once_per_round_trip() -> None:
    recovery = LossRecovery()
    sent(recovery, *range(10))
    assert recovery.finished(3, 0.001) == [0]
    assert recovery.sent(0, 0.001) is False
    assert recovery.finished(4, 0.001) == [1]
    assert recovery.finished(5, 0.001) == [2]


def test_what_was_sent_after_the_resent_one_uncovers_it_again() -> None:
    recovery = LossRecovery()
    sent(recovery, *range(7))
    assert recovery.finished(3, 0.001) == [0]
    sent(recovery, 0, 7, 8, 9, now=0.001)
    assert recovery.finished(9, 0.002) == [1, 2, 4, 5, 6, 0]


def test_the_result_of_a_repeated_item_has_one_sent_again_that_waited_for_a_timeout() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, 0, 1, 2, 3)
    assert recovery.expire(0.010) == 0
    sent(recovery, 0, 4, 5, now=0.010)
    assert recovery.finished(0, 0.011) == [1]
    sent(recovery, 1, now=0.011)
    assert recovery.finished(1, 0.012) == [2]
    sent(recovery, 2, now=0.012)
    assert recovery.finished(5, 0.012) == [3, 4]
    assert recovery.finished(2, 0.013) == []


@pytest.mark.parametrize("round_trip_s", [1e-6, 1e-4, 1e-2, 0.2, 5.0])
def test_the_timeout_stays_within_its_bounds(round_trip_s: float) -> None:
    timer = RetransmissionTimer()
    assert timer.timeout_s() == INITIAL_TIMEOUT_S
    for _ in range(20):
        timer.sample(round_trip_s)
        assert MIN_TIMEOUT_S <= timer.timeout_s() <= MAX_TIMEOUT_S
    assert timer.timeout_s() >= min(round_trip_s, MAX_TIMEOUT_S)


def test_the_timer_doubles_up_to_its_bound_and_progress_undoes_it() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, *range(REORDER_THRESHOLD + 1))
    assert waits(recovery, 12) == pytest.approx([MIN_TIMEOUT_S * 2**n for n in range(7)] + [MAX_TIMEOUT_S] * 5)
    assert recovery.timeouts_in_a_row == 12
    recovery.finished(0, 7.0)
    assert recovery.timeouts_in_a_row == 0
    assert recovery.deadline() == pytest.approx(7.0 + MIN_TIMEOUT_S)


def test_where_few_fly_the_timer_doubles_only_after_some_expiries() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, *range(REORDER_THRESHOLD))
    linear = [MIN_TIMEOUT_S] * LINEAR_TIMEOUTS
    assert waits(recovery, 10 + LINEAR_TIMEOUTS) == pytest.approx(
        linear + [MIN_TIMEOUT_S * 2**n for n in range(7)] + [MAX_TIMEOUT_S] * 3
    )


def test_the_timer_sends_the_oldest_and_nothing_flies_without_it() -> None:
    recovery = LossRecovery()
    assert recovery.deadline() is None
    sent(recovery, 5, now=1.0)
    sent(recovery, 6, now=2.0)
    assert recovery.deadline() == 1.0 + INITIAL_TIMEOUT_S
    assert recovery.expire(1.1) == 5
    assert recovery.deadline() == 2.0 + INITIAL_TIMEOUT_S


def test_neither_repeated_items_nor_those_under_way_when_the_timer_expired_measure_round_trips() -> None:
    recovery = LossRecovery()
    sent(recovery, 0, 1, now=0.0)
    recovery.expire(0.1)
    sent(recovery, 0, 2, now=0.1)
    recovery.finished(0, 0.15)
    recovery.finished(1, 0.15)
    assert recovery.timer.smoothed_s == 0.0
    recovery.finished(2, 0.15)
    assert recovery.timer.smoothed_s == pytest.approx(0.05)


def test_timeouts_of_peers_do_not_drive_each_other_up() -> None:
    """Every second item waits for somebody's timer; the estimate must stay near the path's round trip."""
    recovery = LossRecovery()
    now = 0.0
    for number in range(200):
        sent(recovery, 0, now=now)
        if number % 2:
            deadline = recovery.deadline()
            assert deadline is not None
            now = deadline
            sent(recovery, recovery.expire(now), now=now)
        now += 0.001
        recovery.finished(0, now)
    assert recovery.timer.timeout_s() == MIN_TIMEOUT_S
