"""`fanin bench staleness`: what its rows say of what the ranks told."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fanin.benchmarks import staleness
from fanin.benchmarks.harness import Output
from fanin.benchmarks.staleness import MODES
from fanin.benchmarks.staleness_worker import SUBJECTS, Conditions
from fanin.errors import ConfigurationError, FaninError

PLAN = staleness.Plan(
    workers=3, repeats=1, modes=("synchronous", "gloo", "skip-8"), conditions=("slow-worker-over-links",), task="text"
)


def told(mode: str, step_s: float, *, samples_per_s: float = 10.0, dropped: int | None = None) -> list[dict[str, Any]]:
    """By three ranks, of which the last one's steps take nine times as long."""
    account = {} if dropped is None else {"handed_in": 10, "dropped": dropped, "choices": []}
    report = {
        "mode": mode,
        "points": [(1.0, 5, 2.0, 0.5), (3.0, 10, 1.0, 0.75)],
        "replica": "same",
        "samples_per_s": samples_per_s,
        **account,
    }
    steps = [step_s / 2, step_s, step_s * 2]
    return [{**report, "step_s": steps}, {**report, "step_s": steps}, {**report, "step_s": [step_s * 9] * 5}]


def everything() -> staleness.Told:
    return {
        ("synchronous", 0): told("synchronous", 1.0),
        ("gloo", 0): told("gloo", 2.0, samples_per_s=5.0),
        ("skip-8", 0): told("skip-8", 0.5, samples_per_s=20.0, dropped=1),
    }


def test_a_slow_worker_is_no_part_of_the_step_and_ratios_are_to_gloo() -> None:
    synchronous, gloo, skip = staleness.rows_of(PLAN, "slow-worker-over-links", everything())
    assert [row.step_s for row in (synchronous, gloo, skip)] == [1.0, 2.0, 0.5]
    assert [row.step_to_gloo for row in (synchronous, gloo, skip)] == [2.0, 1.0, 4.0]
    assert [row.samples_per_s for row in (synchronous, gloo, skip)] == [30.0, 15.0, 60.0]
    assert [row.samples_to_gloo for row in (synchronous, gloo, skip)] == [2.0, 1.0, 4.0]
    assert [row.dropped for row in (synchronous, gloo, skip)] == [None, None, 0.1]
    assert (skip.loss, skip.accuracy, skip.seconds) == (1.0, 0.75, 3.0)


def test_where_no_worker_is_slow_all_of_them_count() -> None:
    assert staleness.rows_of(PLAN, "slow-link", everything())[0].step_s == 2.0


def test_without_gloo_there_is_nothing_to_compare_with() -> None:
    plan = staleness.Plan(workers=3, repeats=1, modes=("skip-8",))
    row = staleness.rows_of(plan, "slow-worker", everything())[0]
    assert (row.step_to_gloo, row.samples_to_gloo) == (None, None)


def test_replicas_that_differ_are_no_result() -> None:
    said = everything()
    said["gloo", 0][1]["replica"] = "another"
    with pytest.raises(FaninError, match=r"gloo.*replicas differ"):
        staleness.rows_of(PLAN, "slow-worker-over-links", said)


def test_only_the_last_worker_is_slow_by_what_was_asked() -> None:
    def first_s(name: str, rank: int) -> float:
        return next(Conditions(name, rank, 3, 0.5, 0, slow=4.0).seconds())

    assert [first_s("slow-worker-over-links", rank) for rank in range(3)] == [0.5, 0.5, 2.0]
    assert [first_s("slow-link", rank) for rank in range(3)] == [0.5, 0.5, 0.5]


def test_over_links_a_round_waits_for_all_but_the_slow_worker() -> None:
    assert Conditions("slow-worker-over-links", 0, 8, 0.1, 0).quorum == 7
    assert Conditions("slow-worker", 0, 8, 0.1, 0).quorum == 4


def test_narrow_modes_and_the_condition_for_large_models_are_asked_for() -> None:
    plan = staleness.Plan()
    assert set(MODES) - set(plan.modes) == {"synchronous-8", "skip-8"}
    assert set(staleness.CONDITIONS) - set(plan.conditions) == {"slow-worker-over-links"}


def test_weights_by_age_and_by_predicted_loss_are_rows_of_the_usual_table() -> None:
    assert {"rate-by-age", "predicted-loss"} <= set(staleness.Plan().modes)


def test_rows_of_several_seeds_have_intervals() -> None:
    plan = staleness.Plan(workers=3, repeats=3, modes=("synchronous",), target=0.5)
    ends = (0.75, 0.78, 0.81)
    runs = {
        ("synchronous", seed): [
            {**each, "points": [(1.0 + seed + at, at, 1.0, accuracy) for at in range(3)]}
            for each in told("synchronous", 1.0)
        ]
        for seed, accuracy in enumerate(ends)
    }
    [row] = staleness.rows_of(plan, "even", runs)
    assert row.accuracy_range == pytest.approx(4.303 * 0.03 / math.sqrt(3), rel=1e-3), "Student's t, two degrees"
    assert row.to_target_range == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(staleness.table_of(plan, [row]))
    said = console.export_text()
    assert "4.00 +-2.48 s" in said
    assert "78.0 +-7.4 %" in said


@pytest.mark.parametrize(
    "wrong", [{"task": "speech"}, {"conditions": ("slow",)}, {"modes": ("skip-7",)}, {"slow": 0.5}, {"steps": 4}]
)
def test_an_illegal_plan_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        staleness.Plan(**wrong)


def test_the_text_transformer_is_the_one_of_the_examples() -> None:
    assert sum(each.numel() for each in SUBJECTS["text"].network().parameters()) * 4 > 29e6


def test_the_plot_of_every_mode_under_every_condition_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'fanin[plot]'")
    plan = dataclasses.replace(PLAN, conditions=tuple(staleness.CONDITIONS), plot=tmp_path / "plot.png")
    points = [(time_s, 2.0 / time_s, 0.5) for time_s in (1.0, 2.0)]
    rows: Any = [
        SimpleNamespace(condition=condition, mode=mode, points=points)
        for condition in staleness.CONDITIONS
        for mode in MODES
    ]
    staleness.plot(plan, rows)
    assert plan.plot.read_bytes().startswith(b"\x89PNG")
    plan = dataclasses.replace(plan, conditions=PLAN.conditions)  # fewer axes to draw
    for name, start in (("curves", b"\x89PNG"), ("plot.pdf", b"%PDF")):
        staleness.plot(dataclasses.replace(plan, plot=tmp_path / name), rows)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(FaninError, match="the plot /dev/full cannot be written: No space left"):
        staleness.plot(dataclasses.replace(plan, plot=Path("/dev/full")), rows)


def measured(plan: staleness.Plan, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Conditions in which ranks would have been started."""
    started: list[str] = []

    def reports(plan: staleness.Plan, condition: str, output: Output) -> staleness.Told:
        started.append(condition)
        return everything()

    monkeypatch.setattr(staleness, "_run", reports)
    staleness.bench(plan, Output(json=plan.plot.with_name("rows.json"), html=plan.plot.with_name("page.html")))
    return started


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is not root."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'fanin[plot]'")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("unprivileged")
def test_conditions_over_links_are_left_out_without_root_and_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = dataclasses.replace(PLAN, plot=tmp_path / "plot.png", conditions=("slow-link", "slow-worker-over-links"))
    with pytest.raises(ConfigurationError, match=r"need root.*Remedy"):
        measured(plan, monkeypatch)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
    assert measured(dataclasses.replace(plan, conditions=("even", "slow-link")), monkeypatch) == ["even"]
    assert "slow-link is left out: network namespaces need root" in capsys.readouterr().out


@pytest.mark.usefixtures("unprivileged")
def test_a_plot_that_nobody_can_draw_is_refused_first_and_one_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(PLAN, conditions=("even",), plot=tmp_path / "x.txt")
    with pytest.raises(ConfigurationError, match=r"x\.txt: no plot has the suffix \.txt\. Remedy: one of .*png"):
        measured(plan, monkeypatch)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(FaninError, match=r"the plot .*folder\.png cannot be written: Is a directory"):
        measured(dataclasses.replace(plan, plot=tmp_path / "folder.png"), monkeypatch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.png", "page.html", "rows.json"]
