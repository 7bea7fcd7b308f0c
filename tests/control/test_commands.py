"""The commands as a user runs them: what they print, and their exit status."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanin import __version__
from fanin.cli import run
from fanin.emulation.processes import free_port
from tests.support.processes import DEADLINE_S, SwitchProcess, a_switch, join_all, options, reduce_together
from tests.support.services import refusing_port

pytestmark = pytest.mark.processes


def fanin(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command; exit status, standard output, standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "fanin", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    """One switch that the commands look at."""
    with a_switch("native-udp", "--memory", "100", interpreter=True) as switch:
        yield switch


def test_a_switch_says_at_start_what_it_is(switch: SwitchProcess) -> None:
    for words in (
        f"fanin switch {__version__}",
        f"udp://127.0.0.1:{switch.port}",
        "pool: 100 MiB",
        "at most 32 workers",
        "native",
    ):
        assert words in switch.banner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_switch_ends_cleanly_when_told_to(number: signal.Signals) -> None:
    with a_switch("twin-udp", interpreter=True) as switch:
        assert switch.end(number) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bind", "nonsense"], "expected host:port"),
        (["--bind", "127.0.0.1:99999"], "expected host:port"),
        (["--bind", "no-such.invalid:0"], "no name or address of this machine"),
        (["--slots", "0"], "at least 1"),
        (["--slots", "1", "--memory", "1"], "give one of them"),
        (["--flows", "17"], "1..16"),
        (["--data", "tcp"], "must be udp, zmq or udp,zmq"),
        (["--liveness-timeout", "0"], "0.2..3600"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["switch", "--bind", "127.0.0.1:0", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert words in errors
    assert errors.count("\n") == 1
    assert output == ""


def one_line_error(outcome: tuple[int, str, str], words: str, expected: int = 1) -> None:
    status, _, errors = outcome
    assert status == expected
    assert re.search(words, errors), errors
    assert "Traceback" not in errors
    assert errors.count("\n") == 1


def test_a_port_clash_is_one_line(switch: SwitchProcess) -> None:
    one_line_error(fanin("switch", "--bind", f"127.0.0.1:{switch.port}"), f"TCP port {switch.port}.*cannot be had", 2)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EADDRINUSE, "`ss -lntup` shows that"),
        (errno.EADDRNOTAVAIL, "name an address of this machine"),
        (errno.EACCES, "choose a port from 1024 on"),
        (errno.EINVAL, "name the interface of a link-local address"),
    ],
)
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=lambda kind: kind.name)
def test_a_port_that_cannot_be_had_comes_with_the_remedy_for_its_reason(
    kind: socket.SocketKind,
    number: int,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Refused(socket.socket):
        def bind(self, address: object, /) -> None:
            if self.type is kind:
                raise OSError(number, os.strerror(number))
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Refused)
    assert run(["switch", "--twin", "--bind", "127.0.0.1:0", "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert os.strerror(number) in errors
    assert remedy in errors


def test_a_leaf_whose_parent_is_itself_or_another_leaf_ends_and_says_so(switch: SwitchProcess) -> None:
    port = free_port()
    one_line_error(
        fanin("switch", "--quiet", "--bind", f"127.0.0.1:{port}", "--parent", f"udp://127.0.0.1:{port}"),
        "is its own parent",
        2,
    )
    with a_switch("native-udp", "--parent", str(switch.address)) as leaf:
        one_line_error(
            fanin("switch", "--quiet", "--bind", "127.0.0.1:0", "--parent", str(leaf.address)),
            f"{leaf.address} is itself a leaf, of {switch.address}",
            2,
        )


def test_curve_keys_are_made_for_their_owner_only_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = []
    for _ in range(2):
        with a_switch("native-udp", "--curve-keys", str(path)) as switch:
            found = re.search(r"FANIN_CURVE_SERVER_KEY='(.{40})'", switch.banner + switch.rest())
            assert found
            keys.append(found[1])
            status, output, errors = fanin("stats", str(switch.address), "--json", FANIN_CURVE_SERVER_KEY=found[1])
            assert status == 0, errors
            assert json.loads(output)["curve"] is True
    assert keys[0] == keys[1]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{}")
    one_line_error(fanin("switch", "--bind", "127.0.0.1:0", "--curve-keys", str(path)), "no key file", 2)


def test_stats_show_jobs_members_and_counters(switch: SwitchProcess) -> None:
    sessions = join_all(switch.address, "on show", 2, options("native-udp"))
    reduce_together(sessions)
    status, output, errors = fanin("stats", str(switch.address), "--json")
    table = fanin("stats", str(switch.address))[1]
    for session in sessions:
        session.close()
    assert status == 0, errors
    (job,) = [job for job in json.loads(output)["jobs"] if job["name"] == "on show"]
    assert job["state"] == "running"
    assert [member["state"] for member in job["members"]] == ["registered"] * 2
    assert job["counters"]["rounds"] > 0
    assert "on show" in table
    assert "2 of 2" in table


@pytest.mark.parametrize(
    "arguments", [["stats", "--watch"], ["stats", "--watch", "--json"], ["top", "--interval", "0.1"]], ids=" ".join
)
def test_views_come_one_by_one_until_their_reader_is_gone(arguments: list[str], switch: SwitchProcess) -> None:
    command = [sys.executable, "-m", "fanin", arguments[0], str(switch.address), *arguments[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert __version__.encode() in process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 141
        assert process.stderr.read() == b""


def test_tune_says_what_a_job_has_for_people_and_for_programs(switch: SwitchProcess) -> None:
    sessions = join_all(switch.address, "tuned", 2, options("native-udp"))
    tuned, _, errors = fanin("tune", str(switch.address), "tuned", "--quorum", "1")
    status, output, _ = fanin("tune", str(switch.address), "tuned", "--json")
    for session in sessions:
        session.close()
    assert (tuned, status) == (0, 0), errors
    assert "no effect while the staleness bound is 0" in errors
    assert json.loads(output) == {"job": "tuned", "quorum": 1, "staleness": 0, "max_staleness": 0}


def test_stats_of_several_switches_show_those_that_answer_and_name_those_that_do_not(switch: SwitchProcess) -> None:
    for form in ((), ("--json",)):
        with refusing_port() as port:
            dead = f"udp://127.0.0.1:{port}"
            status, output, errors = fanin("stats", f"{dead},{switch.address}", *form)
        assert status == 1
        assert errors.startswith("fanin: ")
        assert f"{dead.removeprefix('udp://')}" in errors
        assert errors.count("\n") == 1
        assert __version__ in output
        assert dead not in output


def test_stats_and_doctor_of_a_switch_that_is_not_there_say_so() -> None:
    with refusing_port() as port:
        one_line_error(fanin("stats", f"udp://127.0.0.1:{port}"), "connection refused")
        status, output, _ = fanin("doctor", f"udp://127.0.0.1:{port}")
    assert status == 1
    assert "remedy: start `fanin switch` there" in output


def test_doctor_looks_at_every_switch_that_is_named(switch: SwitchProcess) -> None:
    with refusing_port() as port:
        status, output, _ = fanin("doctor", FANIN_SWITCH=f"{switch.address},udp://127.0.0.1:{port}=2")
    assert status == 1
    assert f"switch: {switch.address}, of 2" in output
    assert "answers packets of up to " in output
    assert "remedy: start `fanin switch` there" in output


def test_doctor_tries_a_switch_where_ranks_start_their_own() -> None:
    status, output, errors = fanin("doctor", FANIN_SWITCH="hosts=2")
    assert status == 0, output + errors
    assert "ranks start them themselves (hosts); started one to try" in output


def test_doctor_finds_a_healthy_switch_healthy(switch: SwitchProcess) -> None:
    for scheme in ("udp", "zmq"):
        status, output, errors = fanin("doctor", f"{scheme}://127.0.0.1:{switch.port}", "--json")
        assert status == 0, output + errors
        found = json.loads(output)
        assert found["healthy"] is True
        names = [check["name"] for check in found["checks"]]
        assert {"python", "engine", "offload", "buffers", "name", "tcp", "control", "versions", "jobs"} - set(
            names
        ) == {
            "control"  # only reported when something is wrong with it
        }
        assert f"udp port {switch.port}" in names


def test_doctor_without_a_switch_tries_one_of_its_own() -> None:
    status, output, errors = fanin("doctor", FANIN_NATIVE="0")
    assert status == 0, output + errors
    assert "started one to try" in output
    assert "Python twin: FANIN_NATIVE=0" in output
    assert "everything that was checked works" in output
