"""Starts the workers: the user's command in every worker's namespace, through torchrun or with its variables alone.

`python [OPTIONS] train.py ...` is run by torchrun, one node per namespace, so that a script needs no change; a bare
`python` is fanin's own interpreter (sudo has another PATH). Any other command is run unchanged, with the variables that
torchrun would set (RANK, WORLD_SIZE, MASTER_ADDR, ...). If several ranks share a host, python commands are run without
torchrun, too, so that each rank's output and end can be told apart.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanin import files
from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.process_log import cause_in, end_of
from fanin.emulation.process_output import Ended, Printed, follow, object_in
from fanin.errors import ConfigurationError
from fanin.modules import running

AGENT = "torch.distributed.run"
"""Module that `torchrun` runs."""
MASTER_PORT = 29_400
STOP_GRACE_S = 3.0
TORCHRUN_REPORT = re.compile(r"^E\d{4} .*failed \(exitcode: (?P<status>-?\d+)\)", re.MULTILINE)
"""First line of a torchrun agent's report on its failed program."""
TORCHRUN_LINE = re.compile(r"^\[?[EWI]\d{4} |^torch\.distributed\.elastic")
"""Beginning of a line of torch's own log, either level and date or the module's name."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a worker printed on standard output; `record`: its JSON object, or None."""

    rank: int
    text: str
    record: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class End:
    """The end of a worker: `outcome` is `finished`, or how it failed and its last error line."""

    rank: int
    outcome: str


def require_program(command: Sequence[str]) -> None:
    """Raise ConfigurationError, before a cluster is built, if the program to run does not exist."""
    if not command:
        return
    name = Path(command[0]).name
    if name.startswith("python") and (options := _interpreter_options(command[1:])) is not None:
        before, rest = command[1 : options + 1], command[options + 1 :]
        # in doubt: python reports a missing module itself
        names_module = rest[:1] == ["-m"] or any("m" in word for word in before)
        if rest and not names_module and not Path(rest[0]).exists():
            raise ConfigurationError(f"there is no {files.name(rest[0])} to run. Remedy: correct the path behind --")
    is_ours = name.startswith("python") and name == command[0]  # the interpreter that fanin is installed in
    if not is_ours and shutil.which(command[0]) is None:
        raise ConfigurationError(
            f"there is no command {files.name(command[0])}. Remedy: correct what stands behind --, or PATH"
        )


def torchrun_command(command: Sequence[str], fabric: Fabric, rank: int, restarts: int) -> list[str]:
    """The command line of one torchrun node; the user's own if it is not python with a file or module."""
    if not command:
        raise ConfigurationError("no command. Remedy: write it behind --, as in `fanin emulate -- python train.py`")
    name = Path(command[0]).name
    if not name.startswith("python") or (options := _interpreter_options(command[1:])) is None:
        return list(command)
    python = sys.executable if command[0] == name else command[0]
    topology = fabric.topology
    if topology.ranks_per_host > 1:
        return [python, *command[1:]]
    arguments = ["--nnodes", str(topology.workers), "--nproc-per-node", "1", "--max-restarts", str(restarts)]
    master = topology.worker_address(0)
    if restarts:
        # Only the dynamic rendezvous lets nodes meet again. It sorts them by address, and addresses sort as ranks do.
        arguments += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{master}:{MASTER_PORT}", "--rdzv-id", fabric.name]
        arguments += ["--local-addr", topology.worker_address(rank)]
        # By default torchrun looks its addresses up by host name, which is the same in all namespaces.
        arguments += ["--rdzv-conf", f"is_host={int(rank == 0)}"]
    else:
        arguments += ["--node-rank", str(rank), "--master-addr", master, "--master-port", str(MASTER_PORT)]
    program = command[1:]
    if options:  # torchrun has no place for options of the interpreter
        arguments, program = [*arguments, "--no-python"], [python, *program]
    return running(AGENT, *arguments, *program, python=python)


def _interpreter_options(arguments: Sequence[str]) -> int | None:
    """Number of words before the file or `-m`; None if python runs neither (`-c`, `-V`, no words)."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if not word.startswith("-") or word == "-m":
            return at
        if word == "--":
            return at + 1 if at + 1 < len(arguments) else None
        if word == "--check-hash-based-pycs":
            at += 2
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter in "-ch?V":
                return None
            if letter == "m":  # the module's name follows, or stands in the same word
                return at + 1
            if letter in "WX":  # the letter takes an argument: the rest of this word, or the next word
                at += place == len(word)
                break
        at += 1
    return None


class Workers:
    """The processes of all workers. A context manager: they run from entry to exit, and all are gone afterwards."""

    def __init__(
        self, fabric: Fabric, command: Sequence[str], environment: Mapping[str, str], logs: Path, *, restarts: int
    ) -> None:
        self._fabric = fabric
        self._commands = [torchrun_command(command, fabric, rank, restarts) for rank in range(fabric.topology.workers)]
        self._environment = {**os.environ, **environment}
        self._logs = logs
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        topology = self._fabric.topology
        try:
            for rank, command in enumerate(self._commands):
                own = {
                    **topology.rank_environment(rank),
                    "GLOO_SOCKET_IFNAME": WORKER_DEVICE,
                    "MASTER_PORT": str(MASTER_PORT),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONUNBUFFERED": "1",
                    "RANK": str(rank),
                    "WORLD_SIZE": str(topology.workers),
                }
                with self.log(rank).open("wb") as log:
                    self._processes.append(
                        subprocess.Popen(
                            in_namespace(self._fabric.worker_namespace(rank), command),
                            env={**self._environment, **own},
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE,
                            stderr=log,
                            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the workers
                        )
                    )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self, rank: int) -> Path:
        """File of a worker's standard error."""
        return self._logs / f"worker{rank}.log"

    def lines(self, tick_s: float) -> Iterator[Line | End | None]:
        """Yield the lines that workers print and their ends, and None at least every `tick_s`, until all have ended."""
        for item in follow(dict(enumerate(self._processes)), tick_s):
            if isinstance(item, Printed):
                yield Line(item.rank, item.line.decode(errors="replace"), object_in(item.line))
            elif isinstance(item, Ended):
                yield End(item.rank, "finished" if item.status == 0 else self._cause(item.rank, item.status))
            else:
                yield None

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to every process of a worker."""
        for pid in self._fabric.worker_processes(rank):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill_program(self, rank: int) -> None:
        """Send SIGKILL to the worker's training program, and not to the torchrun agent that started it."""
        agent = self._processes[rank].pid
        for pid in self._fabric.worker_processes(rank) - {agent}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if AGENT not in self._commands[rank][:4]:
            self._processes[rank].kill()

    def stop(self) -> None:
        """End every worker and wait until all are gone. Idempotent."""
        deadline = time.monotonic() + STOP_GRACE_S
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        self._processes = []

    def _cause(self, rank: int, status: int) -> str:
        try:
            with self.log(rank).open("rb") as file:
                log = end_of(file)
        except OSError as error:
            log = f"its log cannot be read: {error.strerror}"
        # torchrun's report of a failed program comes last, and has the program's status; the program's own output
        # stands before it.
        reports = list(TORCHRUN_REPORT.finditer(log))
        if reports:
            status, log = int(reports[-1]["status"]), log[: reports[-1].start()]
        log = "\n".join(line for line in log.split("\n") if not TORCHRUN_LINE.match(line))
        if not reports and "ChildFailedError" in log:
            log = log.partition("ChildFailedError")[0].rpartition("\nTraceback")[0]
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"
        return f"{how}: {cause_in(log).partition(chr(10))[0]}"
