"""The control port of a switch with CURVE: libzmq's ROUTER, which encrypts, and maybe a list of clients' keys."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Collection, Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator

from fanin.errors import ConfigurationError
from fanin.protocol import control
from fanin.switch.transports.hang_ups import HangUps
from fanin.switch.transports.listener import Heartbeat

DOMAIN = "fanin"
"""By which libzmq and the list mean each other."""
HANDSHAKE_MS = 5000
"""A connection that has not shown its key by then is closed."""
QUEUED_MESSAGES = 1000
"""High-water mark of one peer; what is beyond it is dropped, and it asks again."""
MAX_SOCKETS = 8192
"""Sockets of the context; connections count as sockets."""
LINGER_MS = 200


class AllowList:
    """Answers libzmq's question (ZAP, RFC 27) whether a client's key is one of these, for all sockets of a context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Collection[str]) -> None:
        """`keys`: public ones, in Z85."""
        self._keys = {key.encode() for key in keys}
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=DOMAIN, credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether that client may come in (called by zmq.auth)."""
        return key in self._keys

    def close(self) -> None:
        """Answer no more; before the context ends."""
        self._authenticator.stop()


class CurvePort:
    """A port like fanin.switch.transports.listener.Listener, with libzmq's bounds: a key decides who is let in."""

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
        """`allowed`: public keys of clients, in Z85; None: any who has the switch's. OSError when it cannot be had."""
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
            self._socket.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}")
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
            raise ConfigurationError("the CURVE secret key is no key in Z85") from None

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is something to do; `next_timer` says that there still is."""
        return self._epoll.fileno()

    def next_timer(self) -> float | None:
        """0.0 while messages wait, which the descriptor does not say again."""
        waits = any(int(each.getsockopt(zmq.EVENTS)) & zmq.POLLIN for each in (self._socket, self._hang_ups.socket))
        return 0.0 if waits else None

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes], str]]:
        """At most `limit` messages: route, frames, and the address they come from."""
        taken: list[tuple[bytes, list[bytes], str]] = []
        while len(taken) < limit:
            try:
                route, frames, source = self._hang_ups.receive()
            except zmq.Again:
                break
            taken.append((route, frames, source))
        return taken

    def send(self, route: bytes, frames: Sequence[bytes]) -> bool:
        """Send a message; False when the peer is gone, or does not read."""
        try:
            self._socket.send_multipart([route, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def keep(self, route: bytes) -> None:
        """Nothing: libzmq holds connections as long as it likes."""

    def knows(self, route: bytes) -> bool:
        """Whether something came over the connection, and it is open as far as `gone` has told."""
        return self._hang_ups.knows(route)

    def gone(self) -> list[bytes]:
        """Routes of connections that were closed since the last call."""
        return self._hang_ups.gone()

    def close(self, linger_s: float = 0.0) -> None:
        """Hang up, giving what was sent last a moment. A second call does nothing."""
        if self._context.closed:
            return
        if self._allow_list is not None:
            self._allow_list.close()
        self._epoll.close()
        with contextlib.suppress(zmq.ZMQError):
            self._hang_ups.close()
            self._socket.close(linger=int(linger_s * 1000))
        self._context.term()
