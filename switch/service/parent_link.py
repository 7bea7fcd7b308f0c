"""A leaf's connection to its parent's controller: a DEALER socket, polled in the leaf's main loop."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from fanin.addresses import host_and_port
from fanin.curve import client_keys
from fanin.errors import ConfigurationError
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.control import DEFAULT_PORT
from fanin.protocol.conversation import Conversation, Heard
from fanin.protocol.seal import Credentials
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES
from fanin.schemes import tree_scheme
from fanin.switch.controller.leaf import ParentPath
from fanin.transports.numeric import host_of, socket_address
from fanin.transports.path_mtu import DEFAULT_MTU, datagram_mtu, stream_mtu

REPLIES_PER_TURN = 256
"""Most messages that are received before events and timers get their turn."""
QUEUED_MESSAGES = 4096
"""High-water mark: while the parent is gone, further messages are dropped, and ranks ask again."""
ANY_IPV6 = "::"
"""A port of this address receives IPv4 as well, from addresses such as ::ffff:10.0.0.1."""
LINGER_MS = 200
"""How long closing waits for the last messages to be sent."""
TRIAL_TIMEOUT_S = 1.0
"""How long an address of a parent may take to accept a connection."""


class ParentLink:
    """A connection that is opened by the constructor, and again by itself whenever the parent comes back."""

    def __init__(self, address: SwitchAddress, curve_key: str | None, own_host: str) -> None:
        """`own_host`: numeric address of this switch, whose data ports send to the parent.

        ConfigurationError for a name that does not resolve, an invalid key, a scheme without trees, or an address of a
        family that this switch's ports do not have.
        """
        up = tree_scheme()
        if address.scheme != up:
            raise ConfigurationError(f"--parent {address}: a leaf's data goes up by {up}. Remedy: {up}://host:port")
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        except OSError as error:
            raise ConfigurationError(
                f"--parent {address}: {error.strerror}. Remedy: correct the name, or this machine's name service"
            ) from None
        self.address = address
        self._conversation = Conversation(secrets.randbits)
        self._family, at = chosen(address, [(each[0], each[4]) for each in found], own_host)
        self._host = host_of(at)
        mapped = own_host == ANY_IPV6 and self._family == socket.AF_INET
        self._data_host = f"::ffff:{self._host}" if mapped else self._host
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        """Reports when the connection is closed."""
        self.socket.set_hwm(QUEUED_MESSAGES)
        self.socket.setsockopt(zmq.MAXMSGSIZE, control.MAX_REPLY_BYTES)
        self.socket.setsockopt(zmq.IPV6, int(self._family == socket.AF_INET6))
        if curve_key is not None:
            own = client_keys()
            try:
                self.socket.setsockopt(zmq.CURVE_SERVERKEY, curve_key.encode())
            except (zmq.ZMQError, UnicodeError):
                self.close(linger_ms=0)
                raise ConfigurationError(
                    "FANIN_CURVE_SERVER_KEY, for --parent, is no Z85 key", "FANIN_CURVE_SERVER_KEY"
                ) from None
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.encode())
        self.socket.connect(f"tcp://{host_and_port(self._host, address.port)}")

    def poller(self) -> zmq.Poller:
        """A poller with the parent's socket and its monitor registered, and with the methods of select.poll."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        return poller

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close the connection once the last messages are sent, or after `linger_ms`. A second call does nothing."""
        if not self._monitor.closed:
            self.socket.disable_monitor()
            self._monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
        self._context.term()

    def path(self, own_address: str) -> ParentPath:
        """The path to the parent, with the smaller of the MTUs that the kernel reports for datagrams and for TCP."""
        with socket.socket(self._family, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_REQUEST_BYTES)
            granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            mtu, exposed = DEFAULT_MTU, True
            at = socket_address(self._host, self.address.port)[1]
            with contextlib.suppress(OSError):
                probe.connect(at)
                exposed = host_of(probe.getsockname()) != self._host
                mtu = datagram_mtu(probe)
        if exposed:
            with contextlib.suppress(OSError), tried(self._family, at) as connected:
                mtu = min(mtu, stream_mtu(connected))
        return ParentPath(
            address=self.address,
            host=self._data_host,
            path_mtu=mtu,
            receive_buffer_bytes=granted,
            own_address=own_address,
            exposed=exposed,
        )

    def send(self, requests: Iterable[tuple[str, control.Request]], key_of: Callable[[str], bytes | None]) -> None:
        """Send without waiting, each request sealed with the key of its fingerprint.

        A request is lost if the queue is full or its key is forgotten; ranks and timers then ask again.
        """
        for name, request in requests:
            if (key := key_of(name)) is not None:
                self._send(self._conversation.outgoing(request, Credentials(key)))

    def receive(self) -> list[Heard]:
        """The replies that have come. Other messages, or ones of another version, are ignored: ranks then time out."""
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

    def take_closed(self) -> bool:
        """Whether the connection was closed since the last call: the parent's process may have ended."""
        closed = False
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            closed = True
        return closed

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(zmq.Again):
            self.socket.send(data, zmq.NOBLOCK)


def chosen(address: SwitchAddress, found: Sequence[tuple[int, Any]], own_host: str) -> tuple[int, Any]:
    """Family and socket address of the parent: the first that accepts a connection, among those our ports can reach."""
    wide = ":" in own_host
    usable = [each for each in found if own_host == ANY_IPV6 or (each[0] == socket.AF_INET6) == wide]
    if not usable:
        ours, theirs, bind = ("IPv6", "IPv4", "0.0.0.0") if wide else ("IPv4", "IPv6", "[::]")
        raise ConfigurationError(
            f"--parent {address} is an address of {theirs}, and this switch has ports of {ours} alone ({own_host}). "
            f"Remedy: --bind {bind}:{DEFAULT_PORT}"
        )
    for family, at in usable if len(usable) > 1 else ():
        with contextlib.suppress(OSError), tried(family, at):
            return family, at
    return usable[0]


def tried(family: int, at: Any) -> socket.socket:
    """A test connection to that address. OSError if none is accepted."""
    trial = socket.socket(family, socket.SOCK_STREAM)
    try:
        trial.settimeout(TRIAL_TIMEOUT_S)
        trial.connect(at)
    except BaseException:
        trial.close()
        raise
    return trial
