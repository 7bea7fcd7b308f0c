"""A port of a switch with CURVE: a ROUTER socket of libzmq, which encrypts, and optionally a list of clients' keys."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Collection, Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator

from fanin.addresses import host_and_port
from fanin.errors import ConfigurationError
from fanin.protocol import control
from fanin.switch.transports.hang_ups import HangUps
from fanin.switch.transports.listener import Heartbeat

DOMAIN = "fanin"
"""ZAP domain that ties the socket to the list of keys."""
HANDSHAKE_MS = 5000
"""Time within which a connection must complete the CURVE handshake, or it is closed."""
QUEUED_MESSAGES = 1000
"""High-water mark of one peer: further messages to it are dropped, and it asks again."""
MAX_SOCKETS = 8192
"""Most sockets of the context, in which connections count as sockets."""
LINGER_MS = 200


class AllowList:
    """Accepts only clients with one of these keys, by libzmq's ZAP (RFC 27), for all sockets of a context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Collection[str]) -> None:
        """`keys`: public keys of clients, in Z85."""
        self._keys = {key.encode() for key in keys}
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=DOMAIN, credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with that key is accepted (called by zmq.auth)."""
        return key in self._keys

    def close(self) -> None:
        """Stop the authenticator. Must be called before the context ends."""
        self._authenticator.stop()


class CurvePort:
    """A port like fanin.switch.transports.listener.Listener, with libzmq's bounds; a client's key decides on access."""

    def __init__(
        self,
        host: str,
        port: int,
        secret_key: str,
        allowed: Collection[str] | None,
        *,
        queued: int = QUEUED_MESSAGES,
        frame_bytes: int = control.MAX_MESSAGE_BYTES,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`allowed`: public keys of clients, in Z85; None: any with the switch's. OSError if binding fails."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._allow_list: AllowList | None = None
        self._socket = self._context.socket(zmq.ROUTER)
        self._hang_ups = HangUps(self._socket)
        self._epoll = select.epoll()
        try:
            if allowed is not None:
                self._allow_list = AllowList(self._context, allowed)
            self._configure(host, secret_key, queued, frame_bytes)
            if heartbeat is not None:
                self._socket.setsockopt(zmq.HEARTBEAT_IVL, round(heartbeat.interval_s * 1000))
                self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(heartbeat.timeout_s * 1000))
            self._socket.bind(f"tcp://{host_and_port(host, port or '*')}")
            for socket in (self._socket, self._hang_ups.socket):
                self._epoll.register(int(socket.getsockopt(zmq.FD)), select.EPOLLIN)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, error.strerror) from None
        except BaseException:
            self.close()
            raise
        self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self.turned_away = self.malformed = self.silent = 0

    def _configure(self, host: str, secret_key: str, queued: int, frame_bytes: int) -> None:
        self._socket.set_hwm(queued)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._socket.setsockopt(zmq.IPV6, int(":" in host))
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
        try:
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key.encode())
        except (zmq.ZMQError, UnicodeError):
            raise ConfigurationError(
                "the CURVE secret key is no key in Z85. Remedy: take the key of `fanin keys`"
            ) from None

    def fileno(self) -> int:
        """An edge-triggered descriptor: it becomes readable when a message or a hang-up comes; see `next_timer`."""
        return self._epoll.fileno()

    def next_timer(self) -> float | None:
        """0.0 while messages wait, because the descriptor does not report them again; None otherwise."""
        waits = any(int(each.getsockopt(zmq.EVENTS)) & zmq.POLLIN for each in (self._socket, self._hang_ups.socket))
        return 0.0 if waits else None

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes], str]]:
        """Take at most `limit` messages: route, frames, and source address."""
        taken: list[tuple[bytes, list[bytes], str]] = []
        while len(taken) < limit:
            try:
                route, frames, source = self._hang_ups.receive()
            except zmq.Again:
                break
            taken.append((route, frames, source))
        return taken

    def send(self, route: bytes, frames: Sequence[bytes]) -> bool:
        """Send a message; False if the peer is gone or does not read."""
        try:
            self._socket.send_multipart([route, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def keep(self, route: bytes) -> None:
        """Do nothing: libzmq itself decides how long it keeps connections."""

    def knows(self, route: bytes) -> bool:
        """Whether a message came over the connection, and `gone` has not returned it yet."""
        return self._hang_ups.knows(route)

    def take_closed(self) -> list[bytes]:
        """Routes of connections that were closed since the last call."""
        return self._hang_ups.take_closed()

    def close(self, linger_s: float = 0.0) -> None:
        """Close the port, waiting up to `linger_s` for the last messages to be sent. A second call does nothing."""
        if self._context.closed:
            return
        if self._allow_list is not None:
            self._allow_list.close()
        self._epoll.close()
        with contextlib.suppress(zmq.ZMQError):
            self._hang_ups.close()
            self._socket.close(linger=int(linger_s * 1000))
        self._context.term()
