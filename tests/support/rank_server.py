"""Starts ranks that need torch by forking a process that has imported it: an import takes seconds, a fork none.

`RankServer` is for tests; the rest of this file is its other half, run as `python -m tests.support.rank_server`. It
reads a JSON object per line: `{"run": [MODULE, ARGUMENT...], "environment": {...}, "folder": ..., "output": FILE,
"imports": [MODULE...], "torn_down": true}` is answered by the rank's process id, `{"wait": PID}` by its exit code. A
rank is what `python -m MODULE ARGUMENT...` is, but for what is imported already: it has its own environment, folder and
output. One that is to be torn down ends as the interpreter ends. Another one waits for its threads, calls what atexit
knows and leaves: to let go of every object of torch takes longer than to make a group and sum.

torch must not have started threads when it is forked; the server refuses to serve when it has.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fanin.emulation.fork_server import Fork

ROOT = Path(__file__).absolute().parents[2]
"""Links are not followed: in a tree of links with another extension (tools/linked_tree.py), ranks and the switches that
they start are to load that one."""
PRELOADED = (
    "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "fanin.host.torch.backend", "sklearn.datasets",
)  # fmt: skip
"""Modules that nearly every rank imports, sooner or later; the last one, all that learn digits."""
COMPILING = ("torch._dynamo.backends.debugging", "torch._dynamo.repro.after_dynamo", "torch._functorch.aot_autograd")
"""Modules that torch.compile imports when it is first called, with 400 others that these import."""
LIBRARIES = ("pytest", "torch")
"""Packages whose modules the server imports before it forks a rank that would import them itself."""
WHERE = signal.SIGUSR1
"""Has a rank print its threads' stacks, for one that is found to hang."""


class RankServer:
    """The server of this process, started when it is first asked for."""

    PROGRAM = "tests.support.rank_server"
    """Module of the other half."""
    _one: RankServer | None = None
    """A subclass sets this again, since it has a server of its own."""

    def __init__(self) -> None:
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.PROGRAM],
            env={**os.environ, **one_thread, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._asking = threading.Lock()
        atexit.register(self.close)

    @classmethod
    def get(cls) -> RankServer:
        """The one of this process."""
        if cls._one is None or cls._one._process.poll() is not None:
            cls._one = cls()
        return cls._one

    def fork(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: str,
        *,
        torn_down: bool,
        through: Sequence[str] = (),
    ) -> int:
        """Process id of a fork that runs `python -m COMMAND`; `through`: a command that becomes it."""
        return self.ask(
            run=[*through, *command],
            environment=dict(environment),
            folder=str(folder),
            output=output,
            torn_down=torn_down,
            imports=imports_of(*(each for part in command for each in part.split(","))),
        )

    def ask(self, **request: object) -> int:
        """One question, one number."""
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        with self._asking:
            asked.write(json.dumps(request) + "\n")
            asked.flush()
            answer = told.readline()
        assert answer, "the server of ranks has ended: see its standard error"
        return int(answer)

    def status_of(self, pid: int) -> int:
        """Exit status of a rank that has ended."""
        return self.ask(wait=pid)

    def close(self) -> None:
        """End it. Its ranks are ended by whoever started them."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


class Rank(Fork):
    """A rank that writes into a file."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path, torn_down: bool = True
    ) -> None:
        server = RankServer.get()
        super().__init__(server.fork(command, environment, folder, str(output), torn_down=torn_down), server.status_of)
        self._output = output

    def say_where(self) -> None:
        """Have it print what each of its threads is doing; returns when that is there, or has not come for 5 s."""
        before = self._output.stat().st_size
        self.send_signal(WHERE)
        deadline = time.monotonic() + 5.0
        while self._output.stat().st_size == before and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(0.05)
                return

    def kill(self) -> None:
        """Kill the rank with SIGKILL."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def imports_of(*modules: str) -> list[str]:
    """Modules of LIBRARIES that those of these names that are the tests' own import, directly or through each other.

    They are read, not imported. Imports behind another statement do not count: that statement may be meant to be first.
    """
    found: dict[str, None] = {}
    to_read = [module for module in modules if module.startswith("tests.")]
    read: set[str] = set()
    while to_read:
        path = (ROOT / to_read[0].replace(".", "/")).with_suffix(".py")
        read.add(to_read.pop(0))
        if not path.is_file():
            continue
        source = path.read_text()
        for statement in ast.parse(source).body[1:]:  # behind the docstring
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                break
            names = [alias.name for alias in statement.names]
            if isinstance(statement, ast.ImportFrom):
                names = [str(statement.module), *(f"{statement.module}.{name}" for name in names)]
            found |= dict.fromkeys(name for name in names if name.split(".")[0] in LIBRARIES)
            to_read += [name for name in names if name.startswith("tests.") and name not in read]
        if "torch.compile(" in source:
            found |= dict.fromkeys(COMPILING)
    return list(found)


def import_before_forking(names: Iterable[str]) -> None:
    """Import what is a module among these. The collector looks at nothing of that again, here or in ranks, which would
    touch, and so copy, every object of the server.
    """
    new = [name for name in names if name not in _SEEN]
    if not new:
        return
    gc.disable()  # an import makes hardly any garbage, and a collection looks at all that was imported before
    for name in new:
        _SEEN.add(name)
        with contextlib.suppress(ImportError):  # it is a function or a class, or the rank's to fail at
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads run after the imports: a process with threads cannot be forked"


_SEEN: set[str] = set()
"""Names that were imported, or are no modules."""


def serve() -> dict[str, Any] | None:
    """Answer until nobody asks any more (None), or until this is a rank that has been forked: what it is to run."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            import_before_forking(request["imports"])
            answer = os.fork()
            if answer == 0:
                return dict(request)
        print(answer, flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Have the rank's output, input, folder, environment and arguments."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, descriptors in ((nothing, (0,)), (output, (1, 2))):
        for descriptor in descriptors:
            os.dup2(source, descriptor)
        os.close(source)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = list(request["run"])
    faulthandler.register(WHERE)


def leave(code: int) -> NoReturn:
    """End as the interpreter does, but for letting go of modules and what they hold."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def main() -> None:
    """Import what ranks need, then serve; in a rank, run its program."""
    import_before_forking(PRELOADED)
    request = serve()
    if request is not None:
        become(request)
        runpy.run_module(request["run"][0], run_name="__main__", alter_sys=True)
        if not request["torn_down"]:
            leave(0)  # an exception, SystemExit among them, ends a rank as it ends the interpreter


if __name__ == "__main__":
    main()
