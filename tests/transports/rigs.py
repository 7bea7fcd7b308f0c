"""Pairs of a switch's and workers' transports that are connected, one rig per kind, for the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import zmq

from fanin.host.transports import MemoryTransport, UdpTransport, ZmqTransport
from fanin.switch.transports.udp import UdpServerTransport
from fanin.switch.transports.zmq import ZmqServerTransport
from fanin.transports.transport import Datagram, Transport

DEADLINE_S = 30.0
"""Far more than loopback needs; only a test that fails waits for it."""


class Rig:
    """A switch's transport, and as many workers' as are asked for."""

    def __init__(self, switch: Transport, connect: Callable[[], Transport]) -> None:
        self.switch = switch
        self._connect = connect
        self._workers = ExitStack()

    def worker(self) -> Transport:
        """One more worker's end."""
        worker = self._connect()
        self._workers.callback(worker.close)
        return worker

    def close(self) -> None:
        """Close every end of the rig."""
        self._workers.close()
        self.switch.close()


def udp_rig() -> Rig:
    """A rig of UDP sockets on loopback."""
    switch = UdpServerTransport("127.0.0.1", 0)
    return Rig(switch, lambda: UdpTransport("127.0.0.1", switch.port))


def zmq_rig() -> Rig:
    """A rig of TCP connections on loopback."""
    switch = ZmqServerTransport("127.0.0.1", 0, curve_secret_key=None)

    def connect() -> ZmqTransport:
        """The switch's end shakes hands in `receive`, which its pump calls all the time."""
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(
                ZmqTransport, "127.0.0.1", switch.port, curve_server_key=None, connect_timeout_s=DEADLINE_S
            )
            while not connecting.done():
                assert not switch.receive(0.01)
            return connecting.result()

    return Rig(switch, connect)


def curve_rig() -> Rig:
    """TCP on loopback, encrypted."""
    public, secret = zmq.curve_keypair()
    switch = ZmqServerTransport("127.0.0.1", 0, curve_secret_key=secret.decode())
    return Rig(
        switch,
        lambda: ZmqTransport("127.0.0.1", switch.port, curve_server_key=public.decode(), connect_timeout_s=DEADLINE_S),
    )


def memory_rig() -> Rig:
    """A rig of queues in memory."""
    switch = MemoryTransport()

    def connect() -> MemoryTransport:
        worker = MemoryTransport()
        switch.connect(worker)
        return worker

    return Rig(switch, connect)


RIGS: dict[str, Callable[[], Rig]] = {"udp": udp_rig, "zmq": zmq_rig, "zmq+curve": curve_rig, "memory": memory_rig}


@contextmanager
def opened(name: str) -> Iterator[Rig]:
    """A rig that is closed afterwards."""
    rig = RIGS[name]()
    try:
        yield rig
    finally:
        rig.close()


def receive_exactly(transport: Transport, count: int) -> list[Datagram]:
    """Receive until `count` datagrams have come; AssertionError when they do not."""
    arrived: list[Datagram] = []
    while len(arrived) < count:
        more = transport.receive(DEADLINE_S)
        assert more, f"{len(arrived)} of {count} datagrams came within {DEADLINE_S} s"
        arrived += more
    assert len(arrived) == count
    return arrived
