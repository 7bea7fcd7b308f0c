"""A job of worker processes on this machine, as torchrun would start it, for the demo, benchmarks and tests.

Workers get torchrun's environment variables. The JSON objects that they print on standard output, one per line, are
their reports; standard error is kept for the message of a failure. The first failing worker ends the job, and however
the job ends (failure, Ctrl-C, the end of this process by any signal), no worker is left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from fanin.emulation.fork_server import ForkServer
from fanin.emulation.process_log import EXCEPTION_LINE, cause_in, end_of
from fanin.emulation.process_output import Ended, Process, follow, object_in
from fanin.errors import FaninError
from fanin.modules import running

STOP_GRACE_S = 3.0
"""Time between SIGTERM, after which a worker can leave its switch, and SIGKILL."""
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST_FREE_PORT = 20_000
FREE_PORT_TRIES = 20


class Report(NamedTuple):
    """One JSON object printed by a worker."""

    rank: int
    record: dict[str, Any]


class WorkerFailedError(FaninError):
    """A worker process failed. `rank` is its rank, `log` the last MAX_LOG_BYTES of its standard error."""

    def __init__(self, rank: int, status: int | None, log: str) -> None:
        how = f"was ended by {signal.Signals(-status).name}" if status is not None and status < 0 else "failed"
        super().__init__(f"worker {rank} {how}: {cause_in(log)}")
        self.rank = rank
        self.log = log


class LocalJob:
    """N processes that each run `module` with `arguments`. A context manager: they run from entry to exit."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        workers: int,
        environment: Mapping[str, str],
        place: Callable[[int, list[str]], list[str]] = lambda rank, command: command,
        server: ForkServer | None = None,
    ) -> None:
        """`place` turns a rank's command line into one that runs it elsewhere, such as in a namespace, as the same
        process. With `server`, ranks are its forks, and `place` is not used. `environment` overrides MASTER_ADDR and
        the like."""
        self.workers = workers
        self._place, self._server = place, server
        self._words = [module, *arguments]
        self._environment = {**os.environ, **environment}
        self._processes: list[Process] = []
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> LocalJob:
        shared = {
            "LOCAL_WORLD_SIZE": str(self.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(self.workers),
        }
        try:
            for rank in range(self.workers):
                log = tempfile.TemporaryFile()
                self._logs.append(log)
                given = {**shared, "LOCAL_RANK": str(rank), **self._environment, "RANK": str(rank)}
                self._processes.append(self._start(rank, given, log))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, rank: int, environment: dict[str, str], errors: IO[bytes]) -> Process:
        fork = None if self._server is None else self._server.start(self._words, environment, errors)
        return fork or subprocess.Popen(
            self._place(rank, running("fanin.emulation.parent_death", *self._words)),
            env={**environment, "FANIN_PARENT": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the ranks in order
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by rank."""
        return tuple(process.pid for process in self._processes)

    def reports(self) -> Iterator[Report]:
        """Yield reports as they arrive, until all workers have ended with status 0; else WorkerFailedError."""
        for item in follow(dict(enumerate(self._processes)), None):
            if isinstance(item, Ended):
                if item.status != 0:
                    raise self._failure(item.rank)
            elif item is not None and (found := object_in(item.line)) is not None:
                yield Report(item.rank, found)

    def stop(self) -> None:
        """End every worker and all processes that it has started, and wait until they are gone."""
        deadline = time.monotonic() + STOP_GRACE_S
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its whole session: the worker and, say, its embedded switch
            process.wait()
            if process.stdout:
                process.stdout.close()
        for log in self._logs:
            log.close()
        self._processes, self._logs = [], []

    def _failure(self, rank: int) -> WorkerFailedError:
        failures = [(os.fstat(log.fileno()).st_mtime_ns, other) for other, log in enumerate(self._logs)]
        # The first to end need not be the first to fail: a worker prints its exception before it leaves its peers.
        said = [other for _, other in sorted(failures) if EXCEPTION_LINE.search(self._log(other))]
        culprit = rank if self._processes[rank].wait() < 0 or not said else said[0]
        return WorkerFailedError(culprit, self._processes[culprit].poll(), self._log(culprit))

    def _log(self, rank: int) -> str:
        return end_of(self._logs[rank])


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port (TCP by default) of 127.0.0.1 that was free a moment ago; FaninError if there is none.

    It lies below the ephemeral ports if possible, because the system may give an ephemeral one to another process
    before the caller's program opens it.
    """
    ports = range(FIRST_FREE_PORT, _first_ephemeral_port())
    drawn = secrets.SystemRandom()  # not the global generator, whose state programs share that set a seed
    tried = [drawn.choice(ports) for _ in range(FREE_PORT_TRIES)] if ports else []
    for port in [*tried, 0]:  # 0: any port
        with socket.socket(socket.AF_INET, kind) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise FaninError("no port of 127.0.0.1 is free. Remedy: end programs that hold ports")


def _first_ephemeral_port() -> int:
    """First of the ports that Linux gives to sockets that ask for none; 0 if it cannot be read."""
    try:
        return int(EPHEMERAL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
