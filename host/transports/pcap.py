"""Writes every datagram that passes through into a capture file that Wireshark, tcpdump and scapy open."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
from collections.abc import Callable, Iterable

from fanin import files
from fanin.errors import ConfigurationError
from fanin.formats.capture import SocketAddress, ethernet_frame, pcap_header, pcap_record
from fanin.transports.transport import Datagram, Transport

log = logging.getLogger("fanin")


class PcapWriter:
    """Appends to one capture file; jobs, flows and successive runs may share it, since a record is written whole."""

    def __init__(self, path: str, name: str | None = None) -> None:
        """`name`: how errors name the file, where that is not its path. ConfigurationError if it cannot be written."""
        header = pcap_header()
        self.path = path if name is None else name
        found = b""
        new = not os.path.lexists(path)
        opened = contextlib.ExitStack()
        try:
            self._file = opened.enter_context(io.FileIO(path, "a+" if _regular(path) else "w"))
            if self._file.readable():
                self._file.seek(0)
                found = self._file.read(len(header)) or b""
            if not found:
                self._write(header)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            opened.close()
            if new:
                with contextlib.suppress(OSError, ValueError):
                    os.unlink(path)
            why = files.in_words(error) if isinstance(error, OSError) else str(error)
            raise ConfigurationError(f"capture file {self.path!r} cannot be written: {why}") from None
        if found and found != header:
            self._file.close()
            raise ConfigurationError(
                f"{self.path!r} exists and is no capture of fanin's. Remedy: remove it, or name another file"
            )

    def write(
        self, time_s: float, source: SocketAddress, destination: SocketAddress, payloads: Iterable[bytes]
    ) -> None:
        """Record datagrams, all at `time_s` seconds since 1970. OSError, with the path, where the disk is full."""
        frames = (ethernet_frame(payload, source, destination) for payload in payloads)
        self._write(b"".join(pcap_record(time_s, frame) for frame in frames))

    def _write(self, data: bytes) -> None:
        try:
            files.append(self._file, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()


def _regular(path: str) -> bool:
    """Whether it is an ordinary file, or will be one: others (a pipe, /dev/stdout) cannot be read back."""
    return not os.path.exists(path) or os.path.isfile(path)


class PcapTransport:
    """Wraps a transport. `here` and `there` are the addresses that the capture shows; `clock` is seconds since 1970.

    A capture whose disk is full ends with a warning in the log; what it captures goes on.
    """

    def __init__(
        self,
        inner: Transport,
        writer: PcapWriter,
        here: SocketAddress,
        there: SocketAddress,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._inner = inner
        self._writer = writer
        self._here = here
        self._there = there
        self._clock = clock
        self._ended = False

    @property
    def trouble(self) -> str:
        """The complaint of the inner transport."""
        return self._inner.trouble

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Record and send all."""
        batch = list(datagrams)
        self._record(self._here, self._there, batch)
        self._inner.send(batch)

    def receive(self, timeout_s: float) -> list[Datagram]:
        """Receive and record all."""
        arrived = self._inner.receive(timeout_s)
        if arrived:
            self._record(self._there, self._here, arrived)
        return arrived

    def _record(self, source: SocketAddress, destination: SocketAddress, datagrams: list[Datagram]) -> None:
        if self._ended:
            return
        try:
            self._writer.write(self._clock(), source, destination, [data for data, _ in datagrams])
        except OSError as error:
            self._ended = True
            log.warning("capture file %s ends here: %s", self._writer.path, files.in_words(error))

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._inner.wake()

    def close(self) -> None:
        """Close the inner transport and the file."""
        self._inner.close()
        self._writer.close()
