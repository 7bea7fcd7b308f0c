"""The ports of an emulated switch that stands by itself: numbers, what is behind them, and captures of what passes."""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fanin.errors import ConfigurationError
from fanin.formats.capture import pcap_header, pcap_record
from fanin.p4_ports import DROP_PORT
from fanin.switch.p4runtime.server.link_states import LinkStates
from fanin.switch.p4runtime.server.native_ports import NativePorts, Receive, ReceiveNatively, native_ports
from fanin.switch.p4runtime.server.raw_port import RawPort
from fanin.switch.p4runtime.server.udp_port import MAX_BATCH, UdpPort

MAX_PORTS = 256
UDP = "udp:"
"""Prefix of the address of a UDP socket; anything else is the name of an interface."""


class Port(Protocol):
    """The device behind a port's number."""

    name: str
    interface: int | None
    """The index of the network interface whose state is the port's; None: it is always up."""

    def fileno(self) -> int: ...
    def receive(self) -> bytes | None: ...
    def send(self, data: bytes) -> bool: ...
    def add_to(self, native: Any, number: int) -> None: ...
    def close(self) -> None: ...


class Capture:
    """Captures of a port, as BMv2 writes them: a pcap file of packets in, and one of packets out."""

    def __init__(self, folder: Path, name: str) -> None:
        """ConfigurationError where the files cannot be written."""
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
        """A frame passes now. Raises OSError when the disk is full."""
        self._files[out].write(pcap_record(time.time(), data))

    def close(self) -> None:
        """Close both files of the capture."""
        for file in self._files:
            file.close()


class PortSet:
    """All ports of a switch. One thread takes in what arrives; `transmit` may be called from any."""

    def __init__(self, described: Mapping[int, str], captures: Path | None = None) -> None:
        """`described`: by number, `udp:HOST:PORT` or an interface. ConfigurationError for what cannot be had.

        `captures` is a folder for what passes the ports.
        """
        self.unsent = 0
        """Frames that a port could not send, or that left through a number behind which nothing is."""
        self.failed: BaseException | None = None
        """The exception that ended the thread that takes in packets."""
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
        """Numbers, and what is behind them."""
        return ", ".join(f"{number}={port.name}" for number, port in self._ports.items()) or "none"

    def start(
        self,
        receive: Receive,
        receive_natively: ReceiveNatively | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Hand over what arrives, in a thread, until `close`; `failed` is called when an error ends it before.

        With `receive_natively` native code looks after the ports, unless what passes is captured (native_ports.py).
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
        """Say which ports are down, and from then on, in a thread, which go down or come up: `changed(number, up)`.

        Where netlink cannot be had, all of them count as up.
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
        """Wait, and hand over what has arrived, at most MAX_BATCH frames of each port; False: it is time to end."""
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
        """A frame leaves through a port."""
        port = self._ports.get(number)
        if port is None or not port.send(data):
            self.unsent += 1
            return
        if (capture := self._captures.get(number)) is not None:
            capture.note(data, out=True)

    def close(self) -> None:
        """Stop, and give everything up."""
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
        raise ConfigurationError(f"port {where!r}: expected udp:HOST:PORT")
    return UdpPort(host, int(port))


def read_ports(texts: Sequence[str], cpu_port: int) -> dict[int, str]:
    """`1=udp:127.0.0.1:5000,2=veth0`, perhaps in several pieces, by number. ConfigurationError for anything else."""
    ports: dict[int, str] = {}
    for part in (part for text in texts for part in text.split(",")):
        number, equals, where = part.partition("=")
        number = number.strip()
        if not equals or not where or not number.isascii() or not number.isdigit() or len(number) > 3:
            raise ConfigurationError(f"--port {part!r}: expected NUMBER=INTERFACE or NUMBER=udp:HOST:PORT")
        if not 0 <= int(number) < DROP_PORT or int(number) == cpu_port or int(number) in ports:
            raise ConfigurationError(
                f"--port {part!r}: the number must be in 0..{DROP_PORT - 1}, given once, and not --cpu-port's "
                f"{cpu_port}"
            )
        ports[int(number)] = where
    if len(ports) > MAX_PORTS:
        raise ConfigurationError(f"--port: {len(ports)} ports; at most {MAX_PORTS}")
    return ports
