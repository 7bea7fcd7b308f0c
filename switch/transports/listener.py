"""A TCP port for ZeroMQ clients whose connections, bytes and waiting times are all bounded.

Rules
-----
* A new connection is heard at once and held to the bounds of fanin/formats/zmtp.py. Nothing is read from a connection
  while messages of it wait to be taken, or more than `max_unread_bytes` to be sent: it waits, and nobody else does.
* A connection is a stranger's until `keep` says otherwise. A stranger's that says nothing for STRANGER_PATIENCE_S is
  closed, and where a port is full, or an address has its share, the one that was silent longest makes room.
* With a `heartbeat`, peers that are silent for an interval are asked for a sign of life, and closed when none comes.
  Threads of libzmq's answer: a process that holds its interpreter answers, one that is stopped does not.
* One thread uses it, but for `fileno`, which is readable while there is something to do.
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
"""On one port; fewer where the process may not open so many files."""
SPARE_FILES = 256
"""Number of files that a process keeps for everything else."""
MAX_PER_SOURCE = 512
"""Connections from one address: ranks, leaves and tools of one machine."""
STRANGER_PATIENCE_S = 10.0
"""A stranger's connection that is silent for this long is closed; a rank that joins speaks twice a second."""
MAX_UNREAD_BYTES = 1 << 16
"""Waiting to be sent to one peer; it is not read from meanwhile, and what more is to be sent to it is dropped, but for
one message."""
READ_BYTES = 1 << 16
ACCEPTS_PER_TURN = 64
SERVED_PER_TURN = 64
"""Connections that are read from, or written to; the system names those first that it has not named for longest."""
BACKLOG = 512
PAUSE_S = 0.1
"""How long nobody is accepted when the system has no files left."""
LINGER_POLL_S = 0.01
"""How long closing waits at a time for any peer to take what is to be sent."""
KEEPALIVE_S = 60
"""After this much silence the system asks whether the other machine is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """How often silent peers are asked for a sign of life, and for how long they may give none."""

    interval_s: float
    timeout_s: float


@dataclass(slots=True)
class _Peer:
    route: bytes
    connection: socket.socket
    source: str
    zmtp: ZmtpConnection
    heard_s: float
    """When a whole message came last."""
    alive_s: float
    """When anything came last."""
    kept: bool = False
    interest: int = 0
    written: int = 0
    """Bytes of `zmtp.to_send` that are already sent."""


class Listener:
    """Bound when it is made. OSError when that cannot be."""

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
        """`host`: numeric. `buffer_bytes`: of the kernel's, per connection and direction; None: its own choice.

        `read_bytes` are taken from a connection at a time, and up to `max_unread_bytes` wait to be sent to one.
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
        """Not kept, the one that was silent longest first."""
        self._crowd: Counter[str] = Counter()
        self._waiting: OrderedDict[int, _Peer] = OrderedDict()
        """With messages that nobody has taken yet."""
        self._numbers = itertools.count(1)
        self._closed: deque[bytes] = deque()
        self._resume_s: float | None = None
        self._heartbeat = heartbeat
        self._beat_s = math.inf if heartbeat is None else clock() + heartbeat.interval_s
        self.turned_away = self.malformed = self.silent = 0
        """Connections closed: there were too many; for what came over them; strangers', since nothing did."""

    @property
    def port(self) -> int:
        """The one that it is bound to."""
        return int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        """A descriptor that is readable while there is something to do."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        return len(self._peers)

    def next_timer(self) -> float | None:
        """When `receive` wants to be called even if nothing comes; in the past while messages wait."""
        if self._waiting:
            return self._clock()
        times = [] if self._resume_s is None else [self._resume_s]
        if self._peers and self._heartbeat is not None:
            times.append(self._beat_s)
        if self._strangers:
            times.append(next(iter(self._strangers.values())).heard_s + self._patience_s)
        return min(times, default=None)

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes], str]]:
        """Do what is to be done, and return at most `limit` messages: route, frames, and the address they come from."""
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
        """Send a message; False when the peer is gone, or does not read."""
        peer = self._routes.get(route)
        if peer is None or len(peer.zmtp.to_send) - peer.written > self._max_unread_bytes:
            return False
        peer.zmtp.send(frames)
        self._flush(peer)
        return True

    def keep(self, route: bytes) -> None:
        """The peer is no stranger any more: it may be silent."""
        peer = self._routes.get(route)
        if peer is not None and not peer.kept:
            peer.kept = True
            self._strangers.pop(peer.connection.fileno(), None)

    def knows(self, route: bytes) -> bool:
        """Whether the connection is open."""
        return route in self._routes

    def gone(self) -> list[bytes]:
        """Routes of connections that were closed since the last call."""
        routes = list(self._closed)
        self._closed.clear()
        return routes

    def close(self, linger_s: float = 0.0) -> None:
        """Hang up, giving what is still to be sent so long. A second call does nothing."""
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
                continue  # that one is gone already
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
        """Whether one connection more may come from there, after a stranger's was closed where need be."""
        if self._crowd[source] >= self._max_per_source:
            oldest = next((peer for peer in self._strangers.values() if peer.source == source), None)
        elif len(self._peers) >= self._max_connections:
            # The source with most connections gives first: a crowd must not drive out single ones.
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
            # Time in which this process itself was stopped is no silence of the peer's.
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
            if not peer.kept:  # only whole messages count: who trickles bytes is as good as silent
                peer.heard_s = now
                self._strangers.move_to_end(descriptor)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        """Write what can be written, and see what to wait for."""
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
    """Connections that this process may have, after asking the system for as many files as it gives."""
    wanted = MAX_CONNECTIONS * 2 + SPARE_FILES  # two ports
    return max((open_files.limit(wanted) - SPARE_FILES) // 2, 16)
