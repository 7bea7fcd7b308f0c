"""`fanin demo`: as a user types it, and with ranks that are forks (tests/support/forks.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fanin import cli
from tests.support.forks import fork_jobs
from tests.support.processes import has_ended

pytestmark = pytest.mark.processes

FANIN = [sys.executable, "-m", "fanin"]


def fanin(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FANIN, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Commands of this process start forks as ranks, and run in this folder."""
    fork_jobs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_replicas_are_identical_and_as_good_as_over_gloo(forked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = forked / "demo.json"
    assert cli.run(["demo", "--workers", "2", "--epochs", "1", "--json", str(file)]) == 0, capsys.readouterr().err
    figures = json.loads(file.read_text())
    assert figures["replicas_identical"] is True
    assert figures["accuracy"] == pytest.approx(figures["baseline_accuracy"], abs=0.02)
    assert figures["accuracy"] > 0.6  # one epoch of twelve
    steps = figures["runs"][0]["epochs"][-1]["steps"]
    gradient_bytes = steps * figures["runs"][0]["gradient_bytes_per_step"]
    assert figures["wire_bytes_per_worker"] > 2 * gradient_bytes  # each way once, and headers
    assert "identical" in capsys.readouterr().out


def test_one_worker_is_enough(tmp_path: Path) -> None:
    done = fanin("demo", "--workers", "1", "--epochs", "1", "--no-baseline", folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["--lanes", "5"], ["--workers", "33"], ["--epochs", "0"]], ids=" ".join)
def test_illegal_options_are_refused_before_anything_starts(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(subprocess, "Popen")
    assert cli.run(["demo", *arguments]) == 2
    said, refused = capsys.readouterr()
    assert refused.startswith("fanin: ")
    assert said == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interruption_leaves_no_process_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import os, signal, threading\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # tests under nohup: it would be respected
        "from fanin.emulation import processes\n"
        "entered = processes.LocalJob.__enter__\n"
        "def enter(job):\n"
        "    entered(job)\n"
        "    print('pids', *job.pids, flush=True)\n"
        "    return job\n"
        "processes.LocalJob.__enter__ = enter\n"
        "import sys; sys.argv = ['fanin', 'demo', '--workers', '2']\n"
        "from fanin.cli import main; main()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as demo:  # fmt: skip
        assert demo.stderr
        assert demo.stdout
        pids = next(line for line in demo.stdout if line.startswith("pids")).split()[1:]
        pidfds = [os.pidfd_open(int(pid)) for pid in pids]
        demo.send_signal(number)
        assert demo.wait() == 130
        assert demo.stderr.read() in ("", "fanin: interrupted\n")
        assert len(pidfds) == 2
        assert all(has_ended(pidfd) for pidfd in pidfds)
        assert not list(tmp_path.iterdir())
