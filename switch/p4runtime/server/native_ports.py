"""Ports that native code looks after: many frames to a system call, no Python object for each (native/p4/p4_ports.hpp).

It takes in and sends frames of the sockets that the ports here have opened, for as long as the native interpreter runs
the program. Where it does not, frames are handed over one by one, as the ports here would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from fanin.extension import native_extension

Receive = Callable[[Sequence[tuple[int, bytes]]], None]
"""Takes in packets, each with the number of its port."""
ReceiveNatively = Callable[[Any, int], bool]
"""Takes in so many packets that native ports have; False where the program that runs is not native."""


class AddsItself(Protocol):
    """A port whose socket native code can use."""

    def add_to(self, native: Any, number: int) -> None: ...


class NativePorts:
    """The sockets of some ports. One thread serves; `stop` may be called from any."""

    def __init__(self, extension: Any, ports: Iterable[tuple[int, AddsItself]]) -> None:
        self._ports = extension.P4Ports()
        for number, port in ports:
            port.add_to(self._ports, number)

    def serve(self, receive: Receive, receive_natively: ReceiveNatively, unsent: Callable[[int], None]) -> None:
        """Until `stop`; `unsent(count)` hears of frames that a port could not send."""
        while count := self._ports.receive():
            if not receive_natively(self._ports, count):
                receive(self._ports.frames())
            elif lost := self._ports.flush():
                unsent(lost)

    def stop(self) -> None:
        """End the loop of `serve`."""
        self._ports.stop()


def native_ports(ports: Iterable[tuple[int, AddsItself]]) -> NativePorts | None:
    """None where the native extension is not used."""
    extension = native_extension(None)
    return None if extension is None else NativePorts(extension, ports)
