"""`fanin bench codecs --train`: that it trains, times over links, checks, goes on where it was and draws one page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fanin import cli
from fanin.benchmarks.codecs_train_hooks import PowerSgd, is_hook, read
from fanin.benchmarks.codecs_train_rows import Plan, half_interval, rows_of, to_target
from fanin.benchmarks.codecs_train_runs import Outcome, Point, Run, Trainings, evaluated, outcome_of
from fanin.benchmarks.codecs_train_tables import labels, tables_of, verdicts
from fanin.errors import ConfigurationError, FaninError
from tests.support.forks import fork_jobs

PLAN = Plan(tasks=("digits",), workers=(2,), steps=8, timed_steps=4, repeats=2, rates_bit_s=(1e8,), codecs=("lanes:8",))
LOSSES = {"gloo": (2.0, 1.0), "lanes:8": (1.5, 0.9)}
STEP_S = {"gloo": 1.0, "lanes:8": 0.1}


def brought(run: Run) -> Outcome:
    """A possible result of a training: half of the loss is gone by half of the steps."""
    first, last = LOSSES[run.codec]
    points = (Point(4, first, 0.1), Point(8, last, 0.5))[: run.steps // 4]
    step_s = STEP_S[run.codec]
    bytes_out = None if run.rate_bit_s is None else 100 * step_s
    return Outcome(
        run,
        points,
        step_s,
        compute_s=0.05,
        codec_s=0.01,
        bytes_out=bytes_out,
        bytes_in=bytes_out,
        processor=0.5,
        processor_s=0.02,
    )


def all_brought() -> Trainings:
    kept = Trainings(None)
    for run in PLAN.runs:
        kept.add(brought(run))
    return kept


def test_times_to_the_loss_of_float32_are_compared_with_gloos() -> None:
    rows = rows_of(PLAN, all_brought())
    assert [(row.codec, row.rate_bit_s) for row in rows] == [
        ("gloo", None), ("lanes:8", None), ("gloo", 1e8), ("lanes:8", 1e8)
    ]  # fmt: skip
    gloo, lanes = rows[2:]
    assert (gloo.to_target_steps, gloo.to_target_s, gloo.speed_up, gloo.saved) == (8, 8.0, 1.0, 1.0)
    assert lanes.to_target_s == pytest.approx(0.8)
    assert lanes.speed_up == pytest.approx(10)
    assert lanes.saved == pytest.approx(10)
    assert lanes.loss_change == pytest.approx(-0.1)
    assert (gloo.loss_change_range, lanes.loss_change_range) == (None, 0.0)
    assert lanes.without_links_s == 0.1
    (line,) = verdicts(rows)
    assert "lanes:8 is first" in line
    assert "10.0 times as fast as gloo" in line


def test_a_step_of_workers_with_a_core_each_takes_their_time_and_the_links() -> None:
    gloo, lanes = rows_of(PLAN, all_brought())[2:]
    assert gloo.own_core_s == pytest.approx(100 * 8 / 1e8 + 0.02)
    assert lanes.own_core_s == pytest.approx(10 * 8 / 1e8 + 0.02)
    assert lanes.own_core_speed_up(gloo) == pytest.approx((8e-6 + 0.02) / (8e-7 + 0.02))
    assert dataclasses.replace(lanes, to_target_steps=None).own_core_speed_up(gloo) is None
    assert "what bounds a step" in [table.title.plain for table in tables_of(PLAN, [gloo, lanes])]


def test_rows_and_the_verdict_say_whether_links_or_processors_bound_a_step() -> None:
    gloo, lanes = rows_of(PLAN, all_brought())[2:]
    assert lanes.bound_by == ("processors", 1.0)
    assert dataclasses.replace(gloo, without_links_s=2e-6).bound_by == ("link", gloo.link_s)
    assert dataclasses.replace(gloo, without_links_s=0.25).bound_by == ("processors", 0.25)
    assert dataclasses.replace(gloo, without_links_s=None).bound_by is None
    (line,) = verdicts([gloo, lanes])
    assert "processors that all workers share here bound its steps (100% of one" in line
    assert line.endswith(f"it is {lanes.own_core_speed_up(gloo):.1f} times as fast")
    (line,) = verdicts([gloo, dataclasses.replace(lanes, bytes_out=1e7, bytes_in=1e7)])
    assert line.endswith("as fast as gloo"), "its link takes longer"


def test_a_target_that_a_seed_does_not_reach_is_never_reached() -> None:
    kept = all_brought()
    run = PLAN.learning("digits", 2, "lanes:8", 1)
    kept.add(dataclasses.replace(brought(run), points=(Point(4, 3.0, 0.1), Point(8, None, 0.1))))
    lanes = rows_of(PLAN, kept)[3]
    assert (lanes.to_target_steps, lanes.to_target_s, lanes.speed_up) == (None, None, None)
    assert to_target(kept[run], 2.9) is None


def test_timed_steps_that_come_to_another_loss_than_without_links_are_an_error() -> None:
    kept = all_brought()
    run = PLAN.timing("digits", 2, "lanes:8", 1e8)
    kept.add(dataclasses.replace(brought(run), points=(Point(4, 1.6, 0.1),)))
    with pytest.raises(FaninError, match=r"loss 1\.6000 after 4 steps, but 1\.5000 without links"):
        rows_of(PLAN, kept)


def test_replicas_that_differ_are_an_error() -> None:
    said = [{"replica": "one", "points": []}, {"replica": "other", "points": []}]
    with pytest.raises(FaninError, match=r"digits, 2 workers, links of 100 Mbit/s, lanes:8, seed 0: the ranks' param"):
        outcome_of(PLAN.timing("digits", 2, "lanes:8", 1e8), said)


def test_what_a_file_of_runs_has_is_not_done_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    kept, half = Trainings(file), len(PLAN.runs) // 2
    for run in PLAN.runs[:half]:
        kept.add(brought(run))
    assert Trainings(file).missing(PLAN.runs) == PLAN.runs[half:]
    assert Trainings(file)[PLAN.runs[0]] == brought(PLAN.runs[0])
    file.write_text('{"a": 1}')
    with pytest.raises(ConfigurationError, match="no list of runs"):
        Trainings(file)


def test_evaluations_are_spread_evenly_and_one_is_the_last_step() -> None:
    assert list(evaluated(Run("digits", 2, "gloo", 64, 10, 4))) == [3, 5, 8, 10]
    assert list(evaluated(Run("digits", 2, "gloo", 64, 6, 1))) == [6]


def test_long_names_are_short_in_a_legend_and_still_differ() -> None:
    long = "by_layer:4/8:rules=*embed*=>agreed_blocks,4/8,share=0.0"
    shown = labels(["gloo", f"{long}1", f"{long}2"])
    assert shown["gloo"] == "gloo"
    assert len(set(shown.values())) == 3
    assert all(len(each) < 40 for each in shown.values())


def test_torchs_hook_is_named_with_its_group_and_rank() -> None:
    assert read("power_sgd:gloo") == PowerSgd("gloo", 4)
    assert read("power_sgd:fanin:rank=2") == PowerSgd("fanin", 2)
    assert not is_hook("low_rank:32:rank=2")
    plan = dataclasses.replace(PLAN, codecs=("low_rank", "power_sgd:fanin", "power_sgd:gloo:rank=4"))
    assert plan.rivals == ["gloo", "low_rank", "power_sgd:fanin", "power_sgd:gloo:rank=4"]


@pytest.mark.parametrize("text", ["power_sgd", "power_sgd:nccl", "power_sgd:gloo:rank=0", "power_sgd:gloo:rank=65"])
def test_another_form_of_torchs_hook_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="power_sgd:fanin or power_sgd:gloo"):
        dataclasses.replace(PLAN, codecs=(text,))


def test_torchs_hook_takes_several_buckets_over_fanin_alone() -> None:
    several = dataclasses.replace(PLAN, tasks=("text",), codecs=("power_sgd:fanin",))
    with pytest.raises(ConfigurationError, match="over gloo torch's hook takes one bucket"):
        dataclasses.replace(several, codecs=("power_sgd:gloo",))


def test_an_interval_is_that_of_students_t() -> None:
    assert half_interval([1.0]) is None
    assert half_interval([0.0, 1.0, 2.0]) == pytest.approx(4.30 / 3**0.5)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_a_page_has_a_curve_for_every_codec_and_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, page, runs = tmp_path / "rows.json", tmp_path / "page.html", tmp_path / "runs.json"
    size = ["--workers", "2", "--steps", "5", "--timed", "4", "--rates", "1gbit"]
    codecs = ["--codecs", "rotated:4/8,low_rank,power_sgd:fanin"]
    files = ["--json", str(rows), "--html", str(page), "--runs", str(runs)]
    fork_jobs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    status = cli.run(["bench", "codecs", "--train", *size, *codecs, *files])
    said, errors = capsys.readouterr()
    assert status == 0, errors
    found = {row["codec"]: row for row in json.loads(rows.read_text()) if row["rate_bit_s"]}
    assert set(found) == {"gloo", "rotated:4/8", "low_rank", "power_sgd:fanin"}
    for row in found.values():
        assert len(row["points"]) == 5
        assert row["step_s"] > 0
    assert found["rotated:4/8"]["bytes_out"] < found["gloo"]["bytes_out"] / 3
    assert len(json.loads(runs.read_text())) == 12
    assert "is first at the loss" in said
    text = page.read_text()
    assert all(name in text for name in found)
