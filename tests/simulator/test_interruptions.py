"""Long commands that are interrupted: their status, their line, and the processes of their pools."""

from __future__ import annotations

import collections
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys

import pytest

from fanin import cli
from fanin.cli import ending
from fanin.emulation.conformance.check import SAME, HistoryResult
from fanin.emulation.conformance.histories import History
from fanin.emulation.simulator import batches, canary
from fanin.emulation.simulator.search import Tally
from fanin.emulation.simulator.violations import ProgressError
from fanin.errors import FaninError
from fanin.modules import running

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
TELLS_OF_BATCHES = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup: it would be respected
from fanin.cli import simulate
simulate._show_progress = lambda schedules: lambda tally: print("batch", flush=True)
if __name__ == "__main__":
    sys.argv[0] = "fanin"
    from fanin.cli import main
    main()
"""


def interrupted(command: list[str], after: str, number: signal.Signals, *, group: bool) -> tuple[int, str]:
    """Signal a program, or its whole group, once it has printed a line that begins with `after`. Returns its status
    and standard error, once every process that holds standard error has ended.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout
        assert next(line for line in program.stdout if line.startswith(after))
        (os.killpg if group else os.kill)(program.pid, number)
        _, errors = program.communicate()
    return program.returncode, errors


@pytest.mark.processes
@pytest.mark.parametrize("group", [True, False], ids=["group", "alone"])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_search_ends_with_its_count_and_without_its_processes(number: signal.Signals, group: bool) -> None:
    search = [sys.executable, "-c", TELLS_OF_BATCHES, "simulate", "--seed", "7", "--processes", "2"]
    status, errors = interrupted([*search, "--search", "1000000000"], "batch", number, group=group)
    assert status == 130
    told = (
        r"fanin: interrupted: (\d+) schedules with native machines were run from seed 7 on, and nothing was violated\n"
    )
    found = re.fullmatch(told, errors)
    assert found, errors
    assert int(found[1]) >= batches.BATCH_SEEDS


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("number", SIGNALS[:2], ids=lambda number: number.name)
def test_a_measurement_of_the_engine_ends_with_a_line_amid_the_start_of_its_processes(number: signal.Signals) -> None:
    engine = running("fanin.benchmarks.engine", "--iterations", "1000000")
    assert interrupted(engine, "workers", number, group=True) == (130, "interrupted\n")


def test_the_first_results_come_before_the_last_batches_are_dealt_out() -> None:
    results = batches.in_batches(len, 0, 1_000_000_000, processes=2)
    assert [next(results) for _ in range(20)] == [batches.BATCH_SEEDS] * 20
    results.close()  # type: ignore[attr-defined]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "remedy"),
    [(signal.SIGKILL, "memory ran out"), (signal.SIGSEGV, "report"), (signal.SIGUSR1, "see who sent the signal")],
    ids=["SIGKILL", "SIGSEGV", "SIGUSR1"],
)
def test_a_process_of_a_search_that_is_killed_is_told_with_its_signal(number: signal.Signals, remedy: str) -> None:
    before = set(multiprocessing.active_children())
    results = batches.in_batches(len, 7, 1_000_000_000, processes=2)
    next(results)
    victim = (set(multiprocessing.active_children()) - before).pop()
    assert victim.pid is not None
    resource.prlimit(victim.pid, resource.RLIMIT_CORE, (0, 0))
    os.kill(victim.pid, number)
    with pytest.raises(FaninError) as caught:
        collections.deque(results, maxlen=0)
    status, line = ending.explain(caught.value)
    assert status == 1
    assert re.match(
        rf"process {victim.pid}, one of the search's, was killed by {number.name} before the schedules of seeds \d+ "
        rf"to \d+ were done\. Remedy: .*{remedy}",
        line,
    )


def interrupt_at(schedules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a search interrupted when it has run so many schedules."""

    def progress(tally: Tally) -> None:
        if tally.schedules >= schedules:
            raise KeyboardInterrupt

    monkeypatch.setattr("fanin.cli.simulate._show_progress", lambda _: progress)


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
def test_a_search_says_how_many_schedules_were_run(
    json: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at(20, monkeypatch)
    assert cli.run(["simulate", "--search", "1000", "--seed", "5", "--processes", "1", *json]) == 130
    told = "fanin: interrupted: 20 schedules with native machines were run from seed 5 on, and nothing was violated\n"
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize(
    ("option", "drawn", "run", "shortened", "told"),
    [
        ([], "search.draw_for", "search.simulate", "search.shorten", "13 schedules with native machines"),
        (
            ["--shards"],
            "shard_search.draw_shards",
            "shard_search.simulate_plan",
            "shard_search.shorten_plan",
            "13 plans with native machines",
        ),
        (
            ["--shards", "--cards"],
            "shard_search.draw_cards",
            "shard_search.simulate_plan",
            "shard_search.shorten_plan",
            "13 plans with native machines",
        ),
    ],
    ids=["schedules", "plans", "plans with cards"],
)
def test_an_interruption_amid_shortening_names_what_was_violated(
    option: list[str],
    drawn: str,
    run: str,
    shortened: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Report:
        """A run that found nothing."""

        def __getattr__(self, _: str) -> int:
            return 0

    def one_fails(_: object, seed: int, **__: object) -> Report:
        if seed == 12:
            violation = ProgressError("stands still")
            violation.locate(seed, 1, 0.5, ())
            raise violation
        return Report()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    where = "fanin.emulation.simulator."
    monkeypatch.setattr(where + drawn, lambda *_, **__: None)
    monkeypatch.setattr(where + run, one_fails)
    monkeypatch.setattr(where + shortened, interrupt)
    assert cli.run(["simulate", "--search", "100", "--processes", "1", *option]) == 130
    errors = capsys.readouterr().err
    assert errors == f"fanin: interrupted: {told} were run from seed 0 on, and seed 12 violated progress\n"


def test_the_canary_says_which_hunts_were_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hunt(defect: str, first_seed: int) -> canary.Catch | None:
        if defect == list(canary.DEFECTS)[2]:
            raise KeyboardInterrupt
        return canary.Catch(defect, 4, ProgressError("")) if first_seed else None

    monkeypatch.setattr(canary, "hunt", hunt)
    assert cli.run(["simulate", "--canary", "2"]) == 130
    hunts = 2 * len(canary.HUNTED)
    assert capsys.readouterr().err == (
        f"fanin: interrupted: 4 of {hunts} hunts were done, from seed 0 on, with {2 * 4 + 2 * canary.MAX_SCHEDULES:,} "
        "schedules; 2 of them found their defect\n"
    )


def test_a_conformance_check_says_how_many_histories_were_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[str] = []

    def check(_: object, history: History, seed: int, words: int | None) -> HistoryResult:
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append("")
        return HistoryResult(history.name, seed, SAME, 0, True)

    monkeypatch.setattr("fanin.emulation.conformance.check.check", check)
    assert cli.run(["conformance", "udp://127.0.0.1:1"]) == 130
    errors = capsys.readouterr().err
    assert errors == "fanin: interrupted: 3 histories were played to udp://127.0.0.1:1, and 3 of them conform\n"
