"""The switch's ZeroMQ port: a ROUTER socket over TCP, whose peers have identities that it chose itself."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

import zmq

from fanin.addresses import AddressBook
from fanin.errors import ConfigurationError
from fanin.job import HEARTBEAT_INTERVAL_S, LIVENESS_HEARTBEATS, SWITCH_LIVENESS_TIMEOUT_S
from fanin.switch.hang_ups import HangUps
from fanin.switch.transports.waker import Waker
from fanin.transport import MAX_BATCH, Datagram
from fanin.wire import MAX_DATAGRAM_BYTES

DATAGRAMS_PER_MESSAGE = 32
"""Most datagrams in one message: enough to make its cost small, few enough not to hold back the first."""
QUEUED_MESSAGES = 256
"""High-water mark per peer; what a peer does not read beyond it is dropped, and other peers do not wait."""
LINGER_MS = 200
"""How long closing waits for what was sent last to leave."""


class ZmqServerTransport:
    """A socket bound to `host` and `port` (0: any free one, see `port`). ConfigurationError when that cannot be had.

    With `curve_secret_key` (Z85) every connection is encrypted and one without the matching public key is refused.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        curve_secret_key: str | None,
        liveness_timeout_s: float = SWITCH_LIVENESS_TIMEOUT_S,
    ) -> None:
        """A connection counts as closed when nothing has come over it for almost `liveness_timeout_s`."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._hang_ups = HangUps(self._socket)
        self._waker = Waker()
        try:
            self._keep_alive(liveness_timeout_s)
            self.port = self._bind(host, port, curve_secret_key)
        except (zmq.ZMQError, UnicodeError) as error:
            self.close()
            raise ConfigurationError(f"zmq port {port} of {host!r} cannot be had: {error}") from error
        self._peers: AddressBook[bytes] = AddressBook()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._waker.fileno(), zmq.POLLIN)

    @property
    def trouble(self) -> str:
        """A ROUTER drops without complaint."""
        return ""

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send all, each peer's together. What goes to a peer that is gone, or does not read, is dropped."""
        by_peer: dict[int, list[bytes]] = {}
        for data, address in datagrams:
            by_peer.setdefault(address, []).append(data)
        for address, frames in by_peer.items():
            identity = self._peers.key(address)
            if identity is None:
                continue
            for first in range(0, len(frames), DATAGRAMS_PER_MESSAGE):
                self._socket.send_multipart([identity, *frames[first : first + DATAGRAMS_PER_MESSAGE]])

    def receive(self, timeout_s: float) -> list[Datagram]:
        """At most MAX_BATCH datagrams, or those of one message more."""
        for ready, _ in self._poller.poll(ceil(max(timeout_s, 0.0) * 1000)):
            if ready is not self._socket:
                self._waker.drain()
        arrived: list[Datagram] = []
        while len(arrived) < MAX_BATCH:
            try:
                identity, *frames = self._hang_ups.receive()
            except zmq.Again:
                break
            address = self._peers.number(identity)
            arrived += [(frame, address) for frame in frames]
        return arrived

    def connected(self, address: int) -> bool:
        """Whether the peer's connection is open: then its process runs, whether it says anything or not."""
        self._hang_ups.gone()
        identity = self._peers.key(address)
        return identity is not None and self._hang_ups.knows(identity)

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._waker.wake()

    def close(self) -> None:
        """Close the socket, giving the last messages LINGER_MS."""
        if not self._context.closed:
            self._hang_ups.close()
            self._socket.close(linger=LINGER_MS)
            self._context.term()
        self._waker.close()

    def _keep_alive(self, liveness_timeout_s: float) -> None:
        """Have libzmq ask the peers' for a sign of life, which threads of theirs answer that need no interpreter.

        A peer that is stopped answers nothing, and its connection is closed before it counts as lost.
        """
        interval_s = min(HEARTBEAT_INTERVAL_S, liveness_timeout_s / LIVENESS_HEARTBEATS)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, round(interval_s * 1000))
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round((liveness_timeout_s - 2 * interval_s) * 1000))

    def _bind(self, host: str, port: int, curve_secret_key: str | None) -> int:
        self._socket.set_hwm(QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_DATAGRAM_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        if curve_secret_key is not None:
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, curve_secret_key.encode())
        self._socket.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}")
        return int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
