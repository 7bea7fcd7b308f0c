"""Ownership of namespaces, so that cleaning up removes everything of ours and nothing else.

Rules
-----
* A run has a random name of four letters; its namespaces are `fanin-NAME-...`. All its devices are made inside them,
  none in the machine's own namespace, and a device is deleted with its namespace.
* Before the first namespace is made, a mark is written: MARKS/NAME.json says which process owns the run (its id and
  start time, since process ids are reused) and which namespaces the run makes.
* A run has a folder, FOLDERS/fanin-emulate-NAME, for files of its processes. The mark names it before it is made.
* `clean` needs the mark of a run, and deletes only namespaces that are named in it and have the prefix. `leftovers` are
  runs whose owner is gone.
* Processes inside a run's namespaces belong to the run, and are ended first.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fanin.emulation.network.commands import COMMAND_LIMIT_S
from fanin.errors import FaninError

PREFIX = "fanin-"
MARKS = Path("/run/fanin-emulate")
NAMESPACES = Path("/run/netns")
FOLDER_PREFIX = "fanin-emulate-"
NAME_LETTERS = "abcdefghijkmnpqrstuvwxyz"
KILL_ROUNDS = 50
KILL_INTERVAL_S = 0.05
"""Time between two attempts to kill; a process that survives KILL_ROUNDS (in uninterruptible sleep) is given up."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its mark describes it."""

    name: str
    pid: int
    started: int
    """Start time of the owner, in clock ticks since boot (proc(5), field 22)."""
    namespaces: tuple[str, ...]
    folder: Path
    """Folder for files of the run's processes; removed with the run."""

    @property
    def alive(self) -> bool:
        """Whether its owner still runs."""
        return start_time(self.pid) == self.started

    @property
    def mark(self) -> Path:
        """File of the run's mark."""
        return MARKS / f"{self.name}.json"


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may contain spaces and parentheses
    return None if fields[0] == "Z" else int(fields[19])


def claim(namespaces: list[str]) -> Run:
    """Mark a new run owned by this process; its namespaces are named `fanin-NAME-` and each of `namespaces`."""
    MARKS.mkdir(mode=0o755, exist_ok=True)
    while True:
        name = "".join(secrets.choice(NAME_LETTERS) for _ in range(4))
        started = start_time(os.getpid())
        assert started is not None
        folder = Path(tempfile.gettempdir()) / f"{FOLDER_PREFIX}{name}"
        run = Run(name, os.getpid(), started, tuple(f"{PREFIX}{name}-{part}" for part in namespaces), folder)
        body = {"pid": run.pid, "started": run.started, "namespaces": run.namespaces, "folder": str(folder)}
        try:
            with open(run.mark, "x", encoding="utf-8") as file:
                json.dump(body, file)
        except FileExistsError:
            continue
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            run.mark.unlink()
            # somebody else's folder: everybody may write to the temporary folder
            if isinstance(error, FileExistsError):
                continue
            raise FaninError(
                f"no folder {folder} can be made: {error.strerror}. Remedy: set TMPDIR to a folder with space"
            ) from None
        return run


def runs() -> list[Run]:
    """All marked runs, also those whose owner is gone. An unreadable mark is skipped and stays."""
    found = []
    for path in sorted(MARKS.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            body = json.loads(path.read_text(encoding="utf-8"))
            namespaces, folder = tuple(map(str, body["namespaces"])), Path(body.get("folder", ""))
            found.append(Run(path.stem, int(body["pid"]), int(body["started"]), namespaces, folder))
    return found


def leftovers() -> list[Run]:
    """Runs whose owner is gone."""
    return [run for run in runs() if not run.alive]


def clean(run: Run) -> list[str]:
    """End the run's processes; delete its namespaces, folder and mark. Returns texts on what remains. Idempotent."""
    mine = [name for name in run.namespaces if name.startswith(f"{PREFIX}{run.name}-")]
    present = [name for name in mine if (NAMESPACES / name).exists()]
    _end_processes(present)
    stuck = []
    for name in present:
        done = subprocess.run(
            ["ip", "netns", "delete", name], capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S
        )
        if done.returncode != 0 and (NAMESPACES / name).exists():
            stuck.append(f"{name}: {done.stderr.strip()}")
    if run.folder.name == f"{FOLDER_PREFIX}{run.name}" and not run.folder.is_symlink():
        try:
            shutil.rmtree(run.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            stuck.append(f"{run.folder}: {error.strerror}")
    if not stuck:
        run.mark.unlink(missing_ok=True)
    return stuck


def processes_in(namespaces: list[str]) -> set[int]:
    """Ids of the processes in any of these namespaces, without this process."""
    wanted = set()
    for name in namespaces:
        with contextlib.suppress(OSError):
            status = os.stat(NAMESPACES / name)
            wanted.add((status.st_dev, status.st_ino))
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{entry}/ns/net")
                if (status.st_dev, status.st_ino) in wanted:
                    found.add(int(entry))
    return found


def _end_processes(namespaces: list[str]) -> None:
    for _ in range(KILL_ROUNDS):
        remaining = processes_in(namespaces)
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not remaining:
            return
        time.sleep(KILL_INTERVAL_S)
