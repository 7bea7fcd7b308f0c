"""Starts ranks as forks of one process that has already imported their modules.

An interpreter that imports torch, its optimizers and scikit-learn takes six seconds of a core, and a fork next to none.

Rules of this file
------------------
* The server is a process of its own, since a process that forks must have one thread alone. If its imports have started
  threads, it answers THREADS, and ranks are started as interpreters.
* A request is a JSON object and two descriptors, a rank's standard output and error (unix(7), SCM_RIGHTS); the answer
  is a process id. The answer to `{"wait": PID}`, for a rank that has ended, is its exit status.
* A fork behaves as `python -m MODULE ARGUMENT...` does, in a session of its own and with the requested environment,
  except for Python's path. It is killed when the server ends, and the server when its starter ends (parent_death.py).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from fanin.emulation.parent_death import die_with_parent
from fanin.emulation.process_log import cause_in, end_of
from fanin.errors import FaninError
from fanin.modules import running

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Set for the server, because OpenBLAS starts its threads when numpy is imported."""
MAX_REQUEST_BYTES = 1 << 17
THREADS = "threads"
"""Answer of a server that cannot fork, because its imports have started threads."""


class ForkServer:
    """Imports modules once, and starts ranks as its forks. A context manager: ranks run within it."""

    def __init__(self, *modules: str) -> None:
        """`modules` are imported before the first fork; if an import fails, the ranks repeat it and report why."""
        self._modules = modules

    def __enter__(self) -> ForkServer:
        self._inherited = {**os.environ, **ONE_THREAD}
        with contextlib.ExitStack() as opened:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(self._channel)
            self._log = opened.enter_context(tempfile.TemporaryFile())
            # Importing torch._dynamo creates this folder for good; jobs compile nothing that others could use.
            scratch = opened.enter_context(tempfile.TemporaryDirectory(prefix="fanin-"))
            words = ["fanin.emulation.fork_server", str(theirs.fileno()), *self._modules]
            with theirs:
                self._process = subprocess.Popen(
                    running("fanin.emulation.parent_death", *words),
                    env={"TORCHINDUCTOR_CACHE_DIR": scratch, **self._inherited, "FANIN_PARENT": str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    stderr=self._log,  # warnings of imports; an interpreter's would go to its rank's log
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C reaches the starter alone, which ends the ranks in order
                )
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it may still import, and has nothing to put in order
        self._process.wait()
        self._opened.close()

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def start(self, command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]) -> Rank | None:
        """Run `python -m COMMAND...` as a fork; None if the server cannot fork. FaninError if the server has ended."""
        # only differences: a whole environment may exceed MAX_REQUEST_BYTES
        changed = environment.items() - self._inherited.items()
        unset = self._inherited.keys() - environment.keys()
        request = {"run": list(command), "set": dict(changed), "unset": list(unset)}
        read, write = os.pipe()
        with contextlib.ExitStack() as opened:
            stdout = opened.enter_context(os.fdopen(read, "rb", 0))
            with os.fdopen(write, "wb") as output:
                answer = self.ask(request, [output.fileno(), errors.fileno()])
            if answer == THREADS:
                return None
            opened.pop_all()
        return Rank(int(answer), stdout, lambda pid: int(self.ask({"wait": pid})))

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> str:
        """Send one request and return its answer; FaninError with the server's log if the server has ended."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._channel, [json.dumps(request).encode()], list(descriptors))
            if answer := self._channel.recv(MAX_REQUEST_BYTES):
                return answer.decode()
        status = self._process.wait()
        raise FaninError(
            f"the process that starts ranks has ended, with status {status}: {cause_in(end_of(self._log))}. "
            "Remedy: see what it says there, then run it again"
        )


class Fork:
    """A process forked by another process, with the part of subprocess.Popen's interface that jobs use."""

    def __init__(self, pid: int, status_of: Callable[[int], int]) -> None:
        """`status_of` asks the parent of the process for its exit status, once it has ended."""
        self.pid = pid
        self.returncode: int | None = None
        self._status_of = status_of
        self._end = os.pidfd_open(pid)  # the parent has not waited for it, so no other process has got its number

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit status, negative for a signal; raises TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0.0)
            os.close(self._end)
            self.returncode = self._status_of(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def terminate(self) -> None:
        """Ask it to end, with SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Rank(Fork):
    """A fork whose standard output is a pipe."""

    def __init__(self, pid: int, stdout: IO[bytes], status_of: Callable[[int], int]) -> None:
        super().__init__(pid, status_of)
        self.stdout = stdout


# --- the server ---


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answer requests until the starter is gone (returns None); in a fork, return its request and descriptors."""
    can_fork = len(os.listdir("/proc/self/task")) == 1
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 2)
        if not data:
            return None
        request = json.loads(data)
        if "wait" in request:
            answer = str(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]))
        elif not can_fork:
            answer = THREADS
        else:
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                die_with_parent(server)
                return request, descriptors
            answer = str(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ConnectionError):  # the starter has gone: the next request says so
            channel.send(answer.encode())


def become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Turn this fork into the rank: set session, streams, environment and arguments, then run its module."""
    os.setsid()
    for own, given in zip((1, 2), descriptors, strict=True):
        os.dup2(given, own)
        os.close(given)
    for name in request["unset"]:
        os.environ.pop(name, None)
    os.environ.update(request["set"])
    sys.argv = list(request["run"])
    sys.modules.pop(sys.argv[0], None)  # runpy warns of a module that it runs and that is imported already
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def main() -> None:
    """Import the modules and serve; in a fork, run the rank's module, and end the process as a rank does."""
    number, *modules = sys.argv[1:]
    gc.disable()  # a collection would touch all imported objects and, in each fork, copy their pages
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=int(number)) as channel:
        found = serve(channel)
    if found is not None:
        become(*found)


if __name__ == "__main__":
    main()
