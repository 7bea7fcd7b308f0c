"""Writes every datagram that passes through into a capture file that Wireshark, tcpdump and scapy open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from fanin.errors import ConfigurationError
from fanin.framing import Endpoint, ethernet_frame, pcap_header, pcap_record
from fanin.transport import Datagram, Transport


class PcapWriter:
    """Appends to one capture file; jobs, flows and successive runs may share it, since a record is written whole."""

    def __init__(self, path: str) -> None:
        header = pcap_header()
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by close
        except OSError as error:
            raise ConfigurationError(f"capture file {path!r} cannot be written: {error.strerror}") from error
        self._file.seek(0)
        found = self._file.read(len(header))
        if found and found != header:
            self._file.close()
            raise ConfigurationError(f"{path!r} exists and is no capture of fanin's: remove it, or name another file")
        if not found:
            self._file.write(header)

    def write(self, time_s: float, source: Endpoint, destination: Endpoint, payloads: Iterable[bytes]) -> None:
        """Record datagrams, all at `time_s` seconds since 1970."""
        frames = (ethernet_frame(payload, source, destination) for payload in payloads)
        self._file.write(b"".join(pcap_record(time_s, frame) for frame in frames))

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()


class PcapTransport:
    """Wraps a transport. `here` and `there` are the addresses that the capture shows; `clock` is seconds since 1970."""

    def __init__(
        self,
        inner: Transport,
        writer: PcapWriter,
        here: Endpoint,
        there: Endpoint,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._inner = inner
        self._writer = writer
        self._here = here
        self._there = there
        self._clock = clock

    @property
    def trouble(self) -> str:
        """The inner transport's."""
        return self._inner.trouble

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Record and send all."""
        batch = list(datagrams)
        self._writer.write(self._clock(), self._here, self._there, [data for data, _ in batch])
        self._inner.send(batch)

    def receive(self, timeout_s: float) -> list[Datagram]:
        """Receive and record all."""
        arrived = self._inner.receive(timeout_s)
        if arrived:
            self._writer.write(self._clock(), self._there, self._here, [data for data, _ in arrived])
        return arrived

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._inner.wake()

    def close(self) -> None:
        """Close the inner transport and the file."""
        self._inner.close()
        self._writer.close()
