"""The switch's ZeroMQ port, which assigns the routes of its peers itself.

Unencrypted, it is our own listener (switch/transports/listener.py), since libzmq bounds frames but not messages. With
CURVE it is a ROUTER socket of libzmq, optionally with a list of accepted clients.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from math import ceil

import zmq

from fanin.errors import ConfigurationError
from fanin.formats.zmtp import ZmtpLimits
from fanin.protocol.job import HEARTBEAT_INTERVAL_S, LIVENESS_HEARTBEATS, SWITCH_LIVENESS_TIMEOUT_S
from fanin.protocol.wire import MAX_DATAGRAM_BYTES
from fanin.schemes import SwitchEnd
from fanin.switch.transports.curve_port import CurvePort
from fanin.switch.transports.listener import Heartbeat, Listener
from fanin.transports.batching import DATAGRAMS_PER_MESSAGE, LINGER_MS, QUEUED_MESSAGES
from fanin.transports.peer_numbers import AddressBook
from fanin.transports.transport import MAX_BATCH, Datagram
from fanin.transports.waker import Waker

MESSAGES_PER_TURN = 8
LIMITS = ZmtpLimits(
    frame_bytes=MAX_DATAGRAM_BYTES,
    frames=DATAGRAMS_PER_MESSAGE,
    message_bytes=DATAGRAMS_PER_MESSAGE * MAX_DATAGRAM_BYTES,
)
READ_BYTES = 1 << 18
MAX_UNREAD_BYTES = 1 << 23
"""Bytes that may wait to be sent to one peer: half of the widest window."""
PATIENCE_S = 60.0
"""Silence after which a connection is closed; a worker that was stopped opens another."""


def open_switch(end: SwitchEnd) -> ZmqServerTransport:
    """Open the transport for the table of schemes."""
    return ZmqServerTransport(
        end.host,
        end.port,
        curve_secret_key=end.curve_secret_key,
        curve_clients=end.curve_clients,
        liveness_timeout_s=end.liveness_timeout_s,
    )


class ZmqServerTransport:
    """A socket bound to `host` and `port` (0: any free one, see `port`). ConfigurationError if it is not available.

    With `curve_secret_key` (Z85) every connection is encrypted. Clients without the matching public key are refused,
    and so are those whose own public key is not in `curve_clients`, unless that is None.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        curve_secret_key: str | None,
        curve_clients: Collection[str] | None = None,
        liveness_timeout_s: float = SWITCH_LIVENESS_TIMEOUT_S,
    ) -> None:
        """A connection counts as closed when nothing has come over it for almost `liveness_timeout_s`."""
        self._waker = Waker()
        heartbeat = _heartbeat(liveness_timeout_s)
        try:
            self._port: Listener | CurvePort = (
                Listener(
                    host,
                    port,
                    LIMITS,
                    patience_s=PATIENCE_S,
                    read_bytes=READ_BYTES,
                    max_unread_bytes=MAX_UNREAD_BYTES,
                    heartbeat=heartbeat,
                )
                if curve_secret_key is None
                else CurvePort(
                    host,
                    port,
                    curve_secret_key,
                    curve_clients,
                    queued=QUEUED_MESSAGES,
                    frame_bytes=MAX_DATAGRAM_BYTES,
                    heartbeat=heartbeat,
                )
            )
        except (OSError, ConfigurationError) as error:
            self._waker.close()
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"zmq port {port} of {host!r} cannot be had: {why}") from error
        self.port = self._port.port
        self._peers: AddressBook[bytes] = AddressBook()
        self._poller = zmq.Poller()
        self._poller.register(self._port.fileno(), zmq.POLLIN)
        self._poller.register(self._waker.fileno(), zmq.POLLIN)

    @property
    def trouble(self) -> str:
        """Empty: messages are dropped without an error."""
        return ""

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send all datagrams, one peer's together. Those to a peer that is gone or does not read are dropped."""
        by_peer: dict[int, list[bytes]] = {}
        for data, address in datagrams:
            by_peer.setdefault(address, []).append(data)
        for address, frames in by_peer.items():
            route = self._peers.key(address)
            if route is None:
                continue
            for first in range(0, len(frames), DATAGRAMS_PER_MESSAGE):
                self._port.send(route, frames[first : first + DATAGRAMS_PER_MESSAGE])

    def receive(self, timeout_s: float) -> list[Datagram]:
        """Wait for datagrams; return at most MAX_BATCH, plus the rest of one message."""
        deadline, woken = time.monotonic() + timeout_s, False
        arrived: list[Datagram] = []
        while not arrived and not woken:  # ends at the deadline: connections, or parts of messages, may end a wait
            until, now = self._port.next_timer(), time.monotonic()
            wait_s = deadline - now if until is None else min(deadline, until) - now
            for ready, _ in self._poller.poll(ceil(max(wait_s, 0.0) * 1000)):
                if ready == self._waker.fileno():
                    self._waker.drain()
                    woken = True
            arrived = self._take()
            if now >= deadline:
                break
        return arrived

    def _take(self) -> list[Datagram]:
        arrived: list[Datagram] = []
        while len(arrived) < MAX_BATCH and (messages := self._port.receive(1 if arrived else MESSAGES_PER_TURN)):
            for route, frames, _ in messages:
                address = self._peers.number(route)
                arrived += [(frame, address) for frame in frames]
        return arrived

    def connected(self, address: int) -> bool:
        """Whether the peer's connection is open, which shows that its process runs even if it sends nothing."""
        self._port.take_closed()
        route = self._peers.key(address)
        return route is not None and self._port.knows(route)

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._waker.wake()

    def close(self) -> None:
        """Close the port, waiting up to LINGER_MS for the last messages to be sent."""
        self._port.close(LINGER_MS / 1000)
        self._waker.close()


def _heartbeat(liveness_timeout_s: float) -> Heartbeat:
    """A heartbeat whose timeout closes the connection of a stopped peer shortly before `liveness_timeout_s`."""
    interval_s = min(HEARTBEAT_INTERVAL_S, liveness_timeout_s / LIVENESS_HEARTBEATS)
    return Heartbeat(interval_s=interval_s, timeout_s=liveness_timeout_s - 2 * interval_s)
