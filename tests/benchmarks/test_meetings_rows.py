"""Rows of `fanin bench meetings` from what ranks report."""

from __future__ import annotations

from typing import Any

import pytest

from fanin.benchmarks.meetings import (
    ALONE,
    DEFAULT_MODES,
    GLOO,
    LANES_32,
    MODES,
    Plan,
    rows_of,
    table_of,
    to_target,
    with_whole_trainings,
)
from fanin.errors import ConfigurationError, FaninError

PLAN = Plan(workers=2, repeats=1, modes=(GLOO, LANES_32, ALONE), conditions=("even",))


def said(
    mode: str, seconds: float, replica: str = "same", *, loss: float = 1.0, repeat: int = 0, **changes: Any
) -> list[dict[str, Any]]:
    points = [(seconds / 4 * quarter, loss, 0.2 * quarter) for quarter in range(1, 5)]
    return [
        {"mode": mode, "repeat": repeat, "rank": rank, "seconds": seconds - rank, "points": [] if rank else points,
         "replica": replica if rank else "same", "meetings": 7, "waited_s": None, "sent_bytes": 10**6 * (rank + 1),
         "peak_bit_s": 1e6, "exchanges": [], "step_s": [], "timed_replica": "", **changes}
        for rank in range(2)
    ]  # fmt: skip


def test_a_row_has_times_beside_ddps_and_bytes_of_the_rank_that_sent_most() -> None:
    found = [*said(GLOO, 20.0), *said(LANES_32, 10.0), *said(ALONE, 8.0, "another")]
    gloo, wide, alone = rows_of(PLAN, "even", found)
    assert (gloo.to_gloo, wide.to_gloo, wide.to_lanes, alone.to_lanes) == (1.0, 2.0, 1.0, 1.25)
    assert wide.above_alone == pytest.approx(0.25)
    assert wide.megabytes == 2.0
    assert wide.accuracy == pytest.approx(0.8)
    assert table_of(PLAN, [gloo, wide, alone])


def test_replicas_that_differ_and_ranks_that_say_nothing_are_errors() -> None:
    rest = [*said(LANES_32, 10.0), *said(ALONE, 8.0)]
    with pytest.raises(FaninError, match="different results"):
        rows_of(PLAN, "even", [*said(GLOO, 20.0, "another"), *rest])
    with pytest.raises(FaninError, match="1 of 2 ranks"):
        rows_of(PLAN, "even", [*said(GLOO, 20.0)[:1], *rest])


def test_the_target_is_reached_when_the_last_points_are_on_average() -> None:
    assert to_target([(1.0, 0.0, 0.8), (2.0, 0.0, 0.9), (3.0, 0.0, 1.0)], 0.9) == 3.0
    assert to_target([(1.0, 0.0, 0.95)], 0.9) is None


def test_modes_and_conditions_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="modes = 'sgd'"):
        Plan(modes=("sgd",))
    with pytest.raises(ConfigurationError, match="conditions = 'odd'"):
        Plan(conditions=("odd",))


def test_a_loss_stands_beside_that_of_ddp_over_gloo_with_the_same_seed() -> None:
    plan = Plan(workers=2, repeats=2, modes=(GLOO, LANES_32), conditions=("even",))
    losses = {GLOO: (1.0, 2.0), LANES_32: (1.1, 2.6)}
    found = [
        report
        for mode, each in losses.items()
        for repeat, loss in enumerate(each)
        for report in said(mode, 10.0, loss=loss, repeat=repeat)
    ]
    gloo, wide = rows_of(plan, "even", found)
    assert (gloo.loss, gloo.loss_to_gloo, gloo.loss_to_gloo_range) == (1.5, 1.0, 0.0)
    assert wide.loss == pytest.approx(1.85)
    assert wide.loss_to_gloo == pytest.approx(1.2)  # the mean of 1.1 and 1.3
    assert wide.loss_to_gloo_range == pytest.approx(12.71 * 0.1, rel=1e-3)
    without = rows_of(Plan(workers=2, repeats=1, modes=(LANES_32,), conditions=("even",)), "even", said(LANES_32, 10.0))
    assert without[0].loss_to_gloo is None


TIMED = Plan(workers=2, repeats=1, steps=100, timed=4, modes=(GLOO, ALONE), conditions=("even",))


def test_timed_steps_over_links_stand_for_all_and_the_loss_is_the_whole_trainings() -> None:
    over = said(GLOO, 9.0, "after 4", loss=5.0, step_s=[9.0, 2.0, 3.0, 7.0])
    over[0]["replica"] = "after 4"
    whole = said(GLOO, 20.0, loss=1.5, timed_replica="after 4", sent_bytes=None, peak_bit_s=None)
    alone = said(ALONE, 8.0)
    found = with_whole_trainings(TIMED, [*over, *alone], whole)
    gloo, _ = rows_of(TIMED, "even", found)
    assert found[2:] == alone
    assert gloo.seconds == 100 * 3.0  # the first step is left out of the median
    assert gloo.loss == 1.5
    assert gloo.megabytes == pytest.approx(2.0 * 100 / 4)
    assert [at for at, _, _ in gloo.points] == pytest.approx([75.0, 150.0, 225.0, 300.0])
    assert "(DDP: 4 over the links)" in table_of(TIMED, [gloo]).title


def test_timed_steps_that_had_other_bits_than_the_whole_training_are_an_error() -> None:
    over = said(GLOO, 9.0, step_s=[1.0] * 4)
    with pytest.raises(FaninError, match="rank 0 has other weights after 4 steps over links"):
        with_whole_trainings(TIMED, over, said(GLOO, 20.0, timed_replica="another"))
    with pytest.raises(FaninError, match="rank 1 reported nothing without links"):
        with_whole_trainings(TIMED, over, said(GLOO, 20.0, timed_replica="same")[:1])


def test_ddp_takes_its_timed_steps_over_links_alone() -> None:
    over, without = TIMED.asked("even", TIMED.modes, TIMED.link), TIMED.asked("even", TIMED.timed_modes, None)
    assert TIMED.timed_modes == without.modes == (GLOO,)
    assert [over.steps_of(mode) for mode in (GLOO, LANES_32, ALONE, "diloco-100-4/8")] == [4, 4, 100, 100]
    assert without.steps_of(GLOO) == 100
    assert (over.learning_rate, Plan(learning_rate=0.002).asked("even", (GLOO,), None).learning_rate) == (0.0, 0.002)


@pytest.mark.parametrize("settings", [{"timed": 3}, {"timed": 160}, {"timed": 8, "rate_bit_s": None}])
def test_timed_steps_are_some_over_links(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"timed = {settings['timed']}"):
        Plan(**settings)


def test_links_have_a_rate_or_a_delay_or_are_left_out() -> None:
    link = Plan(rate_bit_s=1e7, delay_s=0.05).link
    assert link is not None
    assert (link.rate_bit_s, link.delay_s) == (1e7, 0.05)
    delayed = Plan(rate_bit_s=None, delay_s=0.05).link
    assert delayed is not None
    assert (delayed.rate_bit_s, delayed.delay_s) == (None, 0.05)
    assert Plan(rate_bit_s=None).link is None
    with pytest.raises(ConfigurationError, match="delay 11"):
        Plan(delay_s=11.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_every_mode_of_local_steps_has_settings_and_rare_meetings_are_asked_for() -> None:
    from fanin.benchmarks.meetings_worker import SUBJECTS, settings  # its import of torch's optimizers warns

    rare = settings("diloco-100-4/8", SUBJECTS["text"], 400)
    assert (rare["period"].count, rare["codec"], "overlap" in rare) == (100, "4/8", False)
    streaming = settings("streaming-100-4/8", SUBJECTS["text"], 400)
    assert (streaming["period"].count, streaming["codec"], streaming["fragments"]) == (100, "4/8", 4)
    assert "codec" not in settings("co2-gap", SUBJECTS["text"], 400)
    local = [mode for mode in MODES if not mode.startswith("ddp-") and mode not in (ALONE, "local-sgd")]
    assert all(settings(mode, SUBJECTS["text"], 400)["period"] for mode in local)
    assert set(MODES) - set(DEFAULT_MODES) == {"diloco-100-4/8", "streaming-100-4/8"}
