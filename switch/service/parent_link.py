"""A leaf's connection to its parent's controller: a DEALER socket, beside the leaf's own ROUTER in one loop."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterable

import zmq

from fanin.curve import client_keys
from fanin.errors import ConfigurationError
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.conversation import Conversation, Heard
from fanin.protocol.seal import Credentials
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES
from fanin.schemes import tree_scheme
from fanin.switch.controller.leaf import ParentPath

REPLIES_PER_TURN = 256
"""Messages taken in before events and timers get their turn."""
QUEUED_MESSAGES = 4096
"""High-water mark; what a parent that is gone does not take beyond it is dropped, and ranks ask again."""
DEFAULT_MTU = 1500
"""Where the system does not say."""
IP_MTU, IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h; the socket module has no names for them


class ParentLink:
    """Connects when it is made, and again by itself whenever the parent comes back."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: SwitchAddress, curve_key: str | None) -> None:
        """ConfigurationError for a name that does not resolve, a key that is none, or a scheme without trees."""
        up = tree_scheme()
        if address.scheme != up:
            raise ConfigurationError(f"--parent {address}: a leaf's data goes up by {up}. Remedy: {up}://host:port")
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
        except OSError as error:
            raise ConfigurationError(f"--parent {address}: {error.strerror}") from None
        self.address = address
        self._conversation = Conversation(secrets.randbits)
        self._family, self._host = found[0], str(found[4][0])
        self.socket = context.socket(zmq.DEALER)
        self.socket.set_hwm(QUEUED_MESSAGES)
        self.socket.setsockopt(zmq.MAXMSGSIZE, control.MAX_REPLY_BYTES)
        self.socket.setsockopt(zmq.IPV6, int(self._family == socket.AF_INET6))
        if curve_key is not None:
            own = client_keys()
            try:
                self.socket.setsockopt(zmq.CURVE_SERVERKEY, curve_key.encode())
            except (zmq.ZMQError, UnicodeError):
                self.socket.close(linger=0)
                raise ConfigurationError("FANIN_CURVE_SERVER_KEY, for --parent, is no Z85 key") from None
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.encode())
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.socket.connect(f"tcp://{host}:{address.port}")

    def path(self, own_address: str) -> ParentPath:
        """What the kernel says about UDP to the parent. Sends nothing."""
        with socket.socket(self._family, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_REQUEST_BYTES)
            granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            mtu, exposed = DEFAULT_MTU, True
            wide = self._family == socket.AF_INET6
            level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if wide else (socket.IPPROTO_IP, IP_MTU)
            with contextlib.suppress(OSError):
                probe.connect((self._host, self.address.port))
                exposed = probe.getsockname()[0] != self._host
                mtu = probe.getsockopt(level, option)
        return ParentPath(
            address=self.address,
            host=self._host,
            path_mtu=mtu,
            receive_buffer_bytes=granted,
            own_address=own_address,
            exposed=exposed,
        )

    def send(self, requests: Iterable[tuple[str, control.Request]], key_of: Callable[[str], bytes | None]) -> None:
        """Send without waiting, each request sealed with the key of that fingerprint.

        What the queue does not take, or has a key that is forgotten, is lost, and asked again.
        """
        for name, request in requests:
            if (key := key_of(name)) is not None:
                self._send(self._conversation.outgoing(request, Credentials(key)))

    def receive(self) -> list[Heard]:
        """What has come; what is no reply of this version is left out: ranks then run into their timeouts."""
        replies: list[Heard] = []
        for _ in range(REPLIES_PER_TURN):
            try:
                heard = self._conversation.incoming(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            except control.ControlError:
                continue
            for again in self._conversation.to_say_again():
                self._send(again)
            if isinstance(heard, Heard):
                replies.append(heard)
        return replies

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(zmq.Again):
            self.socket.send(data, zmq.NOBLOCK)
