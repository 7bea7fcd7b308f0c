"""Follows processes that print lines, until the last process has ended; for `fanin emulate`, benchmarks and the demo.

Rules
-----
* A process has ended when it has exited (pidfd_open(2)), not when its standard output is closed: a grandchild that
  inherited the pipe may hold it open for ever.
* All lines that a process printed are yielded before its end; only a last line without a newline comes after all ends.
* Output of grandchildren is yielded while any of the processes runs. After the last end the pipes are read once more,
  and grandchildren are not awaited.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import IO, Any, NamedTuple, Protocol

MAX_LINE_BYTES = 1 << 20
"""Longest line that is kept whole; a longer one loses its beginning."""
READ_BYTES = 1 << 16
MAX_REST_BYTES = 1 << 20
"""Most bytes read from a pipe after its process ended: a pipe's largest capacity (pipe(7)); a grandchild may write on.
"""


class Printed(NamedTuple):
    """A line of a process's standard output, without its newline."""

    rank: int
    line: bytes


class Ended(NamedTuple):
    """The end of a process; `status` is negative for a signal, as `Popen.returncode` is."""

    rank: int
    status: int


class Process(Protocol):
    """A process whose output is followed: subprocess.Popen's, or a fork (fork_server.py)."""

    pid: int
    returncode: int | None

    @property
    def stdout(self) -> IO[bytes] | None:
        """The pipe of its standard output."""

    def poll(self) -> int | None:
        """Its exit status if it has ended, or else None."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit status; raises TimeoutExpired."""

    def terminate(self) -> None:
        """Ask it to end, with SIGTERM."""


def follow(processes: Mapping[int, Process], tick_s: float | None) -> Iterator[Printed | Ended | None]:
    """Yield the processes' lines and ends in order, each with its rank, and None at least every `tick_s`, if given.

    The iterator ends after the last process. Standard output of each must be a pipe that nobody else reads; it becomes
    non-blocking.
    """
    with selectors.DefaultSelector() as selector, ExitStack() as opened:
        outputs = {rank: _Output(rank, process) for rank, process in processes.items()}
        running = dict(processes)
        for rank, process in processes.items():
            selector.register(outputs[rank].descriptor, selectors.EVENT_READ, (rank, False))
            end = os.pidfd_open(process.pid)
            opened.callback(os.close, end)
            selector.register(end, selectors.EVENT_READ, (rank, True))
        next_tick = time.monotonic()
        while running:
            wait_s = None if tick_s is None else max(0.0, next_tick - time.monotonic())
            for key, _ in selector.select(wait_s):
                rank, is_end = key.data
                output = outputs[rank]
                if not is_end:
                    yield from output.read(READ_BYTES)
                    if output.closed:
                        selector.unregister(key.fd)
                    continue
                selector.unregister(key.fd)
                yield from output.read(MAX_REST_BYTES)
                yield Ended(rank, running.pop(rank).wait())
            if tick_s is not None and time.monotonic() >= next_tick:
                next_tick = time.monotonic() + tick_s
                yield None
        for output in outputs.values():
            yield from output.read(MAX_REST_BYTES)
            yield from output.rest()


class _Output:
    """Splits one process's standard output into lines."""

    def __init__(self, rank: int, process: Process) -> None:
        assert process.stdout is not None
        self.descriptor = process.stdout.fileno()
        self.closed = False
        self._rank = rank
        self._partial = b""
        os.set_blocking(self.descriptor, False)

    def read(self, limit_bytes: int) -> Iterator[Printed]:
        """Yield the whole lines that can be read now; stops after about `limit_bytes`."""
        while limit_bytes > 0 and not self.closed:
            try:
                data = os.read(self.descriptor, READ_BYTES)
            except BlockingIOError:
                return
            self.closed = not data
            limit_bytes -= len(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._partial = self._partial[-MAX_LINE_BYTES:]
            for line in lines:
                yield Printed(self._rank, line)

    def rest(self) -> Iterator[Printed]:
        """Yield the last line, if it has no newline."""
        if self._partial:
            yield Printed(self._rank, self._partial)
            self._partial = b""


def print_object(record: Mapping[str, Any]) -> None:
    """Print an object as one line of JSON, which `object_in` parses on the other side."""
    # One write: with PYTHONUNBUFFERED print would write the newline separately, and ranks share torchrun's output.
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def object_in(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line consists of; None for any other line."""
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # a line may begin with a brace and be no object, or be nested too deeply
        return None
    return found if isinstance(found, dict) else None
