"""Local jobs: reports come in, failures are named, and nothing outlives the job or whoever started it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fanin.emulation import processes
from fanin.emulation.processes import LocalJob, WorkerFailedError, cause_in, free_port
from tests.support.processes import has_ended
from tests.support.repository import ROOT

pytestmark = pytest.mark.processes

STUB = "tests.support.job_stub"


def stub_job(what: str, workers: int = 2) -> LocalJob:
    return LocalJob(STUB, [what], workers, {"PYTHONPATH": str(ROOT)})


def test_every_worker_reports_with_its_rank() -> None:
    with stub_job("end", workers=3) as job:
        reports = sorted(job.reports())
    assert [report.rank for report in reports] == [0, 1, 2]
    assert [report.record for report in reports] == [{"rank": rank, "workers": 3} for rank in range(3)]


def test_a_failing_worker_ends_the_job_with_its_own_words() -> None:
    with stub_job("fail") as job:
        pidfds = [os.pidfd_open(pid) for pid in job.pids]
        with pytest.raises(WorkerFailedError, match="worker 1 failed: ValueError: this worker\nhas") as info:
            list(job.reports())
    assert info.value.rank == 1
    assert all(has_ended(pidfd) for pidfd in pidfds)


@pytest.mark.parametrize("what", ["leave", "chatter"], ids=["at once", "after a log that is longer than what is read"])
def test_the_worker_that_failed_first_is_named_though_another_ended_first(what: str) -> None:
    with stub_job(what) as job:
        reports = job.reports()
        while not next(reports).record.get("failed"):
            pass
        os.waitid(os.P_PID, job.pids[1], os.WSTOPPED | os.WNOWAIT)
        os.kill(job.pids[1], signal.SIGCONT)
        with pytest.raises(WorkerFailedError, match="worker 0 failed: ValueError: the cause"):
            list(reports)


def test_a_killed_worker_is_named_with_its_signal() -> None:
    with pytest.raises(WorkerFailedError, match="worker 1 was ended by SIGKILL"), stub_job("die") as job:
        list(job.reports())


def test_a_worker_whose_threads_of_gloo_outlive_its_groups_leaves_in_order_and_ends_well() -> None:
    with stub_job("gloo") as job:
        left = [report.rank for report in job.reports() if report.record.get("left")]
    assert sorted(left) == [0, 1]


def test_what_workers_started_ends_with_them() -> None:
    with stub_job("embed") as job:
        children = (report.record["child"] for report in job.reports() if "child" in report.record)
        pidfds = [os.pidfd_open(next(children)), os.pidfd_open(next(children))]
    assert all(has_ended(pidfd) for pidfd in pidfds)


def test_a_launcher_that_is_killed_takes_its_workers_along() -> None:
    script = textwrap.dedent(
        f"""
        from fanin.emulation.processes import LocalJob
        with LocalJob({STUB!r}, ["hang"], 2, {{}}) as job:
            for count, _ in enumerate(job.reports(), 1):
                if count == 2:
                    print(*job.pids, flush=True)
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout
        pidfds = [os.pidfd_open(int(pid)) for pid in launcher.stdout.readline().split()]
        launcher.send_signal(signal.SIGKILL)
        assert len(pidfds) == 2
        assert all(has_ended(pidfd) for pidfd in pidfds)


def test_the_cause_of_a_failure_is_the_last_exception_without_its_traceback() -> None:
    traceback = ["Traceback (most recent call last):", "  File", "fanin.errors.FaninError: no", "yes"]
    log = "\n".join(f"[rank1]: {line}" for line in traceback)
    assert cause_in(log) == "fanin.errors.FaninError: no\nyes"
    assert cause_in("some\nwords\n\n") == "words"
    assert cause_in("") == "it wrote no message"


def test_reports_of_ranks_that_share_an_output_stay_on_lines_of_their_own() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from fanin.benchmarks import ranks
    from fanin.examples import train

    pieces: list[str] = []

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    with contextlib.redirect_stdout(Output()):
        train.report(a=1)
        ranks.report({"a": 2})
    assert pieces == ['{"a": 1}\n', '{"a": 2}\n']


def ephemeral_from(monkeypatch: pytest.MonkeyPatch, folder: Path, first: int) -> None:
    path = folder / "range"
    path.write_text(f"{first}\t60999\n")
    monkeypatch.setattr(processes, "EPHEMERAL_PORTS", path)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_free_port_is_none_that_the_system_gives_to_anybody_else(
    kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ephemeral_from(monkeypatch, tmp_path, processes.FIRST_FREE_PORT + 1)
    with socket.socket(socket.AF_INET, kind) as holder:
        try:
            holder.bind(("127.0.0.1", processes.FIRST_FREE_PORT))
        except OSError:
            pytest.skip(f"another program has port {processes.FIRST_FREE_PORT}")
        assert free_port(kind) > processes.FIRST_FREE_PORT, "the only port below is taken: any other, then"
    assert free_port(kind) == processes.FIRST_FREE_PORT


def test_a_machine_without_ports_below_the_ephemeral_ones_gives_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ephemeral_from(monkeypatch, tmp_path, 1024)
    assert free_port() >= 1024
    monkeypatch.setattr(processes, "EPHEMERAL_PORTS", tmp_path / "no such file")
    assert free_port() >= 1024
