"""Hostile users, files and machines: every command ends with one line, the promised status, and no traceback.

Commands and their options are found in the application, so that a new one is under these tests by itself. A call that
would start something (a process, a switch, a run) ends the test instead: it has then passed all checks of its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
import zmq
from typer.core import TyperGroup

from fanin import cli
from fanin.cli import ending
from fanin.cli.ending import BUG, DONE, FAILED, INTERRUPTED, PROMISED, READER_GONE, USAGE
from fanin.errors import ConfigurationError, FaninError, SwitchUnreachableError
from tests.support.frames import in_module
from tests.support.repository import ROOT

HUGE = 10**30
NUMBERS = ("-1", str(HUGE), "x", "", "1e400", "nan")
FLOATS = ("-1", "1e400", "inf", "nan", "x", "")
TEXTS = ("", " ", ",", ":", "::1:5", "[", "-1", "\udcff", "ü", "9" * 5000, "a" * 5000, "%s%n", "x\ny")
REQUIRED = {
    "emulate": ["--", "python", "train.py"],
    "controller": ["--p4runtime", "127.0.0.1:1", "--switch-address", "127.0.0.1:1"],
    "conformance": ["udp://127.0.0.1:1"],
    "deploy": ["fanin.conf", "--p4info", "fanin.txtpb", "--switch-address", "127.0.0.1:1"],
    "stats": ["udp://127.0.0.1:1"],
    "tune": ["udp://127.0.0.1:1", "job"],
    "doctor": ["udp://127.0.0.1:1"],
    "report": ["record.json"],
    "trace": ["00"],
}
"""Without which a command looks no further."""


class StartedError(BaseException):
    """Something would have been started now: all that was given is legal."""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


APPLICATION = typer.main.get_command(cli.app)
"""Made once: making it takes longer than most of these tests."""
COMMANDS = dict(commands(APPLICATION))
OPTIONS = [
    (path, parameter)
    for path, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and not parameter.hidden and not parameter.is_flag
]


def kind_of(parameter: Any) -> str:
    """`int`, `float`, `path` or `text`."""
    name = str(parameter.type_descriptor.annotation)
    for word, kind in (("Path", "path"), ("int", "int"), ("float", "float")):
        if word in name:
            return kind
    return "text"


def label(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else getattr(value, "name", "")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prepare output as `ending.prepare` does: standard output replaces characters that it cannot encode."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]

    def start(*_: object, **__: object) -> None:
        raise StartedError

    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("FANIN_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(cli, "app", APPLICATION)
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(os, "fork", start)
    for target in (
        "fanin.switch.service.service.SwitchService.__init__",
        "fanin.switch.p4runtime.standalone.StandaloneSwitch.__init__",
        "fanin.switch.p4runtime.controller.reader.DeviceReader._call",
        "fanin.emulation.simulator.simulation.Simulation.run",
        "fanin.emulation.simulator.search.search",
        "fanin.emulation.simulator.canary.hunt",
        "fanin.emulation.simulator.scale.table",
        "fanin.emulation.network.fabric.Fabric.__enter__",
        "fanin.emulation.network.emulate.emulate",
        "fanin.host.session.control.ControlClient.__init__",
        "fanin.host.diagnosis.examine_switch",
        "fanin.benchmarks.staleness.bench",
    ):
        monkeypatch.setattr(target, start)


def end(*arguments: str) -> int | None:
    """The status; None where something would have started."""
    with contextlib.suppress(StartedError):
        return cli.run(arguments)
    return None


@pytest.fixture(autouse=True)
def a_start_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = ending.explain

    def explained(error: BaseException) -> tuple[int, str]:
        if isinstance(error, StartedError):
            raise error
        return explain(error)

    monkeypatch.setattr(ending, "explain", explained)


def one_line(status: int | None, errors: str, expected: tuple[int | None, ...]) -> None:
    assert "Traceback" not in errors, errors
    assert status in expected, (status, errors)
    if status not in (None, DONE, READER_GONE):
        assert errors.startswith("fanin: ") or errors.count("\n") <= 1, errors
        assert errors.count("\n") == 1, errors


@pytest.mark.parametrize(("path", "parameter"), [each for each in OPTIONS if kind_of(each[1]) != "path"], ids=label)
def test_no_value_of_any_option_is_a_traceback_and_every_number_has_bounds(
    path: tuple[str, ...], parameter: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = kind_of(parameter)
    for value in {"int": NUMBERS, "float": FLOATS, "text": TEXTS}[kind]:
        rest = REQUIRED.get(path[-1], [])
        before, after = (rest, []) if "--" not in rest else ([], rest)
        status = end(*path, *before, f"{parameter.opts[0]}={value}", *after)
        legal = (USAGE,) if kind != "text" else (USAGE, FAILED, DONE, None)
        one_line(status, capsys.readouterr().err, legal)


def hostile_files(folder: Path) -> dict[str, Path]:
    """By what is wrong with them."""
    made: dict[str, bytes] = {
        "empty": b"",
        "binary": bytes(range(256)) * 16,
        "nested": b"[" * 100_000,
        "nested_tables": b"a = " + b"[" * 100_000,
        "nested_object": b'{"version":' * 50_000,
        "not_utf8": b'{"version": "\xff"}',
        "not_finite": b'{"version": NaN}',
        "too_large": b'{"version": 1e400}',
        "digits": b'{"version": ' + b"9" * 10_000 + b"}",
        "text_version": b'{"version": "1"}',
        "boolean_version": b'{"version": true}',
        "list": b"[1, 2]",
        "toml_types": b'workers = "two"\nlinks = 3\njob = 4\n',
    }
    paths = {}
    for name, data in made.items():
        paths[name] = folder / f"{name}.toml"
        paths[name].write_bytes(data)
    return paths | {
        "missing": folder / "missing" / "file.json",
        "folder": folder,
        "memory": Path("/proc/self/mem"),  # opens, and cannot be read
        "bytes": folder / os.fsdecode(b"\xff\n"),
        "long": folder / ("x" * 5000),
    }


def take_files() -> list[tuple[tuple[str, ...], Callable[[str], str]]]:
    """Every place of a command line where a file or a folder may stand."""
    places: list[tuple[tuple[str, ...], Callable[[str], str]]] = []
    for path, parameter in OPTIONS:
        if kind_of(parameter) == "path" or parameter.name == "scenario":
            places.append(((*path, parameter.opts[0]), partial("{}={}".format, parameter.opts[0])))
    places.append((("report",), str))
    return places


@pytest.mark.parametrize(("place", "arguments"), take_files(), ids=label)
def test_no_file_that_is_given_to_any_command_is_a_traceback(
    place: tuple[str, ...],
    arguments: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tuple(word for word in place if not word.startswith("--"))
    rest = [] if place == ("report",) else REQUIRED.get(path[-1], [])
    before, after = (rest, []) if "--" not in rest else ([], rest)
    more = {"--tls-key": ["--tls-certificate=x"], "--tls-ca": ["--tls-key=x", "--tls-certificate=x"]}.get(place[-1], [])
    if place[-1].startswith("--tls") and path == ("switch",):
        more += ["--target=p4", "--p4runtime=127.0.0.1:0", "--bind=127.0.0.1:0"]
    for what, file in hostile_files(tmp_path).items():
        status = end(*path, *before, arguments(str(file)), *more, *after)
        errors = capsys.readouterr().err
        assert status != BUG, (what, errors)
        one_line(status, errors, (USAGE, FAILED, DONE, None))


@pytest.mark.parametrize(
    "option",
    [
        ["--memory", "64"],
        ["--slots", "64"],
        ["--curve-keys", "keys"],
        ["--curve-clients", "clients"],
        ["--key-file", "key"],
        ["--source-share", "0.5"],
        ["--liveness-timeout", "10.0"],
        ["--parent", "udp://127.0.0.1:1"],
        ["--metrics", ":9"],
    ],
    ids=" ".join,
)
def test_a_device_takes_no_option_of_the_controller_that_it_leaves_the_jobs_to(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = end("switch", "--target", "p4", "--p4runtime", "127.0.0.1:0", "--bind", "127.0.0.1:0", *option)
    errors = capsys.readouterr().err
    one_line(status, errors, (USAGE,))
    assert f"{' '.join(option)} has no effect with --p4runtime" in errors
    assert "Remedy: give it to `fanin controller`" in errors


def test_an_option_that_says_what_is_so_anyway_is_taken() -> None:
    assert end("switch", "--target", "p4", "--flows", "1", "--data", "udp", "--no-shared-memory") is None
    assert end("switch", "--parent", "udp://127.0.0.1:1", "--data", "udp") is None


def test_a_record_of_a_version_that_is_a_text_is_not_called_one_of_this_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end("report", str(hostile_files(tmp_path)["text_version"])) == USAGE
    assert "record.version = '1'; expected a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["stats"], {"FANIN_SWITCH": "udp://::1:5111"}, "in brackets, as in udp://[::1]:5111"),
        (["switch", "--bind", "::1:5111"], {}, "in brackets, as in [::1]:5111"),
        (["switch", "--target", "p4", "--flows", "8"], {}, "one flow"),
        (["switch", "--target", "p4", "--data", "zmq"], {}, "--data zmq has no effect with --target p4"),
        (["switch", "--target", "p4", "--data", "udp,zmq"], {}, "--data udp,zmq has no effect"),
        (["switch", "--target", "p4", "--shared-memory"], {}, "--shared-memory has no effect"),
        (["switch", "--target", "p4", "--twin"], {}, "--twin has no effect"),
        (["switch", "--data", "zmq", "--flows", "2"], {}, "--flows 2 has no effect with --data"),
        (["switch", "--parent", "udp://127.0.0.1:1", "--data", "zmq"], {}, "--data zmq has no effect with --parent"),
        (["switch", "--target", "native"], {}, "no target. Remedy: software or p4"),
        (["switch", "--device-id", "7"], {}, "--device-id: not without --p4runtime. Remedy: "),
        (["switch", "--memory", "99999999"], {}, "this machine, or the container"),
        (["switch", "--slots", str(HUGE)], {}, "this machine, or the container"),
        (["bench", "fairness", "--seconds", "0"], {}, "--seconds"),
        (["bench", "staleness", "--rate", "0mbit"], {}, "100kbit"),
        (["simulate", "--seed", "-1"], {}, "--seed"),
        (["simulate", "--pcap", "/dev/full"], {}, "/dev/full' cannot be written: No space left"),
        (["p4", "run", "--port", "1"], {}, "NUMBER=INTERFACE"),
        (["p4", "run", "--port", "510=veth0"], {}, "not --cpu-port's"),
        (["p4", "run", "--trace", "--native"], {}, "cannot be watched"),
        (["p4", "trace", "00"], {}, "--program or --p4runtime"),
        (["stats"], {"FANIN_LANES": "5"}, "lanes = 5"),
        (["doctor"], {"FANIN_FAULTS": "drop=2"}, "0..1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_was_once_taken_or_misnamed_is_refused_in_words(
    arguments: list[str],
    environment: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status = end(*arguments)
    output, errors = capsys.readouterr()
    one_line(status, errors, (USAGE,))
    assert said in errors
    assert output == ""


# --- how it ends, whatever it was ---


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigurationError("illegal"), USAGE, "illegal"),
        (SwitchUnreachableError("udp://a:1", "nobody there"), FAILED, "nobody there"),
        (FaninError("two\nlines"), FAILED, "two; lines"),
        (OSError(28, "No space left on device", "/tmp/x"), FAILED, "/tmp/x: No space left on device. Remedy: free"),
        (OSError(24, "Too many open files"), FAILED, "ulimit -n"),
        (PermissionError(13, "Permission denied", b"/srv/\xff"), FAILED, "Permission denied. Remedy: "),
        (zmq.ZMQError(98), FAILED, "in use. Remedy: stop what uses it"),
        (MemoryError(), FAILED, "out of memory"),
        (UnicodeEncodeError("latin-1", "a\u2026", 1, 2, "no"), FAILED, "in latin-1. Remedy: use a UTF-8 locale"),
        (KeyboardInterrupt(), INTERRUPTED, "fanin: interrupted\n"),
        (KeyboardInterrupt("3 were run"), INTERRUPTED, "fanin: interrupted: 3 were run\n"),
        (ModuleNotFoundError("no torch", name="torch.distributed"), USAGE, "pip install 'fanin[torch]'"),
        (ending.ReaderGoneError(), READER_GONE, ""),
        (BrokenPipeError(32, "Broken pipe", "/tmp/fifo"), FAILED, "/tmp/fifo: Broken pipe. Remedy: let its reader"),
        (SystemExit(1), FAILED, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_end_has_its_status_and_at_most_one_line(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert ending.run(fail) == status
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == bool(said)


def test_a_thread_that_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @in_module("threading")
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("in whatever words")

    with monkeypatch.context() as patch:
        patch.setattr(
            threading, "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread", refuse
        )
        assert ending.run(lambda: threading.Thread(target=print).start()) == FAILED
    assert "no further thread can be started. Remedy: raise `ulimit -u`" in capsys.readouterr().err


def test_a_bug_of_ours_is_a_traceback_with_a_status_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending.run(lambda: [][0]) == BUG
    errors = capsys.readouterr().err
    assert "IndexError" in errors
    assert errors.splitlines()[-1].startswith("fanin: this is a bug")


def test_help_and_documentation_promise_the_same_statuses() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for status in PROMISED:
        assert f"\n| {status} | " in page
    for path, command in COMMANDS.items():
        for status, meaning in PROMISED.items():
            assert f"{status}: {meaning}" in command.epilog, path


SURROUNDINGS = """
import contextlib, gc, io, json, os, sys
import fanin.__main__, fanin.cli, typer.rich_utils
asked = json.loads(sys.argv[1])
for command, _ in asked:
    with contextlib.redirect_stdout(io.StringIO()):  # imports, for all forks
        fanin.cli.run([*command, "--help"])
gc.freeze()
def surround(kind):
    if kind == "full": os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    if kind == "gone":
        reader, writer = os.pipe(); os.dup2(writer, 1); os.close(reader); os.close(writer)
    if kind in ("closed", "nothing"): os.close(1); sys.stdout = None
    if kind in ("no input", "nothing"): os.close(0); sys.stdin = None
    if kind == "nothing": os.close(2); sys.stderr = None
    if kind == "latin-1": sys.stdout.reconfigure(encoding="latin-1", errors="strict")
    if kind == "narrow": os.environ["COLUMNS"] = "40"
for command, kinds in asked:
    for kind in kinds:
        sys.stdout.flush()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1); os.dup2(writer, 2)
            for each in (null, reader, writer): os.close(each)
            surround(kind)
            sys.argv = ["fanin", *command]
            try:
                fanin.__main__.main()
            except SystemExit as end:
                if sys.stdout is not None: sys.stdout.flush()
                os._exit(end.code or 0)
            os._exit(99)
        os.close(writer)
        with open(reader) as errors: said = errors.read()
        print(json.dumps([command, kind, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]))
"""
"""`fanin` with other standard streams, many times in one process that has imported everything."""
EXPECTED = {
    "full": (FAILED, "standard output: No space left on device"),
    "closed": (FAILED, "standard output: Bad file descriptor"),
    "gone": (READER_GONE, ""),
    "no input": (DONE, ""),
    "nothing": (FAILED, ""),
    "latin-1": (DONE, ""),
    "narrow": (DONE, ""),
}


@pytest.mark.processes
def test_no_command_loses_its_result_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked: list[tuple[list[str], list[str]]] = [
        (["--help"], list(EXPECTED)),
        (["simulate", "--python", "--events"], list(EXPECTED)),
        *(([*path, "--help"], ["full", "gone"]) for path in COMMANDS),
    ]
    done = subprocess.run(
        [sys.executable, "-c", SURROUNDINGS, json.dumps(asked)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == sum(len(kinds) for _, kinds in asked), done.stderr
    for command, kind, status, said in told:
        expected, words = EXPECTED[kind]
        assert status == expected, (command, kind, status, said)
        assert words in said, (command, kind, said)
        assert said.count("\n") == bool(words), (command, kind, said)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("shell", "status", "said"),
    [
        ("ulimit -n 24; exec {fanin} switch --bind 127.0.0.1:0", USAGE, "ulimit -n"),
        ("ulimit -Sn 24; exec {fanin} simulate --python", DONE, ""),
        ("exec env -i {fanin} simulate --python", DONE, ""),
        ("exec env -i LC_ALL=C PYTHONIOENCODING=ascii NO_COLOR=1 COLUMNS=80 {fanin} simulate --python", DONE, ""),
        *(
            (f"set -o pipefail; {size} {{fanin}} --help | grep 'Usage: fanin'", DONE, "")
            for size in ("COLUMNS=0", "COLUMNS=\u00b2 LINES=0", "TERMINAL_WIDTH=-1")
        ),
        ("exec {python} examples/minimal.py --help", DONE, ""),
        (
            "exec env CXX=no-such-compiler CC=no-such-compiler {python} setup.py build_ext",
            1,
            "install a C++20 compiler",
        ),
    ],
    ids=lambda value: value.partition("{")[0] + value.rpartition("}")[2] if isinstance(value, str) else "",
)
def test_a_poor_machine_is_told_what_it_lacks(
    shell: str, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    command = shell.format(fanin=f"{sys.executable} -m fanin", python=sys.executable)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert bool(said) == bool(done.stderr)
    assert status != DONE or done.stdout
