"""A switch service in a thread of the test process: real sockets, no process to start."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from fanin.options import SwitchAddress
from fanin.protocol.seal import Credentials
from fanin.switch.service.service import ServiceOptions, SwitchService

OPERATOR_KEY = bytes(range(32))
OPERATOR = Credentials(OPERATOR_KEY, discloses=False)
"""Credentials of these services' operator, who is told everything."""


@contextlib.contextmanager
def a_service(**given: object) -> Iterator[SwitchService]:
    """A service on loopback, on any free port, for both carriers, that is closed afterwards."""
    usual = {"host": "127.0.0.1", "port": 0, "memory_bytes": 64 << 20, "schemes": ("udp", "zmq")}
    usual |= {"operator_key": OPERATOR_KEY}
    options = ServiceOptions(**{**usual, **given})  # type: ignore[arg-type]
    with contextlib.closing(SwitchService(options)) as service:
        running = threading.Thread(target=service.run)
        running.start()
        try:
            yield service
        finally:
            service.stop()
            running.join()


@contextlib.contextmanager
def refusing_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[int]:
    """A port of loopback at which nothing listens and that nobody else can open meanwhile: whoever asks is refused."""
    with socket.socket(socket.AF_INET, kind) as holder:
        holder.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_DGRAM:
            holder.connect(("127.0.0.1", 9))  # a connected socket takes datagrams from there alone (`discard`, RFC 863)
        yield int(holder.getsockname()[1])


def address_of(service: SwitchService, scheme: str = "udp") -> SwitchAddress:
    """Address of a service for its workers."""
    return SwitchAddress("zmq" if scheme == "zmq" else "udp", "127.0.0.1", service.port)
