"""Follows processes that print lines until the last of them has ended. For `fanin emulate`, benchmarks and the demo.

Rules
-----
* A process has ended when it has exited (pidfd_open(2)), not when its standard output has: a grandchild that inherited
  the pipe may hold it open for ever.
* Everything that a process printed comes before its end.
* What grandchildren print comes as long as any of the processes runs; after the last end, what is in the pipes is read
  once more, and then nobody waits for them.
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
"""A longer line loses its beginning."""
READ_BYTES = 1 << 16
MAX_REST_BYTES = 1 << 20
"""Bytes read from a pipe after its process ended: a pipe's largest capacity (pipe(7)), since a child may go on writing.
"""


class Printed(NamedTuple):
    """A line of a process's standard output, without its end."""

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
        """Its exit status, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended; TimeoutExpired."""

    def terminate(self) -> None:
        """Ask it to end, with SIGTERM."""


def follow(processes: Mapping[int, Process], tick_s: float | None) -> Iterator[Printed | Ended | None]:
    """Yield the lines of the processes and their ends, by rank, in order; and None at least every `tick_s`, if given.

    Ends after the last process's end. Standard output of each must be a pipe, which nobody else reads; it becomes
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
    """One process's standard output."""

    def __init__(self, rank: int, process: Process) -> None:
        assert process.stdout is not None
        self.descriptor = process.stdout.fileno()
        self.closed = False
        self._rank = rank
        self._partial = b""
        os.set_blocking(self.descriptor, False)

    def read(self, limit_bytes: int) -> Iterator[Printed]:
        """The lines that are there now, of about so many bytes."""
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
        """A last line that has no end."""
        if self._partial:
            yield Printed(self._rank, self._partial)
            self._partial = b""


def print_object(record: Mapping[str, Any]) -> None:
    """Print an object as a line that `object_in` reads on the other side."""
    # In one piece: with PYTHONUNBUFFERED print writes the end of the line apart, and ranks share torchrun's output.
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def object_in(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a program printed as this line; None where the line is anything else."""
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # a brace does not make an object, and whoever nests one 10,000 times has none
        return None
    return found if isinstance(found, dict) else None
