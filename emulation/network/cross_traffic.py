"""TCP flows that share an emulated cluster's links with a measurement; this process holds both ends of each.

Flow i goes from host i to host i + 1 (modulo the hosts), as fast as the kernel's congestion control allows, so with as
many flows as hosts every link carries one flow each way. The sockets are opened inside the hosts' namespaces; one
thread of this process serves all of them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.namespaces import inside
from fanin.errors import ConfigurationError, UnsupportedError

MAX_FLOWS = 64
CONGESTION_CONTROL = b"cubic"
FIRST_PORT = 28_000
CHUNK = bytes(1 << 16)
READ_BYTES = 1 << 18
CONNECT_LIMIT_S = 10.0
POLL_S = 0.1


def check_flows(flows: int, hosts: int) -> None:
    """Raise ConfigurationError if `flows` TCP flows are too many, or have no second host to go to."""
    if not 0 <= flows <= MAX_FLOWS:
        raise ConfigurationError(f"tcp_flows = {flows}; must be in 0..{MAX_FLOWS}", "tcp_flows")
    if flows and hosts < 2:
        raise ConfigurationError(
            f"tcp_flows = {flows}: a flow goes from one host to another, and there is only one",
            "tcp_flows, or the number of workers",
        )


class CrossTraffic:
    """Flows that run from entry to exit. A context manager."""

    def __init__(self, fabric: Fabric, flows: int) -> None:
        check_flows(flows, fabric.topology.hosts)
        self._fabric, self._flows = fabric, flows
        self._sockets: list[socket.socket] = []
        self._received = [0] * flows
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fanin cross traffic", daemon=True)
        self._began_s = self._ended_s = 0.0

    def __enter__(self) -> CrossTraffic:
        self._selector = selectors.DefaultSelector()
        try:
            for flow in range(self._flows):
                self._open(flow)
        except BaseException:
            self._close()
            raise
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._ended_s = time.monotonic()
        self._close()

    def received(self) -> tuple[int, ...]:
        """Bytes of payload that have arrived so far, by flow."""
        return tuple(self._received)

    def in_words(self) -> str:
        """The rate of each flow, as a line for people."""
        seconds = max((self._ended_s or time.monotonic()) - self._began_s, 1e-9)
        rates = ", ".join(f"{count * 8e-6 / seconds:.1f}" for count in self._received)
        return f"{self._flows} TCP flow{'s' * (self._flows != 1)} beside: {rates} Mbit/s of payload"

    def _open(self, flow: int) -> None:
        topology = self._fabric.topology
        source, target = flow % topology.hosts, (flow + 1) % topology.hosts
        address = (topology.host_address(target), FIRST_PORT + flow)
        with inside(self._fabric.host_namespace(target), lambda: _listening(address)) as listener:
            sender = inside(self._fabric.host_namespace(source), lambda: _connected(address))
            self._sockets.append(sender)
            receiver, _ = listener.accept()
            self._sockets.append(receiver)
        for each in (sender, receiver):
            each.setblocking(False)
        self._selector.register(sender, selectors.EVENT_WRITE, None)
        self._selector.register(receiver, selectors.EVENT_READ, flow)

    def _run(self) -> None:
        buffer = bytearray(READ_BYTES)
        while not self._over.is_set():
            for key, _ in self._selector.select(POLL_S):
                end: socket.socket = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(BlockingIOError):
                    if key.data is None:
                        end.send(CHUNK)
                        continue
                    count = end.recv_into(buffer)
                    self._received[key.data] += count
                    if not count:
                        self._selector.unregister(end)

    def _close(self) -> None:
        self._selector.close()
        for each in self._sockets:
            each.close()
        self._sockets = []


def _listening(address: tuple[str, int]) -> socket.socket:
    listener = socket.create_server(address, backlog=1)
    listener.settimeout(CONNECT_LIMIT_S)
    return listener


def _connected(address: tuple[str, int]) -> socket.socket:
    sender = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        try:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
        except OSError as error:
            raise UnsupportedError(
                f"--tcp-flows: this kernel has no congestion control named {CONGESTION_CONTROL.decode()} "
                f"({error.strerror}). Remedy: load the module tcp_cubic, or leave the flows out"
            ) from None
        sender.settimeout(CONNECT_LIMIT_S)
        sender.connect(address)
    except BaseException:
        sender.close()
        raise
    return sender
