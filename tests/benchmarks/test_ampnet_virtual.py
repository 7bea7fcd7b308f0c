"""AMPNet's pipeline and 1F1B in virtual time: durations that can be worked out by hand, and the figures of the page."""

from __future__ import annotations

import statistics

import pytest

from fanin.benchmarks.ampnet_virtual import EXCHANGE_S, REPLICAS, ampnet_s, durations, one_f_one_b_s
from fanin.examples.ampnet import FORWARD_S, SLOW_PROBABILITY

FIRST_S, LAST_S = FORWARD_S
COUNT = 480


def test_one_microbatch_at_a_time_takes_both_stages_and_two_messages() -> None:
    alike = durations(3, 0, 0.0)
    one_s = 3 * (FIRST_S + LAST_S) + 2 * EXCHANGE_S
    assert ampnet_s(alike, in_flight=1) == pytest.approx(3 * one_s)
    assert one_f_one_b_s(alike, 1) == pytest.approx(3 * (one_s + EXCHANGE_S))  # and the sum of each step


def test_1f1b_fills_the_slower_stage_but_for_the_ends_of_a_step() -> None:
    # The first stage is the slower one: it works all the time once the first gradient is back, which is before it has
    # done two forward passes.
    until_first_gradient_s = FIRST_S + 3 * LAST_S + 2 * EXCHANGE_S
    assert until_first_gradient_s > 2 * FIRST_S
    begun_last_s = until_first_gradient_s + 2 * (2 * FIRST_S + FIRST_S)
    last_gradient_s = begun_last_s + 3 * LAST_S + 2 * EXCHANGE_S
    assert last_gradient_s > begun_last_s + 2 * FIRST_S, "the last one is waited for"
    step_s = last_gradient_s + 2 * FIRST_S
    assert one_f_one_b_s(durations(4, 0, 0.0), 4) == pytest.approx(step_s + EXCHANGE_S)


def test_without_a_flush_the_slower_stage_never_waits() -> None:
    alike = durations(COUNT, 0, 0.0)
    assert ampnet_s(alike) == pytest.approx(COUNT * 3 * FIRST_S, rel=0.01)


def test_a_slow_replica_holds_up_the_other_at_every_round() -> None:
    one_slow = durations(COUNT, 0, 0.0)
    one_slow[-1][0] = [2 * each for each in one_slow[-1][0]]
    assert len(one_slow) == REPLICAS
    assert ampnet_s(one_slow) == pytest.approx(COUNT * 3 * 2 * FIRST_S, rel=0.01)


@pytest.mark.parametrize(
    ("slow", "per_step", "ratio"),
    [(0.0, 4, 1.11), (0.0, 16, 1.03), (SLOW_PROBABILITY, 4, 1.30), (SLOW_PROBABILITY, 16, 1.14)],
)
def test_ratios_are_those_of_the_page(slow: float, per_step: int, ratio: float) -> None:
    drawn = [durations(COUNT, seed, slow) for seed in range(5)]
    found = statistics.mean(one_f_one_b_s(each, per_step) / ampnet_s(each) for each in drawn)
    assert found == pytest.approx(ratio, abs=0.006)
