"""The period that `fanin advise` names for local steps, from links and a step's time."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")
from fanin.advice.forecasts import Choice, Network, Profile, sum_s
from fanin.advice.local_step_notes import hidden_periods, meeting_notes

SIZE = 29_000_000
SLOW = Network(ranks=(1,) * 4, rates=(1e8,) * 4, cores=(8.0,) * 4, round_trip_s=1e-3)
STEP = Profile(((0.1, SIZE),), 0.2)


def test_a_period_is_hidden_once_its_steps_take_as_long_as_the_exchange() -> None:
    for each in hidden_periods(SLOW, "hosts", (32, 8), STEP):
        assert each.meeting_s == sum_s(SLOW, Choice("hosts", each.choice.lanes), SIZE)
        assert (each.overlapped_steps - 1) * 0.2 < each.meeting_s <= each.overlapped_steps * 0.2
        assert (each.plain_steps - 1) * 0.2 * 0.05 < each.meeting_s <= each.plain_steps * 0.2 * 0.05


def test_narrow_lanes_and_fast_links_want_shorter_periods() -> None:
    wide, narrow = hidden_periods(SLOW, "hosts", (32, 8), STEP)
    assert narrow.overlapped_steps < wide.overlapped_steps / 3
    fast = Network(ranks=(1,) * 4, rates=(1e11,) * 4, cores=(800.0,) * 4, round_trip_s=1e-5)
    assert hidden_periods(fast, "hosts", (32,), STEP)[0].overlapped_steps == 1


def test_nothing_is_said_where_a_step_is_not_known_or_hides_its_sums_anyway() -> None:
    assert hidden_periods(SLOW, "hosts", (32,), Profile(((0.0, SIZE),))) == []
    assert meeting_notes(SLOW, (32,), Profile(((0.0, SIZE),)), None) == []
    assert meeting_notes(SLOW, (32,), Profile(((0.1, 4096),), 0.2), None) == []
    one = Network(ranks=(4,), rates=(0.0,), cores=(8.0,), round_trip_s=1e-5)
    assert meeting_notes(one, (32,), STEP, None) == []


def test_the_advice_names_the_period_for_each_width() -> None:
    first, wide, narrow = meeting_notes(SLOW, (32, 8), STEP, None)
    assert "200 ms of computing" in first
    assert "32-bit lanes: a meeting takes" in wide
    assert f"period >= {hidden_periods(SLOW, 'hosts', (8,), STEP)[0].overlapped_steps} " in narrow
