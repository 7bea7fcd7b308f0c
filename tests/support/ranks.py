"""Starting test jobs: N processes with torch's environment, bounded in time, killed to the last when it is over."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fanin.emulation.processes import free_port
from tests.support.rank_server import ROOT as ROOT
from tests.support.rank_server import Rank


class Job:
    """Running ranks. Output goes to one file per rank. Those of `torn_down` end as the interpreter ends, the others
    without letting go of what they imported (rank_server.py).
    """

    def __init__(
        self,
        command: Sequence[str],
        size: int,
        folder: Path,
        environment: Mapping[str, str],
        torn_down: Container[int] = (0,),
    ) -> None:
        self._port = str(free_port())
        self._command, self._size, self._environment = command, size, environment
        self.folder = folder
        self._torn_down = torn_down
        self._replaced: list[Rank] = []
        self.processes = [self._start(rank, {}) for rank in range(size)]

    def replace(self, rank: int, environment: Mapping[str, str]) -> None:
        """Start a rank's program again, with some more environment. The one before has ended; its output is kept."""
        kept = self.folder / f"rank{rank}-{len(self._replaced)}.txt"
        (self.folder / f"rank{rank}.txt").rename(kept)
        self._replaced.append(self.processes[rank])
        self.processes[rank] = self._start(rank, environment)

    def add(self, environment: Mapping[str, str]) -> None:
        """Start one more rank, with some more environment."""
        self.processes.append(self._start(len(self.processes), environment))

    def _start(self, rank: int, more: Mapping[str, str]) -> Rank:
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._port,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            **{name: value.replace("%r", str(rank)) for name, value in self._environment.items()},
            **more,
        }
        arguments = [part.replace("%r", str(rank)) for part in self._command]
        return Rank(arguments, env, self.folder, self.folder / f"rank{rank}.txt", rank in self._torn_down)

    def wait(self, timeout_s: float, ranks: Sequence[int] | None = None) -> list[int | None]:
        """Exit codes of the ranks (all of them by default); None for one that still runs at the end, and has printed
        what its threads are doing."""
        deadline = time.monotonic() + timeout_s
        codes: list[int | None] = []
        for rank in range(len(self.processes)) if ranks is None else ranks:
            try:
                codes.append(self.processes[rank].wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                self.processes[rank].say_where()
                codes.append(None)
        return codes

    def output(self, rank: int) -> str:
        """Output of a rank so far."""
        return (self.folder / f"rank{rank}.txt").read_text(errors="replace")

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def running(
    command: Sequence[str],
    size: int,
    environment: Mapping[str, str] | None = None,
    torn_down: Container[int] = (0,),
) -> Iterator[Job]:
    """A job of `size` ranks running `python -m COMMAND`; `%r` in it, and in the environment, becomes the rank."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(command, size, Path(name), environment or {}, torn_down)
        try:
            yield job
        finally:
            job.close()
