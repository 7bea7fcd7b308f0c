"""ZeroMQ (a DEALER socket over TCP), for networks where UDP is not welcome, optionally encrypted with CURVE.

Many datagrams travel as the frames of one message, so that the cost of a message is not paid per packet. TCP loses
nothing on the way, but a peer that does not keep up loses whole messages at the high-water mark, and a broken
connection loses what was under way; so the machines' recovery stays in charge, as over UDP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import islice
from math import ceil
from time import monotonic

import zmq
from zmq.utils.monitor import recv_monitor_message

from fanin.addresses import host_and_port
from fanin.curve import encrypt_client
from fanin.errors import SwitchUnreachableError
from fanin.host.transports.forking import OwnConnection
from fanin.protocol.wire import MAX_DATAGRAM_BYTES
from fanin.schemes import WorkerEnd
from fanin.transports.batching import DATAGRAMS_PER_MESSAGE, LINGER_MS, QUEUED_MESSAGES
from fanin.transports.transport import MAX_BATCH, SWITCH, Datagram
from fanin.transports.waker import Waker

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WATCHED = (
    _HANDSHAKE_FAILED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
)


def open_worker(end: WorkerEnd) -> ZmqTransport:
    """Open the transport for the table of schemes."""
    return ZmqTransport(
        end.host, end.port, curve_server_key=end.curve_server_key, connect_timeout_s=end.connect_timeout_s
    )


class ZmqTransport:
    """A connection to `zmq://host:port`, open (and with a key, encrypted) when the constructor returns.

    `curve_server_key` is the switch's public key in Z85. This end has a key pair of its own (fanin/curve.py), by which
    a switch may admit it or not; its token, not its key, identifies a worker. Raises SwitchUnreachableError, within
    `connect_timeout_s`, when nobody listens, the name does not resolve, or the key is not the switch's.
    """

    def __init__(self, host: str, port: int, *, curve_server_key: str | None, connect_timeout_s: float) -> None:
        at = host_and_port(host, port)
        self._address = f"zmq://{at}"
        self._trouble = ""
        self._connection = OwnConnection(port)
        with contextlib.ExitStack() as opened:  # where files run out half way, too, nothing stays open
            self._waker = Waker()
            opened.callback(self._waker.close)
            self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            opened.callback(self._context.term)
            self._socket = self._context.socket(zmq.DEALER)
            opened.callback(self.close)
            self._poller = zmq.Poller()
            self._poller.register(self._socket, zmq.POLLIN)
            self._poller.register(self._waker.fileno(), zmq.POLLIN)
            self._configure(curve_server_key)
            self._connect(f"tcp://{at}", connect_timeout_s, curve_server_key is not None)
            opened.pop_all()

    @property
    def trouble(self) -> str:
        """A full send queue, in words, until something is received."""
        return self._trouble

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send all, DATAGRAMS_PER_MESSAGE at a time; drops the rest when the queue is full."""
        pending = iter(datagrams)
        while frames := [data for data, _ in islice(pending, DATAGRAMS_PER_MESSAGE)]:
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                self._trouble = f"{self._address}: the send queue is full: the switch does not keep up, or is gone"
                return

    def receive(self, timeout_s: float) -> list[Datagram]:
        """Return the waiting datagrams. Reading ends with the message that makes them MAX_BATCH or more."""
        arrived: list[Datagram] = []
        for ready, _ in self._poller.poll(ceil(max(timeout_s, 0.0) * 1000)):
            if ready is not self._socket:
                self._waker.drain()
        while len(arrived) < MAX_BATCH:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            arrived += [(frame, SWITCH) for frame in frames]
            self._trouble = ""
        return arrived

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._waker.wake()

    def close(self) -> None:
        """Close the socket, giving the last messages LINGER_MS."""
        self._connection.descriptor = None
        if not self._context.closed:
            self._socket.close(linger=LINGER_MS)
            self._context.term()
        self._waker.close()

    def _configure(self, curve_server_key: str | None) -> None:
        self._socket.set_hwm(QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_DATAGRAM_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        if curve_server_key is not None:
            encrypt_client(self._socket, curve_server_key)

    def _connect(self, url: str, timeout_s: float, encrypted: bool) -> None:
        """Connect and wait for the handshake, which the socket's monitor reports."""
        monitor = self._socket.get_monitor_socket(_WATCHED)
        deadline = monotonic() + timeout_s
        try:
            self._socket.connect(url)
            refused = False
            while monitor.poll(ceil(max(deadline - monotonic(), 0.0) * 1000)):
                message = recv_monitor_message(monitor)
                event = message["event"]
                if event == zmq.EVENT_CONNECTED:
                    self._connection.descriptor = int(message["value"])
                    continue
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    return
                if event & _HANDSHAKE_FAILED:
                    key = (
                        "curve_server_key is not its public key" if encrypted else "it wants curve_server_key to be set"
                    )
                    raise self._unreachable(
                        f"the switch refused the handshake: {key}, or it is not a fanin switch. Remedy: correct the "
                        "key or the address"
                    )
                refused = True
        except zmq.ZMQError as error:
            raise self._unreachable(f"{error}. Remedy: correct the switch's address") from error
        finally:
            self._socket.disable_monitor()
            monitor.close(linger=0)
        why = "nothing listens there, or a firewall refuses" if refused else "no answer: wrong address, or a firewall"
        raise self._unreachable(
            f"{why} (tried for {timeout_s:g} s). Remedy: see whether the switch runs, and correct its address"
        )

    def _unreachable(self, text: str) -> SwitchUnreachableError:
        return SwitchUnreachableError(self._address, f"{self._address}: {text}")
