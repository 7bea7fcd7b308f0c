"""A TCP port for ZeroMQ clients whose connections, bytes and waiting times are all bounded.

Rules
-----
* A new connection is read at once, within the bounds of fanin/formats/zmtp.py. A connection is not read while its
  messages wait to be taken, or more than `max_unread_bytes` wait to be sent over it; this delays no other connection.
* A connection is a stranger until `keep` is called for it. A stranger that is silent for `patience_s` is closed; if a
  port is full, or an address has its share, the stranger silent for longest is closed to make room.
* With a `heartbeat`, peers that are silent for an interval are sent PING, and closed if nothing comes back in time. A
  thread of libzmq answers: also for a process that holds its interpreter, but not for one that is stopped.
* One thread uses a listener, except for `fileno`, which is readable while there is work to do.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import select
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fanin import open_files
from fanin.formats.zmtp import ZmtpConnection, ZmtpError, ZmtpLimits
from fanin.transports.numeric import socket_address
from fanin.transports.polling import WRITABLE, is_ready

MAX_CONNECTIONS = 4096
"""Most connections of one port; fewer if the process may not open so many files."""
SPARE_FILES = 256
"""Number of file descriptors that are reserved for other uses."""
MAX_PER_SOURCE = 512
"""Most connections from one address: the ranks, leaves and tools of one machine."""
STRANGER_PATIENCE_S = 10.0
"""A stranger's connection that is silent for this long is closed; a rank that joins speaks twice a second."""
MAX_UNREAD_BYTES = 1 << 16
"""Bytes waiting to be sent to one peer above which it is not read from, and further messages to it are dropped."""
READ_BYTES = 1 << 16
ACCEPTS_PER_TURN = 64
SERVED_PER_TURN = 64
"""Most connections that are served per turn; epoll reports those first that it has not reported for longest."""
BACKLOG = 512
PAUSE_S = 0.1
"""How long no connection is accepted after the system ran out of file descriptors."""
LINGER_POLL_S = 0.01
"""Interval at which closing checks again whether peers have taken the last messages."""
KEEPALIVE_S = 60
"""Silence after which TCP keepalive probes whether the other machine is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Interval at which silent peers are sent PING, and silence after which they are closed."""

    interval_s: float
    timeout_s: float


@dataclass(slots=True)
class _Peer:
    route: bytes
    connection: socket.socket
    source: str
    zmtp: ZmtpConnection
    heard_s: float
    """When the last complete message came."""
    alive_s: float
    """When the last bytes came."""
    kept: bool = False
    interest: int = 0
    written: int = 0
    """Bytes of `zmtp.to_send` that are already sent."""


class Listener:
    """A TCP port that the constructor binds. OSError if that fails."""

    def __init__(
        self,
        host: str,
        port: int,
        limits: ZmtpLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_connections: int = MAX_CONNECTIONS,
        max_per_source: int = MAX_PER_SOURCE,
        patience_s: float = STRANGER_PATIENCE_S,
        buffer_bytes: int | None = None,
        read_bytes: int = READ_BYTES,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`host`: numeric address. `buffer_bytes`: kernel buffer per connection and direction; None: its default.

        `read_bytes`: most bytes read from a connection at a time. `max_unread_bytes`: most that wait to be sent to one.
        """
        self._read_bytes, self._max_unread_bytes = read_bytes, max_unread_bytes
        self._limits, self._clock, self._patience_s = limits, clock, patience_s
        self._max_connections = min(max_connections, _files())
        self._max_per_source = max_per_source
        family, address = socket_address(host, port)
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._epoll = select.epoll()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if buffer_bytes is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
            self._socket.bind(address)
            self._socket.listen(BACKLOG)
            self._socket.setblocking(False)
            self._epoll.register(self._socket, select.EPOLLIN)
        except BaseException:
            self.close()
            raise
        self._peers: dict[int, _Peer] = {}
        self._routes: dict[bytes, _Peer] = {}
        self._strangers: OrderedDict[int, _Peer] = OrderedDict()
        """Connections for which `keep` was not called, the one silent for longest first."""
        self._crowd: Counter[str] = Counter()
        self._waiting: OrderedDict[int, _Peer] = OrderedDict()
        """Connections with messages that `receive` has not returned yet."""
        self._numbers = itertools.count(1)
        self._closed: deque[bytes] = deque()
        self._resume_s: float | None = None
        self._heartbeat = heartbeat
        self._beat_s = math.inf if heartbeat is None else clock() + heartbeat.interval_s
        self.turned_away = self.malformed = self.silent = 0
        """Numbers of closed connections: for lack of room; for malformed bytes; strangers, for silence."""

    @property
    def port(self) -> int:
        """The port to which the listener is bound."""
        return int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        """A descriptor that is readable while there is work for `receive`."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        return len(self._peers)

    def next_timer(self) -> float | None:
        """Time at which to call `receive` even if nothing comes; now while messages wait; None: never."""
        if self._waiting:
            return self._clock()
        times = [] if self._resume_s is None else [self._resume_s]
        if self._peers and self._heartbeat is not None:
            times.append(self._beat_s)
        if self._strangers:
            times.append(next(iter(self._strangers.values())).heard_s + self._patience_s)
        return min(times, default=None)

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes], str]]:
        """Serve all connections; return at most `limit` messages: route, frames, and source address."""
        now = self._clock()
        for descriptor, events in self._epoll.poll(0, SERVED_PER_TURN):
            if descriptor == self._socket.fileno():
                self._accept(now)
            elif (peer := self._peers.get(descriptor)) is not None:
                self._serve(peer, events, now)
        self._tidy(now)
        taken: list[tuple[bytes, list[bytes], str]] = []
        while self._waiting and len(taken) < limit:
            descriptor, peer = self._waiting.popitem(last=False)
            try:
                taken.append((peer.route, peer.zmtp.take(), peer.source))
            except ZmtpError:
                self.malformed += 1
                self._hang_up(peer)
                continue
            if peer.zmtp.messages:
                self._waiting[descriptor] = peer
            else:
                self._watch(peer)
        return taken

    def send(self, route: bytes, frames: Sequence[bytes]) -> bool:
        """Send a message; False if the peer is gone or does not read."""
        peer = self._routes.get(route)
        if peer is None or len(peer.zmtp.to_send) - peer.written > self._max_unread_bytes:
            return False
        peer.zmtp.send(frames)
        self._flush(peer)
        return True

    def keep(self, route: bytes) -> None:
        """Stop treating the peer as a stranger, so that it may be silent."""
        peer = self._routes.get(route)
        if peer is not None and not peer.kept:
            peer.kept = True
            self._strangers.pop(peer.connection.fileno(), None)

    def knows(self, route: bytes) -> bool:
        """Whether the connection is open."""
        return route in self._routes

    def take_closed(self) -> list[bytes]:
        """Routes of connections that were closed since the last call."""
        routes = list(self._closed)
        self._closed.clear()
        return routes

    def close(self, linger_s: float = 0.0) -> None:
        """Close all connections, waiting up to `linger_s` for unsent messages. A second call does nothing."""
        if self._epoll.closed:
            return
        deadline = time.monotonic() + linger_s
        while (left := [peer for peer in self._peers_left() if peer.zmtp.to_send]) and time.monotonic() < deadline:
            is_ready([peer.connection for peer in left], WRITABLE, LINGER_POLL_S)
            for peer in left:
                self._flush(peer)
        for peer in self._peers_left():
            peer.connection.close()
        self._socket.close()
        self._epoll.close()

    def _peers_left(self) -> list[_Peer]:
        return list(getattr(self, "_peers", {}).values())

    # --- connections ---

    def _accept(self, now: float) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._epoll.unregister(self._socket)  # it would stay readable, and end every wait
                    self._resume_s = now + PAUSE_S
                    return
                continue  # the connection is closed already
            source = str(address[0])
            if not self._make_room(source):
                self.turned_away += 1
                connection.close()
                continue
            self._open(connection, source, now)

    def _open(self, connection: socket.socket, source: str, now: float) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        route = next(self._numbers).to_bytes(8, "big")
        peer = _Peer(route, connection, source, ZmtpConnection(self._limits), now, now)
        descriptor = connection.fileno()
        self._peers[descriptor] = self._routes[route] = self._strangers[descriptor] = peer
        self._crowd[source] += 1
        peer.interest = select.EPOLLIN
        self._epoll.register(descriptor, peer.interest)
        self._flush(peer)

    def _make_room(self, source: str) -> bool:
        """Whether one more connection from `source` may be accepted; closes a stranger's if that is necessary."""
        if self._crowd[source] >= self._max_per_source:
            oldest = next((peer for peer in self._strangers.values() if peer.source == source), None)
        elif len(self._peers) >= self._max_connections:
            # Close one of the source with most connections, so that a crowd does not drive out single clients.
            largest = max(
                (peer.source for peer in self._strangers.values()), key=lambda each: self._crowd[each], default=""
            )
            oldest = next((peer for peer in self._strangers.values() if peer.source == largest), None)
        else:
            return True
        if oldest is None:
            return False
        self.turned_away += 1
        self._hang_up(oldest)
        return True

    def _hang_up(self, peer: _Peer) -> None:
        descriptor = peer.connection.fileno()
        if self._peers.pop(descriptor, None) is None:
            return
        self._epoll.unregister(descriptor)
        self._strangers.pop(descriptor, None)
        self._waiting.pop(descriptor, None)
        del self._routes[peer.route]
        self._crowd[peer.source] -= 1
        if not self._crowd[peer.source]:
            del self._crowd[peer.source]
        peer.connection.close()
        self._closed.append(peer.route)

    def _tidy(self, now: float) -> None:
        """Do the work that is due at `now`."""
        if self._heartbeat is not None and now >= self._beat_s:
            self._beat(self._heartbeat, now)
        if self._resume_s is not None and now >= self._resume_s:
            self._resume_s = None
            self._epoll.register(self._socket, select.EPOLLIN)
        while self._strangers:
            peer = next(iter(self._strangers.values()))
            if now < peer.heard_s + self._patience_s:
                return
            self.silent += 1
            self._hang_up(peer)

    def _beat(self, heartbeat: Heartbeat, now: float) -> None:
        late_s = now - self._beat_s
        self._beat_s = now + heartbeat.interval_s
        for peer in list(self._peers.values()):
            # Time for which this process itself was stopped does not count as silence of the peer.
            peer.alive_s = min(now, peer.alive_s + late_s) if late_s > heartbeat.interval_s else peer.alive_s
            if now - peer.alive_s >= heartbeat.timeout_s:
                self._hang_up(peer)
            elif now - peer.alive_s >= heartbeat.interval_s and peer.zmtp.ready:
                peer.zmtp.ping()
                self._flush(peer)

    # --- bytes ---

    def _serve(self, peer: _Peer, events: int, now: float) -> None:
        if events & select.EPOLLOUT:
            self._flush(peer)
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and peer.route in self._routes:
            self._read(peer, now)

    def _read(self, peer: _Peer, now: float) -> None:
        descriptor = peer.connection.fileno()
        try:
            data = peer.connection.recv(self._read_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(peer)
            return
        peer.alive_s = now
        try:
            peer.zmtp.feed(data)
        except ZmtpError:
            self.malformed += 1
            self._hang_up(peer)
            return
        if peer.zmtp.messages:
            self._waiting[descriptor] = peer
            if not peer.kept:  # only complete messages count, so that a trickle of bytes does not keep a stranger
                peer.heard_s = now
                self._strangers.move_to_end(descriptor)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        """Write as much as the socket takes, and update the events to wait for."""
        out = peer.zmtp.to_send
        if out:
            try:
                with memoryview(out) as view:
                    peer.written += peer.connection.send(view[peer.written :])
            except BlockingIOError:
                pass
            except OSError:
                self._hang_up(peer)
                return
            if peer.written >= len(out):
                out.clear()
                peer.written = 0
            elif peer.written > self._max_unread_bytes:
                del out[: peer.written]
                peer.written = 0
        self._watch(peer)

    def _watch(self, peer: _Peer) -> None:
        unread = len(peer.zmtp.to_send) - peer.written
        interest = select.EPOLLOUT if unread else 0
        if unread <= self._max_unread_bytes and not peer.zmtp.messages:
            interest |= select.EPOLLIN
        if interest != peer.interest:
            peer.interest = interest
            self._epoll.modify(peer.connection.fileno(), interest)


def _files() -> int:
    """Most connections per port that the file limit allows, after raising the limit as far as possible."""
    wanted = MAX_CONNECTIONS * 2 + SPARE_FILES  # two ports
    return max((open_files.limit(wanted) - SPARE_FILES) // 2, 16)
