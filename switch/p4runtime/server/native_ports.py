"""Ports served by native code: many frames per system call, and no Python object per frame (native/p4/p4_ports.hpp).

It receives and sends frames on sockets that ports of this package have opened, while the native interpreter runs the
program. Otherwise it hands the received frames over to Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from fanin.extension import native_extension

Receive = Callable[[Sequence[tuple[int, bytes]]], None]
"""Function that processes packets, each with the number of its port."""
ReceiveNatively = Callable[[Any, int], bool]
"""Function that processes so many packets of native ports; False if the program does not run natively."""


class AddsItself(Protocol):
    """A port whose socket native code can use."""

    def add_to(self, native: Any, number: int) -> None: ...


class NativePorts:
    """The sockets of native ports. One thread calls `serve`; `stop` may be called from any."""

    def __init__(self, extension: Any, ports: Iterable[tuple[int, AddsItself]]) -> None:
        self._ports = extension.P4Ports()
        for number, port in ports:
            port.add_to(self._ports, number)

    def serve(self, receive: Receive, receive_natively: ReceiveNatively, unsent: Callable[[int], None]) -> None:
        """Receive and process frames until `stop`; `unsent(count)` is called for frames that a port could not send."""
        while count := self._ports.receive():
            if not receive_natively(self._ports, count):
                receive(self._ports.frames())
            elif lost := self._ports.flush():
                unsent(lost)

    def stop(self) -> None:
        """End the loop of `serve`."""
        self._ports.stop()


def native_ports(ports: Iterable[tuple[int, AddsItself]]) -> NativePorts | None:
    """Native ports with these sockets; None if the native extension is not used."""
    extension = native_extension(None)
    return None if extension is None else NativePorts(extension, ports)
