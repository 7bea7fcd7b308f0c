"""Starting test jobs: N processes with torch's environment, bounded in time, killed to the last when it is over."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Job:
    """Running ranks. Output goes to one file per rank."""

    def __init__(self, command: Sequence[str], size: int, folder: Path, environment: Mapping[str, str]) -> None:
        self._port = str(free_port())
        self._command, self._size, self._environment = command, size, environment
        self.folder = folder
        self._replaced: list[subprocess.Popen[bytes]] = []
        self.processes = [self._start(rank, {}) for rank in range(size)]

    def replace(self, rank: int, environment: Mapping[str, str]) -> None:
        """Start a rank's program again, with some more environment. The one before has ended; its output is kept."""
        kept = self.folder / f"rank{rank}-{len(self._replaced)}.txt"
        (self.folder / f"rank{rank}.txt").rename(kept)
        self._replaced.append(self.processes[rank])
        self.processes[rank] = self._start(rank, environment)

    def _start(self, rank: int, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        env = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port,
            "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            **self._environment, **more,
        }  # fmt: skip
        arguments = [part.replace("%r", str(rank)) for part in self._command]
        with (self.folder / f"rank{rank}.txt").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *arguments], env=env, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self, timeout_s: float, ranks: Sequence[int] | None = None) -> list[int | None]:
        """Exit codes of the ranks (all of them by default); None for one that still runs at the end."""
        deadline = time.monotonic() + timeout_s
        codes: list[int | None] = []
        for rank in range(len(self.processes)) if ranks is None else ranks:
            try:
                codes.append(self.processes[rank].wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def output(self, rank: int) -> str:
        """What a rank has printed."""
        return (self.folder / f"rank{rank}.txt").read_text(errors="replace")

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def running(command: Sequence[str], size: int, environment: Mapping[str, str] | None = None) -> Iterator[Job]:
    """A job of `size` ranks running `python COMMAND`; `%r` in it becomes the rank."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(command, size, Path(name), environment or {})
        try:
            yield job
        finally:
            job.close()


def run_checks(
    module: str, size: int, environment: Mapping[str, str] | None = None, timeout_s: float = 240.0
) -> Outcomes:
    """Run every check of a module on `size` ranks; what each rank said of each."""
    with running(["-m", "tests.torch.rank_main", module, "out%r.json"], size, environment) as job:
        codes = job.wait(timeout_s)
        said = []
        for rank in range(size):
            path = job.folder / f"out{rank}.json"
            said.append(json.loads(path.read_text()) if path.exists() else {})
        return Outcomes(said, [f"exit code {codes[rank]}:\n{job.output(rank)[-4000:]}" for rank in range(size)])


class Outcomes:
    """Per check and rank: `ok` or a traceback."""

    def __init__(self, said: list[dict[str, str]], outputs: list[str]) -> None:
        self.said = said
        self.outputs = outputs

    def expect_ok(self, check: str) -> None:
        """Assert that the check passed on every rank."""
        for rank, of_rank in enumerate(self.said):
            told = of_rank.get(check, f"rank {rank} did not come to it; {self.outputs[rank]}")
            assert told == "ok", f"rank {rank}: {told}"


def checks_of(module: str) -> list[str]:
    """Names of the checks of a module, in order. Read, not imported: importing torch takes seconds."""
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    return re.findall(r"^def (check_\w+)", source, re.MULTILINE)
