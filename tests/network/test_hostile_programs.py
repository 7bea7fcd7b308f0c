"""A run of `fanin emulate` under hostile programs and disks: it ends, names the failure, and leaves its record."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fanin import cli
from fanin.emulation.network import ownership
from fanin.emulation.network.emulate import emulate, make_log_folder
from fanin.emulation.network.launch import Workers
from fanin.emulation.network.scenario import Scenario
from fanin.errors import ConfigurationError, FaninError
from fanin.records.record import RunRecord
from tests.support.forks import fork_switches

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]

PROGRAM = str(Path(__file__).with_name("hostile_program.py"))
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def forked_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches are forks, but for those of tests that start the command itself."""
    fork_switches(monkeypatch)


def run(what: str, tmp_path: Path, **scenario: object) -> tuple[RunRecord, str]:
    """A run of the program as a plain command; its record as it was written, and what was printed."""
    path, shown = tmp_path / "run.json", io.StringIO()
    console = Console(file=shown, width=200)
    emulate(
        Scenario(workers=2, **scenario),  # type: ignore[arg-type]
        ("env", sys.executable, PROGRAM, what),
        record_file=path,
        logs=tmp_path / "logs",
        console=console,
    )
    return RunRecord.read(path), shown.getvalue()


def test_who_failed_first_is_named_with_its_status_though_the_run_is_interrupted(tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fanin",
            "emulate",
            "--workers",
            "2",
            "--record",
            record,
            "--html",
            tmp_path / "p.html",
            "--",
            "env",
            sys.executable,
            PROGRAM,
            "one-fails",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while not ("still here" in text and "failed" in text):  # said at once, while the other goes on
        line = process.stdout.readline()
        assert line, text
        text += line
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # an impatient user's: the record is written all the same
    said, _ = process.communicate(timeout=LIMIT_S)
    assert "worker 1: failed with status 3" in said
    assert process.returncode == 1
    found = RunRecord.read(record)
    assert found.outcome == "failed"
    assert found.error.startswith("worker 1: failed with status 3")
    assert found.workers[1].outcome.startswith("failed with status 3")
    assert found.workers[0].outcome == "stopped because of worker 1, which had failed"


def test_a_grandchild_that_holds_the_output_does_not_keep_a_run_open(tmp_path: Path) -> None:
    record, shown = run("grandchild", tmp_path)  # or else pytest's own limit ends it
    assert [worker.outcome for worker in record.workers] == ["finished", "finished"]
    assert shown.count("its parent ends") == 2


def test_figures_that_are_no_numbers_are_noted_and_cost_no_record(tmp_path: Path) -> None:
    record, shown = run("strange-figures", tmp_path)
    assert record.outcome == "finished"
    assert [(each.epoch, each.loss) for each in record.progress] == [(None, 0.5), (None, 0.5)]
    notes = "\n".join(record.notes)
    for rank in (0, 1):
        for said in ("epoch nan", "epoch inf", "loss -inf", "step_s a number too large"):
            assert f"worker {rank} printed {said}" in notes
    assert "epoch nan" in shown
    assert "[/bold] is no markup" in shown


def test_what_programs_say_is_shown_as_they_say_it(tmp_path: Path) -> None:
    record, shown = run("markup", tmp_path)
    assert record.workers[0].outcome == "failed with status 1: ValueError: [/red] of '[/data]'"
    assert "ValueError: [/red] of '[/data]'" in shown
    for rank in range(2):
        assert f"worker {rank}: [/bold] of {'x' * 300}\n" in shown, "not in pieces of the terminal's width"


def test_faults_at_steps_that_never_come_are_reported(tmp_path: Path) -> None:
    record, _ = run("grandchild", tmp_path, faults=("kill=worker:1@step:99", "kill=switch@step:7"))
    assert sorted(record.notes) == [
        "fault that never fired: kill=switch@step:7 (the run was over first)",
        "fault that never fired: kill=worker:1@step:99 (worker 1 took 0 optimizer steps)",
    ]


def test_a_run_that_breaks_has_a_record_of_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(workers: Workers, tick_s: float) -> Iterator[None]:
        yield None
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(Workers, "lines", broken)
    with pytest.raises(ZeroDivisionError):
        run("one-fails", tmp_path)
    record = RunRecord.read(tmp_path / "run.json")
    assert record.outcome == "failed"
    assert record.error == "ZeroDivisionError: a bug of ours"
    assert {link.name for link in record.links} == {"worker 0", "worker 1"}


def test_a_record_is_written_before_anything_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(record: RunRecord) -> None:
        raise OSError("the terminal is gone")

    monkeypatch.setattr("fanin.emulation.network.emulate.summary", full)
    with pytest.raises(OSError, match="terminal"):
        run("grandchild", tmp_path)
    assert RunRecord.read(tmp_path / "run.json").outcome == "finished"


def test_a_log_folder_that_cannot_be_one_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(ConfigurationError, match=r"--logs .*file.*Remedy"):
            make_log_folder(folder)


def test_a_full_disk_is_told_of_and_a_record_found_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        (disk / "fill").write_bytes(bytes(56 << 10))
        make_log_folder(disk)
        os.truncate(disk / "fill", 0)
        (disk / "fill").write_bytes(bytes(64 << 10))
        with pytest.raises(ConfigurationError, match=r"No space left.*Remedy"):
            make_log_folder(disk)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        record, _ = run("grandchild", tmp_path)
        with pytest.raises(FaninError, match="No space left") as caught:
            record.write(disk / "run.json")
        elsewhere = str(caught.value).rpartition("It is in ")[2]
        assert RunRecord.read(Path(elsewhere)) == record
    finally:
        subprocess.run(["umount", disk], check=True)


def test_logs_that_end_early_on_a_full_disk_are_noted(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path / "logs"], check=True)
    try:
        (tmp_path / "logs" / "fill").write_bytes(bytes(60 << 10))  # a page is left, which the switch's log takes
        record, _ = run("killed", tmp_path)
        assert record.workers[0].outcome.startswith("ended by SIGKILL")
        assert any("is full" in note for note in record.notes)
    finally:
        subprocess.run(["umount", tmp_path / "logs"], check=True)


@pytest.mark.slow
def test_options_of_the_interpreter_reach_it_and_its_own_status_is_told(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nprint(sys.flags.dev_mode, os.environ['WORLD_SIZE'])\nsys.exit(3)\n")
    shown = io.StringIO()
    record = emulate(
        Scenario(workers=1),
        ["python", "-u", "-X", "dev", str(program)],
        record_file=None,
        logs=None,
        console=Console(file=shown, width=200),
    )
    assert "True 1" in shown.getvalue()
    assert record.workers[0].outcome == "failed with status 3: it wrote no message", "the program's, not torchrun's 1"


def test_no_folder_of_a_run_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("grandchild", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "run.json"]
    assert not [left for left in ownership.runs() if left.folder.parent == tmp_path]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["python", "no-such.py"], "there is no no-such.py to run"),
        (["false"], "worker 0: failed with status 1"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_program_that_never_got_so_far_leaves_no_page_unless_one_was_asked_for(
    command: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    monkeypatch.chdir(tmp_path)
    for asked in ([], ["--html", "page.html"]):
        assert cli.run(["emulate", "--workers", "1", *asked, "--", *command]) != 0
        shown = capsys.readouterr()
        assert said in " ".join((shown.out + shown.err).split())
        assert [path.name for path in tmp_path.iterdir()] == (["page.html"] if asked and command == ["false"] else [])
