"""The workers' processes: the user's command in every worker's namespace, through torchrun or with its variables alone.

`python train.py ...` is run by torchrun, one node per namespace, so that a script needs no change; a bare `python` is
the interpreter of fanin itself (sudo has another PATH). Any other command is
run as it is, with the variables that torchrun would set (RANK, WORLD_SIZE, MASTER_ADDR, ...).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.network.ownership import processes_in
from fanin.emulation.processes import EXCEPTION_LINE, cause_in
from fanin.errors import ConfigurationError

MASTER_PORT = 29_400
MAX_LINE_BYTES = 1 << 20
MAX_LOG_BYTES = 1 << 20
STOP_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a worker printed on standard output, with its JSON object where it is one."""

    rank: int
    text: str
    record: dict[str, Any] | None


def torchrun_command(command: Sequence[str], fabric: Fabric, rank: int, restarts: int) -> list[str]:
    """The user's command line as one torchrun node's; unchanged where it is not `python FILE` or `python -m MODULE`."""
    if not command:
        raise ConfigurationError("no command: write it behind --, as in `fanin emulate -- python train.py`")
    name = Path(command[0]).name
    if not name.startswith("python") or len(command) < 2 or command[1] == "-c":
        return list(command)
    python = sys.executable if command[0] == name else command[0]
    topology = fabric.topology
    arguments = ["--nnodes", str(topology.workers), "--nproc-per-node", "1", "--max-restarts", str(restarts)]
    master = topology.worker_address(0)
    if restarts:
        # Only the dynamic rendezvous lets nodes meet again. It numbers them by address, which sorts as ranks do.
        arguments += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{master}:{MASTER_PORT}", "--rdzv-id", fabric.name]
        arguments += ["--local-addr", topology.worker_address(rank)]
        # By itself torchrun looks its addresses up by host name, and all namespaces have the machine's.
        arguments += ["--rdzv-conf", f"is_host={int(rank == 0)}"]
    else:
        arguments += ["--node-rank", str(rank), "--master-addr", master, "--master-port", str(MASTER_PORT)]
    return [python, "-m", "torch.distributed.run", *arguments, *command[1:]]


class Workers:
    """All workers of a run. A context manager: they run from entry to exit, and nothing of them stays."""

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
                    "FANIN_SWITCH": f"udp://{topology.switch_address(rank)}:4919",
                    "GLOO_SOCKET_IFNAME": WORKER_DEVICE,
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": topology.worker_address(0),
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
                            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops them
                        )
                    )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self, rank: int) -> Path:
        """What a worker writes to standard error."""
        return self._logs / f"worker{rank}.log"

    def lines(self, tick_s: float) -> Iterator[Line | None]:
        """What workers print, and None at least every `tick_s`, until all have ended."""
        with selectors.DefaultSelector() as selector:
            partial = [b""] * len(self._processes)
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            next_tick = time.monotonic() + tick_s
            while selector.get_map():
                for key, _ in selector.select(max(0.0, next_tick - time.monotonic())):
                    rank = int(key.data)
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                        data = b"\n" if partial[rank] else b""
                    *lines, partial[rank] = (partial[rank] + data).split(b"\n")
                    partial[rank] = partial[rank][-MAX_LINE_BYTES:]
                    for line in lines:
                        yield Line(rank, line.decode(errors="replace"), _record(line))
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + tick_s
                    yield None

    def outcomes(self) -> list[str]:
        """How each worker ended, once `lines` is through: `finished`, or the last error that it wrote."""
        found = []
        for rank, process in enumerate(self._processes):
            status = process.wait()
            found.append("finished" if status == 0 else self._cause(rank, status))
        return found

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send it to every process in a worker's namespace."""
        for pid in processes_in([self._fabric.worker_namespace(rank)]):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill_program(self, rank: int) -> None:
        """SIGKILL to the training program, not to the torchrun that started it."""
        agent = self._processes[rank].pid
        for pid in processes_in([self._fabric.worker_namespace(rank)]) - {agent}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self._commands[rank][1:3] != ["-m", "torch.distributed.run"]:
            self._processes[rank].kill()

    def stop(self) -> None:
        """End every worker and wait until it is gone. Idempotent."""
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
        log = self.log(rank).read_bytes()[-MAX_LOG_BYTES:].decode(errors="replace")
        # torchrun's own report of a failed child comes last; what the child said stands before it.
        own = [part for part in log.split("\n") if not part.startswith(("E1", "W1", "torch.distributed.elastic"))]
        causes = [line for line in own if EXCEPTION_LINE.match(line) and "ChildFailedError" not in line]
        if causes:
            return causes[-1]
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"
        return f"{how}: {cause_in(log)}"


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
