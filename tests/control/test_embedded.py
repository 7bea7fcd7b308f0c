"""The embedded switch: it serves its parent and the other ranks, and no process of it stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanin import open_files
from fanin.errors import SwitchUnreachableError
from fanin.host.session import embedded
from fanin.host.session.embedded import start_switch
from fanin.options import Options, SwitchAddress
from fanin.switch.controller.leaf import LeafController
from tests.support.processes import DEADLINE_S, join_all, many_files, options, reduce_together, until
from tests.support.services import a_service, address_of

pytestmark = pytest.mark.processes

PARENT = """
import sys, time
from fanin.host.session import embedded
from fanin.host.session.embedded import start_switch
from fanin.options import Options
with start_switch("127.0.0.1", Options()) as switch:
    print(switch.pid, flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        pass
"""

FEW_FILES = """
import resource, sys
from fanin.errors import SwitchUnreachableError
from fanin.host.session.embedded import start_switch
from fanin.options import Options
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
try:
    start_switch("127.0.0.1", Options())
except SwitchUnreachableError as error:
    print(error)
"""
"""A program that starts a switch where few files may be open."""


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and that nobody has waited for does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def a_parent() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that has started a switch, in a process group of its own; and the switch's process id."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        yield parent, pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            parent.kill()
        parent.wait(DEADLINE_S)
        parent.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("scheme", ["udp", "zmq"])
def test_it_serves_and_ends_with_its_parent(scheme: str) -> None:
    with start_switch("127.0.0.1", options("native-udp"), scheme=scheme) as switch:
        assert switch.address.scheme == scheme
        assert scheme in switch.description
        sessions = join_all(switch.address, "j", 2, options("native-udp"))
        reduce_together(sessions)
        for session in sessions:
            session.close()
    until(lambda: not alive(switch.pid))


def test_it_goes_on_for_the_jobs_of_others_and_ends_with_the_last_one() -> None:
    switch = start_switch("127.0.0.1", options("native-udp"))
    sessions = join_all(switch.address, "outlives its host", 2, options("native-udp"))
    switch.close()
    switch.close()
    for _ in range(3):
        reduce_together(sessions)
    assert alive(switch.pid)
    for session in sessions:
        session.close()
    until(lambda: not alive(switch.pid))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_no_process_stays_behind_when_the_parent_is_gone(number: signal.Signals) -> None:
    with a_parent() as (parent, pid):
        assert alive(pid)
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)  # as a terminal's Ctrl-C: to the whole group
        else:
            parent.send_signal(number)
        parent.wait(DEADLINE_S)
        until(lambda: not alive(pid))


def test_ctrl_c_does_not_reach_it_before_its_workers_have_left() -> None:
    with a_parent() as (_, pid):
        os.kill(pid, signal.SIGINT)
        assert os.getsid(pid) == pid
        assert alive(pid)


def test_its_ports_are_of_the_range_that_the_rank_was_given() -> None:
    given = Options(ports="22000-22999", flows=2)
    with start_switch("127.0.0.1", given) as switch, start_switch("127.0.0.1", given) as other:
        assert min(switch.address.port, other.address.port) >= 22_000
        assert max(switch.address.port, other.address.port) <= 22_998
        assert abs(switch.address.port - other.address.port) >= 2


def test_a_switch_that_does_not_come_up_says_why_in_its_own_words() -> None:
    with pytest.raises(SwitchUnreachableError, match=r"no-such\.invalid.*no name or address of this machine") as told:
        start_switch("no-such.invalid", Options())
    assert str(told.value).count("Remedy: ") == 1


def test_it_names_one_remedy_where_it_may_open_too_few_files() -> None:
    """A switch that the user starts would meet the same limit, so that the advice to start one is left out."""
    program = [sys.executable, "-c", FEW_FILES, str(open_files.NEEDED - 1)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert "files may be open" in done.stdout
    assert done.stdout.count("Remedy: ") == 1
    assert "ulimit -n" in done.stdout


def test_files_of_the_working_folder_are_not_taken_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for Python's nor for fanin's own, as a clone's sources are beside what is installed."""
    for name in ("fanin", "queue", "random", "runpy", "zmq"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the working folder')\n")
    monkeypatch.chdir(tmp_path)
    with start_switch("127.0.0.1", Options()) as switch:
        assert switch.is_running


def test_a_switch_finds_what_a_relative_path_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import pathlib; pathlib.Path('found').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "own")
    with start_switch("127.0.0.1", Options()):
        assert Path("found").exists()


def test_a_leaf_at_an_ipv6_address_tells_its_parent_one_that_can_be_used() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with a_service(host="::1") as parent:
        above = SwitchAddress("udp", "::1", parent.port)
        with a_service(host="::1", parent=above, schemes=("udp",)) as leaf:
            controller = leaf.controller
            assert isinstance(controller, LeafController)
            own = SwitchAddress.parse(controller.parent.own_address)
            assert own == SwitchAddress("udp", "::1", leaf.port)


@pytest.mark.parametrize("refused", [0, 1], ids=["the first", "another"])
def test_a_process_of_several_leaves_ends_as_soon_as_one_of_them_fails(refused: int) -> None:
    """A leaf has no leaves."""
    with a_service() as parent, a_service(parent=address_of(parent), schemes=("udp",)) as leaf:
        parents = [address_of(parent)]
        parents.insert(refused, address_of(leaf))
        with start_switch("127.0.0.1", Options(), parents=parents) as switch:
            until(lambda: not switch.is_running)
            assert switch._process.returncode == 2


def test_lines_that_python_prints_at_its_start_are_not_taken_for_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('Welcome to the cluster', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start_switch("127.0.0.1", Options()) as switch:
        assert switch.is_running
    assert capfd.readouterr().out == ""


def test_a_native_switch_starts_without_numpy_libzmq_and_the_command_line() -> None:
    """A world's first sum waits for this process, whose start is nearly all imports."""
    heavy = ["numpy", "zmq", "typer", "rich", "click", "asyncio", "subprocess", "torch"]
    program = f"""
import json, os, sys
from fanin.embedded_switch import main
from fanin.switch_order import SwitchOrder
orders, order = os.pipe()
os.write(order, SwitchOrder(hosts=("127.0.0.1",), scheme="udp", native=True).line())
os.close(order)
os.dup2(orders, 0)
os.close(orders)
assert main(os.dup(2)) == 0
print(json.dumps([name for name in {heavy!r} if name in sys.modules]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=DEADLINE_S, check=True)
    assert json.loads(ended.stdout) == []


def test_a_prepared_process_becomes_the_next_switch() -> None:
    embedded.prepare()
    embedded.prepare()
    prepared = embedded._PREPARED._child
    assert prepared is not None
    with start_switch("127.0.0.1", options("native-udp")) as switch, start_switch("127.0.0.1", Options()) as another:
        assert switch.pid == prepared.process.pid != another.pid
        sessions = join_all(switch.address, "j", 2, options("native-udp"))
        reduce_together(sessions)
        for session in sessions:
            session.close()


def test_a_prepared_process_that_is_not_needed_ends() -> None:
    embedded.prepare()
    prepared = embedded._PREPARED._child
    assert prepared is not None
    embedded.discard()
    embedded.discard()
    until(lambda: not alive(prepared.process.pid))


def test_a_prepared_process_that_has_died_is_replaced() -> None:
    embedded.prepare()
    prepared = embedded._PREPARED._child
    assert prepared is not None
    prepared.process.kill()
    prepared.process.wait(DEADLINE_S)
    with start_switch("127.0.0.1", Options()) as switch:
        assert switch.pid != prepared.process.pid


def test_a_prepared_process_ends_with_a_parent_that_has_not_used_it() -> None:
    program = (
        "from fanin.host.session import embedded; embedded.prepare(); print(embedded._PREPARED._child.process.pid)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=DEADLINE_S, check=True)
    until(lambda: not alive(int(ended.stdout)))


def test_a_rank_with_many_files_open_starts_one() -> None:
    with many_files(), start_switch("127.0.0.1", Options(native=False)) as switch:
        assert switch.is_running


def test_a_child_that_reports_something_else_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    impostor, python = tmp_path / "python", sys.executable
    report = "int(sys.argv[-1])"
    for does, error in (
        (f"os.write({report}, b'hello\\n')", r"it reported b'hello"),
        (f"os.write({report}, b'[]\\n')", r"it reported b'\[\]"),
        ("sys.exit(3)", "it ended with status 3"),
        (f"os.close({report}); signal.pause()", "it closed its report and did not end"),
    ):
        impostor.write_text(f"#!{python} -S\nimport os, signal, sys\n{does}\n")
        impostor.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(impostor))
        with pytest.raises(SwitchUnreachableError, match=error):
            start_switch("127.0.0.1", Options())


def test_workers_options_in_the_environment_mean_nothing_to_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_SWITCH", "nonsense")
    monkeypatch.setenv("FANIN_NATIVE", "nonsense")
    with start_switch("127.0.0.1", Options(native=False)) as switch:
        assert "twin" in switch.description
        json.dumps(switch.description)
