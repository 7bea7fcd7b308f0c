"""`fanin bench sharded --epochs --runs FILE`: that trainings are kept, and what is still to be done."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fanin.benchmarks import sharded
from fanin.benchmarks.harness import Output
from fanin.benchmarks.sharded_runs import Outcome, Run, Trainings, outcome_of, to_do
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.errors import ConfigurationError, FaninError

PLAN = sharded.Plan(
    workers=2, rate_bit_s=None, switch_at=SwitchPlace("hosts"), rivals=("gloo", "fanin-8"), steps=0, epochs=3, seeds=2
)


def brought(run: Run) -> Outcome:
    """A possible result of a training."""
    loss = (2.0 if run.rival == "gloo" else 2.1) + run.seed
    apart = None if run.seed else 0.01
    return Outcome(run, loss, loss + 1, apart, apart)


def all_in(file: Path) -> Trainings:
    """A file with every training of the plan."""
    kept = Trainings(file)
    for run in PLAN.trainings:
        kept.add(brought(run))
    return kept


def test_whole_seeds_come_first_and_what_is_kept_is_not_done_again() -> None:
    runs, kept = PLAN.trainings, Trainings(None)
    assert [(run.seed, run.rival) for run in runs] == [(0, "gloo"), (0, "fanin-8"), (1, "gloo"), (1, "fanin-8")]
    assert to_do(runs, kept) == runs
    for run in runs[:3]:
        kept.add(brought(run))
    assert to_do(runs, kept) == runs[3:]
    assert to_do([], kept) == []


def test_the_first_rival_trains_again_where_others_are_compared_with_its_weights() -> None:
    runs, kept = PLAN.trainings, Trainings(None)
    kept.add(brought(runs[0]))
    assert to_do(runs, kept) == runs


def test_rows_are_made_of_the_file_where_it_has_every_training(tmp_path: Path) -> None:
    all_in(tmp_path / "runs.json")
    screen, rows_file = io.StringIO(), tmp_path / "rows.json"
    plan = dataclasses.replace(PLAN, runs=tmp_path / "runs.json")
    sharded.bench(plan, Output(json=rows_file, console=Console(file=screen)))
    rows = json.loads(rows_file.read_text())
    assert [row["losses"] for row in rows] == [[2.0, 3.0], [2.1, 3.1]]
    assert rows[1]["test_losses"] == [3.1, 4.1]
    assert rows[1]["apart"] == 0.01
    assert "workers, FSDP2 ..." not in screen.getvalue(), "a job was started"


def test_other_epochs_links_and_places_are_other_trainings(tmp_path: Path) -> None:
    kept = all_in(tmp_path / "runs.json")
    for other in (dataclasses.replace(PLAN, epochs=4), dataclasses.replace(PLAN, workers=4)):
        assert kept.missing(other.trainings) == other.trainings


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_text('[{"run": {"rival": "gloo"}}]')
    with pytest.raises(ConfigurationError, match="run 0"):
        Trainings(file)


def test_ranks_that_disagree_on_a_loss_are_an_error() -> None:
    run = PLAN.trainings[1]
    said = [{"loss": loss, "test_loss": 2.0, "apart_step": step, "apart": 0.5} for loss, step in ((1.0, 0.1), (1, 0.3))]
    assert outcome_of(run, said) == Outcome(run, 1.0, 2.0, 0.3, 0.5)
    said[1]["loss"] = 1.5
    with pytest.raises(FaninError, match="fanin-8: the ranks have different losses after 3 epochs"):
        outcome_of(run, said)
