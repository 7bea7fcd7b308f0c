"""The ports of a standalone emulated switch: their numbers, sockets or interfaces, and captures of their packets."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fanin import files
from fanin.errors import ConfigurationError
from fanin.formats.capture import pcap_header, pcap_record
from fanin.p4_ports import DROP_PORT
from fanin.switch.p4runtime.server.link_states import LinkStates
from fanin.switch.p4runtime.server.native_ports import NativePorts, Receive, ReceiveNatively, native_ports
from fanin.switch.p4runtime.server.raw_port import RawPort
from fanin.switch.p4runtime.server.udp_port import MAX_BATCH, UdpPort

log = logging.getLogger("fanin")

MAX_PORTS = 256
UDP = "udp:"
"""Prefix of a port's address that is a UDP socket; any other address is the name of an interface."""


class Port(Protocol):
    """A socket or interface that serves a port of the switch."""

    name: str
    interface: int | None
    """Index of the network interface whose state is the port's; None: the port is always up."""

    def fileno(self) -> int: ...
    def receive(self) -> bytes | None: ...
    def send(self, data: bytes) -> bool: ...
    def add_to(self, native: Any, number: int) -> None: ...
    def close(self) -> None: ...


class Capture:
    """Captures of a port, as BMv2 writes them: a pcap file of packets in, and one of packets out."""

    def __init__(self, folder: Path, name: str) -> None:
        """Open both files. ConfigurationError if they cannot be written."""
        self._ended = False
        plain = name.replace("/", "_").replace(":", "_")
        self._files: list[io.FileIO] = []
        try:
            for direction in ("in", "out"):
                file = open(folder / f"{plain}_{direction}.pcap", "wb", buffering=0)  # noqa: SIM115 (`close` does)
                self._files.append(file)
                file.write(pcap_header())
        except (OSError, ValueError) as error:
            self.close()
            raise ConfigurationError(
                f"--pcap {folder}: {getattr(error, 'strerror', None) or error}. Remedy: a folder that is there"
            ) from None

    def note(self, data: bytes, *, out: bool) -> None:
        """Write a frame with the current time. The capture ends, with a line in the log, where the disk is full."""
        if self._ended:
            return
        file = self._files[out]
        try:
            files.append(file, pcap_record(time.time(), data))
        except OSError as error:
            self._ended = True
            log.warning("capture file %s ends here: %s", files.name(str(file.name)), files.in_words(error))

    def close(self) -> None:
        """Close both files of the capture."""
        for file in self._files:
            file.close()


class PortSet:
    """All ports of a switch. One thread receives frames; `transmit` may be called from any."""

    def __init__(self, described: Mapping[int, str], captures: Path | None = None) -> None:
        """Open ports: `described` has, by number, `udp:HOST:PORT` or an interface. ConfigurationError if one fails.

        `captures`: folder for captures of all frames; None: without.
        """
        self.unsent = 0
        """Frames that a port could not send, or that left through a number without a port."""
        self.failed: BaseException | None = None
        """The exception that ended the receiving thread; None while it runs."""
        self._ports: dict[int, Port] = {}
        self._captures: dict[int, Capture] = {}
        self._thread: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        self._native: NativePorts | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        try:
            for number, where in described.items():
                self._ports[number] = port = _opened(where)
                if captures is not None:
                    self._captures[number] = Capture(captures, port.name)
                self._selector.register(port.fileno(), selectors.EVENT_READ, number)
        except BaseException:
            self.close()
            raise
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)

    @property
    def description(self) -> str:
        """The ports' numbers and names, in words."""
        return ", ".join(f"{number}={port.name}" for number, port in self._ports.items()) or "none"

    def start(
        self,
        receive: Receive,
        receive_natively: ReceiveNatively | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Pass received frames to `receive`, in a thread, until `close`; `failed` is called if an error ends it before.

        With `receive_natively`, native code serves the ports, unless frames are captured (native_ports.py).
        """
        if receive_natively is not None and not self._captures:
            self._native = native_ports(self._ports.items())

        def serve() -> None:
            try:
                if self._native is not None and receive_natively is not None:
                    self._native.serve(receive, receive_natively, self._lose)
                    return
                while self._take_in(receive):
                    pass
            except BaseException as error:
                self.failed = error
                failed()

        self._thread = threading.Thread(target=serve, name="fanin p4 ports", daemon=True)
        self._thread.start()

    def watch(self, changed: Callable[[int, bool], None]) -> None:
        """Report ports that are down, and from then on, in a thread, every change, by calling `changed(number, up)`.

        Without netlink, all ports count as up.
        """
        known = dict.fromkeys((port.interface for port in self._ports.values() if port.interface is not None), True)
        if not known:
            return
        try:
            links = LinkStates()
        except OSError:
            return

        def tell(index: int, up: bool) -> None:
            if known.get(index, up) != up:
                known[index] = up
                for number, port in self._ports.items():
                    if port.interface == index:
                        changed(number, up)

        def listen() -> None:
            with contextlib.closing(links):
                for index, up in links.changes(self._wake_reader):
                    tell(index, up)

        now = links.all()
        for index in list(known):
            tell(index, now.get(index, False))
        self._watcher = threading.Thread(target=listen, name="fanin p4 links", daemon=True)
        self._watcher.start()

    def _lose(self, count: int) -> None:
        self.unsent += count

    def _take_in(self, receive: Receive) -> bool:
        """Wait for frames and pass them on, at most MAX_BATCH of each port; False once `close` was called."""
        batch: list[tuple[int, bytes]] = []
        for key, _ in self._selector.select():
            if key.data is None:
                return False
            port, capture = self._ports[key.data], self._captures.get(key.data)
            for _ in range(MAX_BATCH):
                if (data := port.receive()) is None:
                    break
                batch.append((key.data, data))
                if capture is not None:
                    capture.note(data, out=False)
        if batch:
            receive(batch)
        return True

    def transmit(self, number: int, data: bytes) -> None:
        """Send a frame through a port, and capture it; count it as unsent if that fails."""
        port = self._ports.get(number)
        if port is None or not port.send(data):
            self.unsent += 1
            return
        if (capture := self._captures.get(number)) is not None:
            capture.note(data, out=True)

    def close(self) -> None:
        """Stop the threads, and close all ports and captures."""
        os.write(self._wake_writer, b"\0")
        if self._thread is not None:
            if self._native is not None:
                self._native.stop()
            self._thread.join()
        if self._watcher is not None:
            self._watcher.join()
        for port in self._ports.values():
            port.close()
        for capture in self._captures.values():
            capture.close()
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)


def _opened(where: str) -> Port:
    if not where.startswith(UDP):
        return RawPort(where)
    host, colon, port = where.removeprefix(UDP).rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise ConfigurationError(f"port {where!r}: expected udp:HOST:PORT", "--port")
    return UdpPort(host, int(port))


def read_ports(texts: Sequence[str], cpu_port: int) -> dict[int, str]:
    """Ports by number, from texts such as `1=udp:127.0.0.1:5000,2=veth0`. ConfigurationError for any other text."""
    ports: dict[int, str] = {}
    for part in (part for text in texts for part in text.split(",")):
        number, equals, where = part.partition("=")
        number = number.strip()
        if not equals or not where or not number.isascii() or not number.isdigit() or len(number) > 3:
            raise ConfigurationError(f"--port {part!r}: expected NUMBER=INTERFACE or NUMBER=udp:HOST:PORT", "--port")
        if not 0 <= int(number) < DROP_PORT or int(number) == cpu_port or int(number) in ports:
            raise ConfigurationError(
                f"--port {part!r}: the number must be in 0..{DROP_PORT - 1}, given once, and not --cpu-port's "
                f"{cpu_port}",
                "--port",
            )
        ports[int(number)] = where
    if len(ports) > MAX_PORTS:
        raise ConfigurationError(f"--port: {len(ports)} ports; at most {MAX_PORTS}. Remedy: give fewer")
    return ports
