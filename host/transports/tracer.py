"""Writes one line of text per datagram that passes through, in both directions (fanin/formats/trace.py)."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import TextIO

from fanin import files
from fanin.errors import ConfigurationError
from fanin.formats.trace import Direction, trace_line
from fanin.transports.transport import Datagram, Transport

log = logging.getLogger("fanin")
STANDARD_ERROR = "-"


class TracingTransport:
    """Wraps a transport. A trace whose disk is full ends with a warning in the log.

    `path` is opened for appending, so that jobs of one process may share it; `-` is stderr.

    `clock` gives the time of each line, in seconds; `prefix` (a rank, a flow) begins it.
    """

    def __init__(self, inner: Transport, path: str, clock: Callable[[], float] = time.time, prefix: str = "") -> None:
        self._inner = inner
        self._clock = clock
        self._prefix = f"{prefix} " if prefix else ""
        self._files = ExitStack()
        self._path, self._ended = path, False
        self._file: TextIO = sys.stderr
        if path != STANDARD_ERROR:
            try:
                file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - closed by close
                self._file = self._files.enter_context(file)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the path
                why = files.in_words(error) if isinstance(error, OSError) else str(error)
                raise ConfigurationError(f"trace file {path!r} cannot be written: {why}") from None

    @property
    def trouble(self) -> str:
        """The complaint of the inner transport."""
        return self._inner.trouble

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Write and send all."""
        batch = list(datagrams)
        self._write(">", batch)
        self._inner.send(batch)

    def receive(self, timeout_s: float) -> list[Datagram]:
        """Receive and write all."""
        arrived = self._inner.receive(timeout_s)
        self._write("<", arrived)
        return arrived

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._inner.wake()

    def close(self) -> None:
        """Close the inner transport and the file."""
        self._inner.close()
        with suppress(OSError):  # a full disk, which was said already
            self._files.close()

    def _write(self, direction: Direction, datagrams: list[Datagram]) -> None:
        if datagrams and not self._ended:
            now = self._clock()
            lines = [f"{self._prefix}{trace_line(now, direction, data)}\n" for data, _ in datagrams]
            try:
                self._file.write("".join(lines))
            except OSError as error:
                self._ended = True
                log.warning("trace file %s ends here: %s", self._path, files.in_words(error))
