"""`fanin advise`: measures a cluster between its own ranks, and says which settings suit it, or to stay with gloo."""

from __future__ import annotations

import contextlib
import dataclasses
import json as json_module
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from fanin.cli import modes
from fanin.cli.extras import require
from fanin.cli.fields import described
from fanin.cli.output import JsonObject
from fanin.errors import ConfigurationError, FaninError
from fanin.files import in_words, mute
from fanin.modules import running
from fanin.settings import fields_of

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MASTER_PORT = 29_500
LAUNCH_TIMEOUT_S = 1800.0
LOST_GRACE_S = 20.0
"""Longest wait for the other ranks to notice that one has failed."""
STOP_GRACE_S = 3.0
"""Time from asking a rank to end until it is killed: enough to end its programs and remove its files."""
UNREACHED = 255
"""Status of ssh for a host that it cannot reach."""
NOT_STARTED = (126, 127)
"""Statuses of a shell, and of env(1), for a command that is not there or cannot be executed."""
LAUNCHED = b"fanin advise --hosts\n"
"""The first line that a rank of --hosts reads, unless its runner keeps standard input from it."""


def made() -> Callable[..., None]:
    """The command's function, with help, bounds and defaults of its Plan."""
    from fanin.advice.advice_plan import Plan

    return described(Plan, "program", "switches", "lanes", "bytes", "measures")(advise)


def advise(
    context: typer.Context,
    *,
    program: Annotated[list[str], typer.Argument(metavar="[-- COMMAND...]")],
    hosts: Annotated[
        str, typer.Option(metavar="A,B,...", help="Start a rank on each, instead of under torchrun.")
    ] = "",
    via: Annotated[str, typer.Option(help="Program that runs a command on a host: VIA HOST COMMAND...")] = "ssh",
    master: Annotated[
        str, typer.Option(metavar="ADDRESS", help="With --hosts: the first one's. Default: its name.")
    ] = "",
    master_port: Annotated[int, typer.Option(min=1, max=65_535, help="With --hosts: a free port of it.")] = MASTER_PORT,
    switches: Annotated[str, typer.Option("--switch", metavar="ADDRESS,...")],
    lanes: Annotated[str, typer.Option()],
    bytes: Annotated[int, typer.Option(metavar="NUMBER")],
    measures: Annotated[bool, typer.Option("--measure/--no-measure")],
    json: JsonObject = False,
    launched: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure links, predict a step per placement and lane width, measure the best two, and recommend settings.

    Start it on every rank, as training is: torchrun ... --no-python fanin advise; or once, with --hosts.
    """
    if program:
        modes.refuse_with(context, "a command, whose gradients count", "bytes")
    require("torch", "fanin advise")
    if hosts:
        own = sys.argv[1:] if sys.argv[1:2] == ["advise"] else ["advise"]
        raise typer.Exit(_launch(hosts, via, master, master_port, own))
    modes.refuse_without(context, "--hosts", "via", "master", "master_port")
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise ConfigurationError(
            f"{', '.join(missing)} are not set: ranks are started by torchrun or by --hosts. Remedy: torchrun --nnodes "
            "N ... --no-python fanin advise, or fanin advise --hosts A,B"
        )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # inside a collective nothing of ours would be called
    if launched:
        threading.Thread(target=_end_with_launcher, name="fanin launcher", daemon=True).start()
    from rich.console import Console

    from fanin.advice.advice_plan import Plan
    from fanin.advice.advising import advise as find
    from fanin.advice.printed import report

    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    texts = {"lanes": lanes, "bytes": bytes, "switches": switches, "measures": measures}
    names = tuple(launched.split(",")) if launched else ()
    plan = Plan(program=tuple(program), names=names, **fields_of(Plan, texts))
    advice = find(plan, lambda text: errors.print(text))
    if advice is None:
        return
    if json:
        print(json_module.dumps(dataclasses.asdict(advice), indent=2))
    else:
        report(advice, Console(highlight=False, soft_wrap=True))


def _launch(hosts: str, via: str, master: str, port: int, own: list[str]) -> int:
    """Run a rank on each host, wait for all, and return the exit status."""
    names = [each.strip() for each in hosts.split(",")]
    if not all(names) or len(set(names)) < len(names) or len(names) < 2:
        raise ConfigurationError(
            f"--hosts {hosts!r}: expected two or more different names, with commas between them", "--hosts"
        )
    runner = shlex.split(via)
    if not runner:
        raise ConfigurationError("--via is empty: expected a command, such as ssh", "--via")
    arguments = ["advise", "--launched", ",".join(names), *without_hosts(own)[1:]]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, host in enumerate(names):
            variables = {
                "RANK": rank, "WORLD_SIZE": len(names), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
                "MASTER_ADDR": master or names[0], "MASTER_PORT": port, "FANIN_HOST": host,
                "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # else stacks for each attempt
            }  # fmt: skip
            passed = {name: text for name, text in os.environ.items() if name.startswith(("FANIN_", "GLOO_"))}
            line = ["env", *(f"{name}={value}" for name, value in {**passed, **variables}.items())]
            line += running("fanin", *arguments)
            if os.path.basename(runner[0]) == "ssh":  # it joins its arguments, and a shell there splits them again
                line = [shlex.quote(each) for each in line]
            try:
                started = subprocess.Popen(
                    [*runner, host, *line],
                    stdin=subprocess.PIPE,
                    stdout=None if rank == 0 else subprocess.DEVNULL,
                    bufsize=0,
                )
            except OSError as error:
                raise ConfigurationError(f"--via {via}: {in_words(error)}") from None
            processes.append(started)
            assert started.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended already, and says why
                started.stdin.write(LAUNCHED)
        status = _wait(processes, names)
        _explain([each.returncode for each in processes], names, runner)
        return status
    finally:
        _end(processes)


def _explain(statuses: Sequence[int | None], names: Sequence[str], runner: Sequence[str]) -> None:
    """Raise FaninError for hosts whose rank never began; a rank that began has printed its own error."""
    for reason, of_these, remedy in (
        (
            f"{runner[0]} could not reach",
            (UNREACHED,),
            f"`{shlex.join(runner)} HOST true` is to work without a question for each",
        ),
        ("no command of fanin's could be started on", NOT_STARTED, "install fanin at the same path on all hosts"),
    ):
        told = [name for name, status in zip(names, statuses, strict=True) if status in of_these]
        if told:
            local = "torchrun --nproc-per-node 4 --no-python fanin advise tries one machine without --hosts"
            raise FaninError(f"{reason} {', '.join(told)}. Remedy: {remedy}; {local}")


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End ranks that still run: closing standard input ends one on another host, where killing ends only its runner."""
    for each in processes:
        if each.stdin is not None:
            each.stdin.close()
    deadline = time.monotonic() + STOP_GRACE_S
    for each in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.wait(max(0.0, deadline - time.monotonic()))
        if each.poll() is None:
            each.kill()
        each.wait()


def _end_with_launcher() -> None:
    """End this rank when its standard input closes, which it does however the launcher ends."""
    line = b""
    while not line.endswith(b"\n") and (piece := os.read(0, 1)):  # sys.stdin would be locked when this process ends
        line += piece
    if line != LAUNCHED:
        return
    while os.read(0, 4096):
        pass
    mute(2)  # the launcher has printed the reason
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(STOP_GRACE_S / 2)  # inside a collective Python handles no signal
    os.kill(os.getpid(), signal.SIGKILL)


def _wait(processes: list[subprocess.Popen[bytes]], names: list[str]) -> int:
    end = time.monotonic() + LAUNCH_TIMEOUT_S
    while any(each.poll() is None for each in processes):
        failed = [name for name, each in zip(names, processes, strict=True) if each.poll() not in (None, 0)]
        if failed:
            end = min(end, time.monotonic() + LOST_GRACE_S)
        if time.monotonic() > end:
            who = f"{', '.join(failed)} failed" if failed else f"not done after {LAUNCH_TIMEOUT_S:g} s"
            raise FaninError(f"{who}. Remedy: see what was printed above; fanin is to be installed alike there")
        time.sleep(0.1)
    return max(abs(each.returncode) for each in processes) and 1


def without_hosts(own: list[str]) -> list[str]:
    """Return a command line without the options that are for the launcher alone."""
    names = ("--hosts", "--via", "--master", "--master-port")
    kept: list[str] = []
    at = 0
    while at < len(own):
        if own[at] == "--":
            return kept + own[at:]
        if own[at] in names:
            at += 2
            continue
        if not own[at].startswith(tuple(f"{name}=" for name in names)):
            kept.append(own[at])
        at += 1
    return kept
