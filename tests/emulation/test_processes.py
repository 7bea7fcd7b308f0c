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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fanin.emulation import processes
from fanin.emulation.fork_server import ForkServer
from fanin.emulation.process_log import cause_in
from fanin.emulation.processes import LocalJob, WorkerFailedError, free_port
from fanin.errors import FaninError
from tests.support.processes import has_ended, until
from tests.support.repository import ROOT

pytestmark = pytest.mark.processes

STUB = "tests.support.job_stub"


Start = Callable[..., LocalJob]


@pytest.fixture
def modules_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that are started find `tests`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(params=["interpreters", "forks"])
def stub_job(request: pytest.FixtureRequest, modules_of_tests: None) -> Iterator[Start]:
    """Jobs of the stub, whose ranks are interpreters or forks of a server."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ForkServer(STUB)) if request.param == "forks" else None

        def start(what: str, workers: int = 2) -> LocalJob:
            return LocalJob(STUB, [what], workers, {}, server=server)

        yield start


def stat_of(pid: int) -> tuple[str, int]:
    """The state of a process, T once it has stopped, and its parent (proc_pid_stat(5))."""
    state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return state, int(parent)


def test_every_worker_reports_with_its_rank(stub_job: Start) -> None:
    with stub_job("end", workers=3) as job:
        reports = sorted(job.reports())
    assert [report.rank for report in reports] == [0, 1, 2]
    assert [report.record for report in reports] == [{"rank": rank, "workers": 3} for rank in range(3)]


def test_a_failing_worker_ends_the_job_with_its_own_words(stub_job: Start) -> None:
    with stub_job("fail") as job:
        pidfds = [os.pidfd_open(pid) for pid in job.pids]
        with pytest.raises(WorkerFailedError, match="worker 1 failed: ValueError: this worker\nhas") as info:
            list(job.reports())
    assert info.value.rank == 1
    assert all(has_ended(pidfd) for pidfd in pidfds)


@pytest.mark.parametrize("what", ["leave", "chatter"], ids=["at once", "after a log that is longer than what is read"])
def test_the_worker_that_failed_first_is_named_though_another_ended_first(what: str, stub_job: Start) -> None:
    with stub_job(what) as job:
        reports = job.reports()
        while not next(reports).record.get("failed"):
            pass
        until(lambda: stat_of(job.pids[1])[0] == "T")
        os.kill(job.pids[1], signal.SIGCONT)
        with pytest.raises(WorkerFailedError, match="worker 0 failed: ValueError: the cause"):
            list(reports)


def test_a_killed_worker_is_named_with_its_signal(stub_job: Start) -> None:
    with pytest.raises(WorkerFailedError, match="worker 1 was ended by SIGKILL"), stub_job("die") as job:
        list(job.reports())


def test_a_worker_whose_threads_of_gloo_outlive_its_groups_leaves_in_order_and_ends_well(
    stub_job: Start,
) -> None:
    with stub_job("gloo") as job:
        left = [report.rank for report in job.reports() if report.record.get("left")]
    assert sorted(left) == [0, 1]


def test_what_workers_started_ends_with_them(stub_job: Start) -> None:
    with stub_job("embed") as job:
        children = (report.record["child"] for report in job.reports() if "child" in report.record)
        pidfds = [os.pidfd_open(next(children)), os.pidfd_open(next(children))]
    assert all(has_ended(pidfd) for pidfd in pidfds)


@pytest.mark.parametrize("server", ["nullcontext()", f"ForkServer({STUB!r})"], ids=["interpreters", "forks"])
def test_a_launcher_that_is_killed_takes_its_workers_along(server: str) -> None:
    script = textwrap.dedent(
        f"""
        from contextlib import nullcontext
        from fanin.emulation.fork_server import ForkServer
        from fanin.emulation.processes import LocalJob
        with {server} as server, LocalJob({STUB!r}, ["hang"], 2, {{}}, server=server) as job:
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


def test_a_server_that_has_threads_leaves_ranks_to_interpreters(modules_of_tests: None) -> None:
    threaded = ForkServer("tests.support.threaded_module")
    with threaded as server, LocalJob(STUB, ["end"], 2, {}, server=server) as job:
        assert {stat_of(pid)[1] for pid in job.pids} == {os.getpid()}
        reports = list(job.reports())
    assert [sorted(report.record) for report in reports] == [["rank", "workers"]] * 2


def test_a_server_that_has_ended_is_an_error_in_one_line() -> None:
    with ForkServer(STUB) as server:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(FaninError, match="starts ranks has ended, with status -9: it wrote no message"):
            LocalJob(STUB, ["end"], 2, {}, server=server).__enter__()


def test_the_cause_of_a_failure_is_the_last_exception_without_its_traceback() -> None:
    traceback = ["Traceback (most recent call last):", "  File", "fanin.errors.FaninError: no", "yes"]
    log = "\n".join(f"[rank1]: {line}" for line in traceback)
    assert cause_in(log) == "fanin.errors.FaninError: no\nyes"
    assert cause_in("some\nwords\n\n") == "words"
    assert cause_in("") == "it wrote no message"
    warning = (
        "[W1129 00:28:01.519 socket.cpp:767] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
    )
    assert cause_in(f"words\n{warning}") == "words"
    assert cause_in(f"[rank1]:{warning}") == "it wrote no message"


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
    only = free_port(kind)
    monkeypatch.setattr(processes, "FIRST_FREE_PORT", only)
    ephemeral_from(monkeypatch, tmp_path, only + 1)
    with socket.socket(socket.AF_INET, kind) as holder:
        holder.bind(("127.0.0.1", only))
        assert free_port(kind) > only, "the only port below is taken: any other, then"
    assert free_port(kind) == only


def test_a_machine_without_ports_below_the_ephemeral_ones_gives_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ephemeral_from(monkeypatch, tmp_path, 1024)
    assert free_port() >= 1024
    monkeypatch.setattr(processes, "EPHEMERAL_PORTS", tmp_path / "no such file")
    assert free_port() >= 1024
