"""Programs of fanin's as forks of a process that has imported them, with the interface of subprocess.Popen.

An interpreter that imports a command takes most of a second of processor time, and one that imports torch four; a fork
takes next to none. `Forked` and the functions `fork_...` are for tests. The rest of this file runs in the fork: it
takes its standard streams, session and network, says that it has, and becomes the module.

Tests of how a command starts, and of what a shell sees of it, start interpreters.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

import pytest

from fanin.emulation.fork_server import Fork
from fanin.modules import WITHOUT_FOLDER, running
from tests.support.rank_server import ROOT, RankServer, become, import_before_forking, leave, serve

OWN = "tests.support.forks"
PRELOADED = (
    "typer._adapters", "rich.console", "fanin.cli.switch", "fanin.switch.service.service", "fanin.host.session.session",
    "fanin.emulation.network.stats_sampler", "fanin._native", "numpy", "zmq",
)  # fmt: skip
"""Modules of switches, and of ranks without torch."""
NEW_NETWORK, NEW_MOUNTS = 0x4000_0000, 0x0002_0000  # linux/sched.h
RECURSIVE, SLAVE, DETACH = 0x4000, 1 << 19, 2  # linux/mount.h


class LightServer(RankServer):
    """A server whose forks have not imported torch."""

    PROGRAM = OWN
    _one = None


class Forked(Fork):
    """`python -m MODULE ARGUMENT...` in a fork of that server. Its output is a pipe, unless a file is given."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        server: type[RankServer] = RankServer,
        environment: Mapping[str, str] | None = None,
        asked: bool = False,
        output: IO[bytes] | None = None,
        errors: IO[bytes] | int = 2,
        namespace: str | None = None,
        session: bool = False,
    ) -> None:
        """`asked`: whether its input is a pipe, too; `errors`: a file, its number or subprocess.STDOUT; `namespace`: a
        network's name; `session`: whether it begins one."""
        forking = server.get()
        with ExitStack() as theirs:
            read, write = zip(*(os.pipe() for _ in range(3)), strict=True)
            for end in (write[0], read[1], read[2], write[2]):
                theirs.callback(os.close, end)
            number = errors if isinstance(errors, int) else errors.fileno()
            said = write[0] if output is None else output.fileno()
            streams = (said, said if number == subprocess.STDOUT else number, write[2])
            own = f"/proc/{os.getpid()}/fd"
            facts = {
                "streams": [f"{own}/{read[1]}" if asked else os.devnull, *(f"{own}/{each}" for each in streams)],
                "namespace": namespace,
                "session": session,
            }
            pid = forking.fork(
                command,
                os.environ if environment is None else environment,
                Path.cwd(),
                os.devnull,
                torn_down=False,
                through=[OWN, json.dumps(facts)],
            )
            super().__init__(pid, forking.status_of)
            select.select([read[2], self._end], [], [])  # until it has them: then they are closed here
        self.stdout = os.fdopen(read[0], "rb", 0)
        self.stdin = os.fdopen(write[1], "wb", 0)
        if not asked:
            self.stdin.close()
        if output is not None:
            self.stdout.close()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        """Everything that it prints until it ends."""
        self.stdin.close()
        output = self.stdout.read()
        self.wait(timeout)
        return output, None


def fork_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks of jobs (fanin.emulation.processes) be forks of the server that has imported torch."""

    def start(command: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes], **rest: Any) -> Any:
        words, namespace = list(command), None
        more: dict[str, str] = {}
        if words[:3] == ["ip", "netns", "exec"]:
            namespace = words[3]
            del words[:4]
        if words[0] == "env":
            words, more = _without_variables(words)
        at = words.index("fanin.emulation.parent_death") + 1  # whoever asked for it is not the parent of a fork
        assert words[at] != "--", "a program is no module"
        assert rest["start_new_session"]
        return Forked(words[at:], environment={**env, **more}, errors=stderr, namespace=namespace, session=True)

    monkeypatch.setattr("fanin.emulation.processes.subprocess", _with(start))
    for module in ("fanin.examples.demo", "fanin.examples.parallel.gallery"):
        monkeypatch.setattr(f"{module}.ForkServer", NoServer)


def _without_variables(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command behind `env NAME=VALUE...`, and these variables."""
    count = next(at for at, word in enumerate(words[1:]) if "=" not in word)
    pairs = (word.partition("=") for word in words[1 : 1 + count])
    return list(words[1 + count :]), {name: value for name, _, value in pairs}


def fork_advisers(monkeypatch: pytest.MonkeyPatch, output: IO[bytes]) -> None:
    """Have ranks that `fanin advise` starts in namespaces be forks of that server; rank 0 prints into `output`."""

    def start(command: Sequence[str], *, stdin: int, stdout: int | None, **_: Any) -> Forked:
        assert command[:3] == ["ip", "netns", "exec"]
        assert stdin == subprocess.PIPE
        words, more = _without_variables(command[4:])
        assert words[:3] == running("fanin")[:3]
        with open(os.devnull, "wb") as nothing:
            return Forked(
                words[3:], environment={**os.environ, **more}, asked=True, output=output if stdout is None else nothing,
                namespace=command[3],
            )  # fmt: skip

    monkeypatch.setattr("fanin.cli.advise.subprocess", _with(start))


class NoServer(nullcontext[None]):
    """In the place of a job's own server of forks: the ranks are those of the tests' server."""

    def __init__(self, *_: str) -> None:
        super().__init__(None)


def fork_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have switches of emulated clusters, and who asks them for statistics, be forks in their namespaces."""

    def start(command: Sequence[str], *, stdout: IO[bytes], stderr: Any, **rest: Any) -> Any:
        if command[:3] != ["ip", "netns", "exec"] or command[5:7] != ["-c", WITHOUT_FOLDER]:
            return subprocess.Popen(command, stdout=stdout, stderr=stderr, **rest)
        assert rest["start_new_session"]
        with open(os.devnull, "wb") as nothing:
            errors = nothing if stderr == subprocess.DEVNULL else stderr
            return Forked(
                command[7:], server=LightServer, environment=rest.get("env"), output=stdout, errors=errors,
                namespace=command[3], session=True,
            )  # fmt: skip

    for module in ("emulate", "switch_process"):
        monkeypatch.setattr(f"fanin.emulation.network.{module}.subprocess", _with(start))


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers of emulated clusters that run a file of the tests without torchrun be forks, in their namespaces, of
    the server that has imported torch."""

    def start(command: Sequence[str], *, env: Mapping[str, str], stderr: IO[bytes], **rest: Any) -> Any:
        if command[4:6] != ["env", sys.executable] or not Path(command[6]).is_relative_to(ROOT / "tests"):
            return subprocess.Popen(command, env=env, stderr=stderr, **rest)
        assert command[:3] == ["ip", "netns", "exec"]
        assert rest["start_new_session"]
        module = ".".join(Path(command[6]).relative_to(ROOT).with_suffix("").parts)
        return Forked([module, *command[7:]], environment=env, errors=stderr, namespace=command[3], session=True)

    monkeypatch.setattr("fanin.emulation.network.launch.subprocess", _with(start))


def _with(start: Callable[..., Any]) -> SimpleNamespace:
    """The module subprocess as those modules use it, with another Popen."""
    names = ("DEVNULL", "PIPE", "TimeoutExpired")
    return SimpleNamespace(Popen=start, **{name: getattr(subprocess, name) for name in names})


def become_program(facts: Mapping[str, Any], command: Sequence[str]) -> NoReturn:
    """Run in the fork: have what it was given, then be the module."""
    if facts["session"]:
        os.setsid()
    for number, (path, mode) in enumerate(
        zip(facts["streams"], (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND), strict=False)
    ):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    if facts["namespace"] is not None:
        enter(facts["namespace"])
    told = os.open(facts["streams"][3], os.O_WRONLY)
    os.write(told, b".")
    os.close(told)
    sys.argv = list(command)
    status: object = 0
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
    leave(status if isinstance(status, int) else int(status is not None))


def enter(namespace: str) -> None:
    """Be in that network, with its devices in /sys, as `ip netns exec` has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    opened = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    failed = (
        libc.setns(opened, NEW_NETWORK)
        or libc.unshare(NEW_MOUNTS)
        or libc.mount(b"", b"/", b"none", ctypes.c_ulong(SLAVE | RECURSIVE), None)
        or libc.umount2(b"/sys", DETACH)
        or libc.mount(namespace.encode(), b"/sys", b"sysfs", ctypes.c_ulong(0), None)
    )
    os.close(opened)
    if failed:
        raise OSError(ctypes.get_errno(), f"entering the namespace {namespace}")


def main() -> None:
    """Be a fork's beginning where arguments say what it is; otherwise import, serve, and be one when forked."""
    if len(sys.argv) > 1:
        become_program(json.loads(sys.argv[1]), sys.argv[2:])
    import_before_forking(PRELOADED)
    request = serve()
    if request is not None:
        become(request)
        become_program(json.loads(sys.argv[1]), sys.argv[2:])


if __name__ == "__main__":
    main()
