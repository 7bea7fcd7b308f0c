"""When a contribution is sent again (fanin/protocol/loss_recovery.py): gaps, the timer, which round trips count."""

from __future__ import annotations

import pytest

from fanin.protocol.loss_recovery import LossRecovery
from fanin.protocol.timers import (
    ANSWERS_IN_A_ROW,
    FIRST_TIMEOUT_S,
    INITIAL_TIMEOUT_S,
    LINEAR_TIMEOUTS,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    NEXT_RESENT,
    NO_RECEIPTS_AFTER,
    PATHS_PER_TIMEOUT,
    REORDER_THRESHOLD,
    TRACKED,
    RetransmissionTimer,
)

NO_SLOT = 99
"""A slot that nothing was sent for."""


def sent(recovery: LossRecovery, *slots: int, now: float = 0.0) -> None:
    for slot in slots:
        recovery.sent(slot, now)


def expired(recovery: LossRecovery, now: float) -> int:
    """The slot that the timer sends again."""
    found = recovery.expire(now, NO_SLOT)
    assert found is not None
    return found[0]


def waits(recovery: LossRecovery, count: int) -> list[float]:
    """How long it waits until it sends something again, so many times in a row."""
    now, found = 0.0, []
    for _ in range(count):
        deadline = recovery.deadline()
        assert deadline is not None
        found.append(deadline - now)
        now = deadline
        sent(recovery, expired(recovery, now), now=now)
    return found


def finish(recovery: LossRecovery, slot: int, now: float) -> list[int]:
    """Take in a result; what is to be sent again at once."""
    recovery.finished(slot, now)
    return recovery.take_due(now)


# R-RECOVERY-5
def test_a_result_that_is_overtaken_by_three_is_in_doubt_until_a_peer_could_have_sent_again() -> None:
    recovery = LossRecovery()
    sent(recovery, *range(9))
    for slot in (1, 2, REORDER_THRESHOLD):
        assert finish(recovery, slot, 0.001) == []
    assert recovery.overdue == 1
    due = recovery.deadline()
    assert due == 0.001 + recovery.timer.overdue_s(0.0) < 0.001 + recovery.timer.timeout_s()
    assert recovery.take_due(due - 1e-6) == []
    assert recovery.take_due(due) == [0]
    assert recovery.overdue == 0


def test_what_was_in_doubt_and_comes_is_not_sent_again() -> None:
    recovery = LossRecovery()
    sent(recovery, *range(9))
    assert finish(recovery, REORDER_THRESHOLD, 0.001) == []
    assert recovery.overdue == 1
    assert finish(recovery, 0, 0.0015) == []
    assert recovery.overdue == 0
    assert recovery.take_due(1.0) == []


# R-RECOVERY-14
def test_where_three_cannot_overtake_one_is_enough_and_nobody_is_waited_for() -> None:
    recovery = LossRecovery()
    sent(recovery, 0, 1, 2, 3, 4)
    assert finish(recovery, 2, 0.001) == []
    assert finish(recovery, 1, 0.001) == [0]
    assert finish(recovery, 4, 0.001) == [3]


# R-RECOVERY-1
def test_a_receipt_has_what_is_missing_sent_again_at_once_and_nothing_else() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, *range(9))  # orders 1 to 9
    assert recovery.receipt(9, 9, 0xFFFFFFFF & ~(1 << 4), 0.001) == ([3], 0.001)
    assert recovery.sent(3, 0.001) is False
    assert recovery.receipt(9, 9, 0xFFFFFFFF & ~(1 << 4), 0.001) == ([], 0.001), "sent again since: order 10"
    assert recovery.receipt(10, 10, 0xFFFFFFFF & ~(1 << 3), 0.001) == ([5], 0.0)


# R-RECOVERY-1
def test_what_was_sent_long_before_something_that_has_arrived_is_lost_too() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.004)
    sent(recovery, 0, now=0.0)
    sent(recovery, 1, now=0.0005)
    sent(recovery, 2, now=0.0012)
    assert recovery.receipt(3, 3, 0xFFFFFFFC, 0.004) == ([0], 0.004 - 0.0012)


def test_receipts_of_no_transmission_change_nothing() -> None:
    recovery = LossRecovery()
    sent(recovery, *range(9))
    for highest in (0, 10, 500, 0x80000000, 0xFFFFFFFF):
        assert recovery.receipt(77, highest, 0, 0.001) == ([], None)


# R-RECOVERY-2
def test_what_is_over_at_the_switch_and_has_not_come_is_sent_again_at_once() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, *range(9))  # orders 1 to 9
    assert recovery.settle(7, lambda slot: slot in (2, 4, 8), 0.002) == [2, 4], "order 9 had not come yet"
    assert recovery.waiting == 9


# R-RECOVERY-3
def test_what_a_peer_holds_up_is_waited_for_as_long_as_receipts_say_so() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    recovery.timer.path_round_trip(0.001)
    sent(recovery, *range(9))
    for slot in (1, 2, REORDER_THRESHOLD):
        assert finish(recovery, slot, 0.001) == []
    assert recovery.overdue == 1
    recovery.receipt(9, 9, 0xFFFFFFFF, 0.001)
    for now in (0.002, 0.003, 0.004, 0.005):
        assert recovery.settle(9, lambda slot: False, now) == []
        assert recovery.take_due(now) == []
    assert recovery.take_due(0.006) == []
    assert recovery.take_due(0.005 + recovery.timer.overdue_s(0.0)) == [0]


# R-RECOVERY-7
def test_of_what_is_in_doubt_one_asks_for_all() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, *range(12))
    recovery.settle(0, lambda slot: False, 0.0)
    for slot in (6, 7, 8):
        recovery.finished(slot, 0.001)
    assert recovery.overdue > 3
    assert len(recovery.take_due(1.0)) == 1
    assert recovery.take_due(1.0) == []


def repeated(orders_before: int = 0) -> LossRecovery:
    """Slots 0 to 7 have been sent, and slot 0 again when the timer expired."""
    recovery = LossRecovery()
    recovery.next_order += orders_before
    recovery.timer.sample(0.001)
    sent(recovery, 0, 1, 2, 3, 4, 5)
    assert recovery.expire(0.010, NO_SLOT) == (0, False)
    sent(recovery, 0, 6, 7, now=0.010)
    return recovery


# R-RECOVERY-8
def test_an_answer_has_one_more_sent_again_that_waited_for_a_timeout() -> None:
    recovery = repeated()
    recovery.finished(0, 0.011, answered=True)
    assert recovery.take_due(0.011) == [1]
    sent(recovery, 1, now=0.011)
    recovery.finished(1, 0.012, answered=True)
    assert recovery.take_due(0.012) == [2]


def told_of_rounds() -> LossRecovery:
    """Its switch's receipts say which rounds are over."""
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    recovery.timer.path_round_trip(0.001)
    recovery.settle(0, lambda slot: False, 0.0)
    return recovery


def asked_for_by_answers(recovery: LossRecovery, now: float) -> list[list[int]]:
    """The items that go again in each round trip, when the timer expires and all of them are answered."""
    rounds = [[expired(recovery, now)]]
    while rounds[-1]:
        sent(recovery, *rounds[-1], now=now)
        now += 0.001
        for slot in rounds[-1]:
            recovery.finished(slot, now, answered=True)
        rounds.append(recovery.take_due(now))
    return rounds


# R-RECOVERY-9
def test_a_burst_of_results_that_are_lost_is_asked_for_twice_as_many_at_a_time() -> None:
    recovery = told_of_rounds()
    sent(recovery, *range(90))
    rounds = asked_for_by_answers(recovery, 1.0)
    assert [slot for asked in rounds for slot in asked] == list(range(90))
    ones, rest = rounds[:ANSWERS_IN_A_ROW], rounds[ANSWERS_IN_A_ROW:-1]
    assert [len(asked) for asked in ones] == [1] * ANSWERS_IN_A_ROW
    assert [len(asked) for asked in rest[:6]] == [NEXT_RESENT**power for power in range(6)]
    assert recovery.idle


def test_a_result_of_what_was_sent_once_ends_the_burst() -> None:
    recovery = told_of_rounds()
    sent(recovery, *range(90))
    assert expired(recovery, 1.0) == 0
    for slot in range(ANSWERS_IN_A_ROW):
        sent(recovery, slot, now=1.0)
        recovery.finished(slot, 1.0, answered=True)
        recovery.take_due(1.0)
    recovery.finished(89, 1.0)
    sent(recovery, 3, now=1.0)
    recovery.finished(3, 1.0, answered=True)
    assert len(recovery.take_due(1.0)) == 1


def a_burst_that_no_receipt_tells_of() -> LossRecovery:
    """Orders 1 to 60 and TRACKED more were lost, of which a receipt told of the latter only."""
    recovery = told_of_rounds()
    sent(recovery, *range(60 + TRACKED))
    sent(recovery, 200, now=0.001)
    lost, _ = recovery.receipt(0, 61 + TRACKED, 0, 0.002)
    assert lost == list(range(60, 60 + TRACKED))
    assert recovery.overdue == 60
    return recovery


# R-RECOVERY-4, R-RECOVERY-10
def test_of_a_burst_that_no_receipt_tells_of_each_that_had_been_missing_has_two_more_asked_for() -> None:
    recovery = a_burst_that_no_receipt_tells_of()
    asked, now = recovery.take_due(1.0), 1.0
    assert asked == [0]
    for expect in ([1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13, 14]):
        sent(recovery, *asked, now=now)
        now += 0.001
        for slot in asked:
            recovery.finished(slot, now)
        asked = recovery.take_due(now)
        assert asked == expect


# R-RECOVERY-10
def test_a_needless_repetition_has_no_more_asked_for() -> None:
    """The switch had it: a peer is late, and so may be the others that are in doubt."""
    recovery = a_burst_that_no_receipt_tells_of()
    (slot,) = recovery.take_due(1.0)
    sent(recovery, slot, now=1.0)
    order = recovery.order(slot)
    recovery.receipt(order, order, 0xFFFFFFFF, 1.001, spurious=True)
    recovery.finished(slot, 1.001)
    assert recovery.take_due(1.001) == []


# R-RECOVERY-10
def test_a_result_that_came_anyway_has_nothing_sent_again() -> None:
    """A peer was late. Repetitions for each such result would send every packet twice from then on."""
    recovery = repeated()
    assert finish(recovery, 0, 0.011) == []
    assert recovery.overdue == 0


# R-RECOVERY-15
def test_a_switch_without_receipts_has_one_more_sent_again_for_any_result() -> None:
    recovery = repeated(orders_before=NO_RECEIPTS_AFTER)
    assert finish(recovery, 0, 0.011) == [1]
    recovery = repeated(orders_before=NO_RECEIPTS_AFTER)
    recovery.receipt(0, 0, 0, 0.0105)
    assert finish(recovery, 0, 0.011) == []


# R-CONGESTION-2
def test_what_has_arrived_is_lost_or_is_overdue_is_not_in_flight() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, *range(9))  # orders 1 to 9
    assert (recovery.in_flight, recovery.waiting) == (9, 9)
    recovery.receipt(5, 5, 0xFFFFFFFF & ~(1 << 3), 0.001)
    assert (recovery.in_flight, recovery.waiting) == (4, 9), "order 1 is lost, 2 to 5 have arrived"
    recovery.receipt(6, 6, 0xFFFFFFFF & ~(1 << 4), 0.001)
    assert recovery.in_flight == 3
    recovery.finished(7, 0.002)
    assert (recovery.in_flight, recovery.waiting) == (2, 8), "up to order 5 they are overdue, 6 has arrived"
    sent(recovery, 0, 2, now=0.002)
    assert (recovery.in_flight, recovery.waiting) == (4, 8)
    for slot in (0, 1, 2, 3, 4, 5, 6, 8):
        recovery.finished(slot, 0.003)
    assert (recovery.in_flight, recovery.waiting) == (0, 0)


def test_the_timer_knows_what_has_arrived() -> None:
    recovery = LossRecovery()
    sent(recovery, 0, 1)
    recovery.receipt(1, 1, 0xFFFFFFFF, 0.001)
    assert recovery.expire(INITIAL_TIMEOUT_S, NO_SLOT) == (0, True)
    sent(recovery, 0, now=INITIAL_TIMEOUT_S)
    assert recovery.expire(2 * INITIAL_TIMEOUT_S, NO_SLOT) == (1, False)


# R-RECOVERY-12
def test_the_timer_sends_the_lowest_item_and_the_oldest_transmission_in_turn() -> None:
    recovery = LossRecovery()
    sent(recovery, 0, 1, 2, 3, 4, 5)
    now, slots = 0.0, []
    for _ in range(4):
        deadline = recovery.deadline()
        assert deadline is not None
        now = deadline
        found = recovery.expire(now, 3)
        assert found is not None
        slots.append(found[0])
        sent(recovery, found[0], now=now)
    assert slots == [3, 0, 3, 1]


# R-RECOVERY-6
def test_patience_is_the_path_s_and_not_what_peers_made_of_round_trips() -> None:
    timer = RetransmissionTimer()
    timer.sample(0.100)
    assert timer.overdue_s(0.0) == pytest.approx(0.200)
    timer.path_s = 0.002
    assert timer.overdue_s(0.0) == pytest.approx(0.0025)
    assert timer.overdue_s(3.0) == pytest.approx(0.0085)


# R-RECOVERY-13
def test_a_timeout_lasts_two_round_trips_of_the_path_however_few_were_measured() -> None:
    """If every item is sent twice nothing else tells the timer of a queue that has grown (Karn)."""
    timer = RetransmissionTimer()
    timer.sample(0.001)
    timer.path_s = 0.080
    assert timer.timeout_s() == pytest.approx(PATHS_PER_TIMEOUT * 0.080)
    timer.path_s = 5.0
    assert timer.timeout_s() == MAX_TIMEOUT_S


@pytest.mark.parametrize("round_trip_s", [1e-6, 1e-4, 1e-2, 0.2, 5.0])
def test_the_timeout_stays_within_its_bounds(round_trip_s: float) -> None:
    timer = RetransmissionTimer()
    assert timer.timeout_s() == INITIAL_TIMEOUT_S
    for _ in range(20):
        timer.sample(round_trip_s)
        assert MIN_TIMEOUT_S <= timer.timeout_s() <= MAX_TIMEOUT_S
    assert timer.timeout_s() >= min(round_trip_s, MAX_TIMEOUT_S)


# R-RECOVERY-13
def test_before_anything_has_come_for_a_contribution_the_timer_knows_of_no_queues() -> None:
    """The first windows of all flows fill them at once: every flow would send its first packet twice."""
    recovery = LossRecovery()
    recovery.timer.sample(0.001, idle=True)
    sent(recovery, 0, 1)
    assert recovery.deadline() == FIRST_TIMEOUT_S
    recovery.receipt(1, 1, 0, 0.004)
    assert recovery.deadline() == MIN_TIMEOUT_S


# R-RECOVERY-13
def test_where_receipts_tell_of_rounds_the_timer_does_not_wait_for_peers() -> None:
    """At 5 % loss over shards items took seven round trips of the path, and timers twenty: ends took longest."""
    recovery = LossRecovery()
    for round_trip_s in (0.1, 0.9):
        recovery.timer.sample(round_trip_s)
    recovery.timer.path_round_trip(0.02)
    assert recovery.timer.timeout_s() > recovery.timer.smoothed_s + 0.2
    recovery.settle(0, lambda slot: False, 1.0)
    sent(recovery, *range(9), now=1.0)
    assert recovery.deadline() == 1.0 + recovery.timer.smoothed_s
    for slot in range(8):
        recovery.finished(slot, 1.0)
    assert recovery.deadline() == 1.0 + PATHS_PER_TIMEOUT * 0.02, "nothing else would show that it is lost"


# R-RECOVERY-12
def test_the_timer_doubles_up_to_its_bound_and_progress_undoes_it() -> None:
    recovery = LossRecovery()
    recovery.timer.sample(0.001)
    sent(recovery, *range(REORDER_THRESHOLD + 1))
    assert waits(recovery, 12) == pytest.approx([MIN_TIMEOUT_S * 2**n for n in range(7)] + [MAX_TIMEOUT_S] * 5)
    assert recovery.timeouts_in_a_row == 12
    recovery.finished(0, 7.0, answered=True)
    assert recovery.timeouts_in_a_row == 0
    assert recovery.take_due(7.0) == [1], "it has waited for a whole timeout"
    assert recovery.deadline() == pytest.approx(7.0 + MIN_TIMEOUT_S)


# R-RECOVERY-14
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
    assert expired(recovery, 1.1) == 5
    assert recovery.deadline() == 2.0 + INITIAL_TIMEOUT_S


# R-RECOVERY-11
def test_neither_repeated_items_nor_those_under_way_when_the_timer_expired_measure_round_trips() -> None:
    recovery = LossRecovery()
    sent(recovery, 0, 1, now=0.0)
    recovery.expire(0.1, NO_SLOT)
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
            sent(recovery, expired(recovery, now), now=now)
        now += 0.001
        recovery.finished(0, now)
    assert recovery.timer.timeout_s() == MIN_TIMEOUT_S
