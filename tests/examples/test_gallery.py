"""`fanin gallery`: its catalogue, its page, its planners, and what it says to requests that do not fit."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from fanin import cli
from fanin.errors import ConfigurationError, FaninError
from fanin.examples.parallel import gallery, skip_planner
from fanin.examples.parallel.catalogue import CATALOGUE, Example, named
from tests.support.forks import fork_jobs
from tests.support.repository import ROOT

FOLDER = ROOT / "examples/parallel"
HELPERS = {"__init__", "catalogue", "differentiable", "gallery", "launcher", "skip_planner", "skip_runner"}


def test_every_example_is_in_the_catalogue() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - HELPERS == set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_example_has_at_most_200_lines_and_the_command_that_runs_it(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    assert len(source.splitlines()) <= 200
    assert f"torchrun --nproc-per-node {CATALOGUE[name].workers[0]} -m {CATALOGUE[name].module} --check" in source
    assert f'launcher.run(play, "{name}", __doc__)' in source


def test_the_page_has_a_row_for_every_example() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/gallery.md").read_text(), re.MULTILINE)
    assert rows == list(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_world_that_does_not_fit_is_refused_with_one_that_does(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{name} does not run on 7 workers. Remedy: {CATALOGUE[name].workers[0]}"
    ):
        named(name).require(7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "'nothing' is no example. Remedy: one of mixture"),
        (["--only", "mixture", "--workers", "3"], "mixture does not run on 3 workers. Remedy: 8"),
        (["--only", "layouts", "--hosts", "3"], "layouts has 4 workers. Remedy: a divisor"),
        (["--only", "layouts", "--all"], "not both"),
        (["--workers", "2"], "without --only or --all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_ends_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["gallery", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.processes
def test_one_example_runs_and_counts_bytes_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    fork_jobs(monkeypatch)
    file = tmp_path / "rows.json"
    plan = gallery.Plan(examples=(CATALOGUE["linear_attention"],), workers=2, quick=True)
    printed = io.StringIO()
    gallery.run(plan, Console(file=printed, width=200), file)
    (row,) = json.loads(file.read_text())
    assert row["verdict"] == "ok"
    assert row["bytes"]["switch"] > 0
    assert row["bytes"]["gloo"] > 0
    assert row["bytes"]["shards"] == 0
    assert "linear_attention" in printed.getvalue()


def test_an_interruption_keeps_the_examples_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")

    def outcome(example: Example, plan: gallery.Plan, server: object) -> gallery.Outcome:
        if example.name == "mixture":
            raise KeyboardInterrupt
        return gallery.Outcome(example.name, 2)

    monkeypatch.setattr(gallery, "outcome_of", outcome)
    file, printed = tmp_path / "rows.json", io.StringIO()
    plan = gallery.Plan(examples=(CATALOGUE["layouts"], CATALOGUE["mixture"]))
    with pytest.raises(KeyboardInterrupt):
        gallery.run(plan, Console(file=printed, width=200), file)
    assert [row["name"] for row in json.loads(file.read_text())] == ["layouts"]
    assert "layouts" in printed.getvalue()


@pytest.mark.processes
def test_a_check_that_fails_is_named_and_the_command_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Example, "module", "tests.support.job_stub")
    with pytest.raises(FaninError, match="layouts: worker"):
        gallery.run(gallery.Plan(examples=(CATALOGUE["layouts"],), workers=2), Console(file=io.StringIO()), None)


def test_a_figure_that_says_skipped_is_a_verdict() -> None:
    table = gallery.table_of([gallery.Outcome("layouts", 2, "skipped", {"skipped": "no GPU"})])
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as captured:
        console.print(table)
    assert "skipped no GPU" in captured.get()


@pytest.mark.parametrize(("microbatches", "stages", "skipped"), [(8, 6, 2), (15, 6, 2), (8, 4, 1), (4, 3, 1)])
def test_planned_paths_are_legal_and_load_every_stage_alike(microbatches: int, stages: int, skipped: int) -> None:
    paths = skip_planner.planned(microbatches, stages, skipped)
    assert skip_planner.fits(paths, microbatches, stages, skipped)
    for path in paths:
        assert len(set(path)) == len(path) == stages - 1 - skipped
        assert 0 not in path
        assert sum(a > b for i, a in enumerate(path) for b in path[i:]) <= skip_planner.MAX_SWAPS


@pytest.mark.parametrize("microbatches", [2, 3, 4])
def test_planned_paths_are_near_the_best_of_all(microbatches: int) -> None:
    time, _ = skip_planner.scheduled(skip_planner.planned(microbatches, 4, 1), 4)
    assert time <= 1.06 * skip_planner.best(microbatches, 4, 1)


def test_every_stage_has_all_visits_of_its_paths_in_their_order() -> None:
    paths = skip_planner.planned(8, 6, 2)
    _, orders = skip_planner.scheduled(paths, 6)
    assert sum(map(len, orders)) == sum(2 * len(path) + 3 for path in paths)
    for stage, order in enumerate(orders):
        for microbatch, path in enumerate(paths):
            own = [each for each in order if each.microbatch == microbatch]
            assert own == [each for each in skip_planner.visits(microbatch, path) if each.stage == stage]
