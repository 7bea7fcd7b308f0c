"""Measurements of `fanin advise` on the links between hosts: rates alone and together, round trips, ECN, MTU.

Every host has a `Listener`, which receives what other hosts send and reports it afterwards; advising.py decides who
sends when. Rates are of TCP payload, as the receiver sees them.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fanin.transports.marks import IPV6_TCLASS, marks_of, report_marks
from fanin.transports.path_mtu import datagram_mtu

TIMEOUT_S = 10.0
PAUSE_S = 0.1
"""Pause between two attempts to accept a connection, after an error."""
CHUNK_BYTES = 1 << 16
SKIPPED_S = 0.15
"""Beginning of each stream that is left out, from its first byte: a token bucket passes a burst at once, and TCP begins
slowly.
"""
PINGS = 20
SEND_BUFFER_BYTES = 1 << 18
"""Send buffer of a stream. It ends when all of it has arrived, which a large buffer would delay on a slow link."""
HELLO = struct.Struct(">cHf")
"""First bytes of a connection: ping or stream, the number of the sending host, and seconds of a stream."""
PING, STREAM = b"p", b"s"
PROBE = struct.Struct(">4sHH")
"""Head of a datagram: a mark, the number of the sending host, and the bytes of the IP packet around it."""
MARK = b"fadv"
ECT_0, CE = 0b10, 0b11
"""RFC 3168: the sender can use ECN; a router met congestion."""
PACKETS = (1500, 4000, 9000)
"""Bytes of IP packets that are tried."""
UDP_BYTES = 8
IP_BYTES = {socket.AF_INET: 20, socket.AF_INET6: 40}
MAPPED = "::ffff:"
"""Beginning of an IPv4 address at a socket for both families (RFC 4291, section 2.5.5.2)."""
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_PROBE = 10, 23, 3  # linux/in.h, linux/in6.h; Python has no names for them
MARKED = {
    socket.AF_INET: (socket.IPPROTO_IP, IP_MTU_DISCOVER, socket.IP_TOS),
    socket.AF_INET6: (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_TCLASS),
}
"""By family: level and names of the options that forbid fragments and set the ECN field."""
DATAGRAM_ATTEMPTS = 5
PORT_TRIES = 20


def _sockets() -> tuple[socket.socket, socket.socket]:
    """Two sockets of one number, for connections and for datagrams; OSError where there is none.

    They are for IPv6 and IPv4 where this machine has both.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for tries_left in reversed(range(PORT_TRIES)):
        connections = socket.create_server(("", 0), family=family, backlog=256, dualstack_ipv6=both)
        datagrams = socket.socket(family, socket.SOCK_DGRAM)
        try:
            if both:
                datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            datagrams.bind(("", connections.getsockname()[1]))
            return connections, datagrams
        except OSError:  # the system chooses a number for connections, which datagrams of another program may have
            connections.close()
            datagrams.close()
            if not tries_left:
                raise
    raise AssertionError("there is a last try")


@dataclass(frozen=True, slots=True)
class Datagrams:
    """Facts about the datagrams that arrived from one host."""

    ecn: bool
    """Whether both ECN marks arrived as they were set."""
    mtu: int
    """The longest IP packet, of PACKETS, that arrived; 0: none."""


class Listener:
    """One host's end of all probes. A context manager: its threads are there from entry to exit."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._tcp, self._udp = _sockets()
        self.port = int(self._tcp.getsockname()[1])
        report_marks(self._udp)
        self._udp.settimeout(0.2)
        self._lock = threading.Lock()
        self._rates: dict[int, float] = {}
        self._marks: dict[int, set[int]] = {}
        self._sizes: dict[int, int] = {}
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    def __enter__(self) -> Listener:
        self._run(self._accept)
        self._run(self._receive_datagrams)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._tcp.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # from here on nobody is accepted, and the descriptor may be another's
        self._tcp.close()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._udp.close()

    def rates(self) -> dict[int, float]:
        """Bits per second of the last stream from each host; forgets them."""
        with self._lock:
            found, self._rates = self._rates, {}
        return found

    def datagrams(self) -> dict[int, Datagrams]:
        """Facts about the datagrams of each host."""
        with self._lock:
            return {
                host: Datagrams(ecn={ECT_0, CE} <= marks, mtu=self._sizes.get(host, 0))
                for host, marks in self._marks.items()
            }

    def _run(self, what: object, *arguments: object) -> None:
        thread = threading.Thread(target=what, args=arguments, name="fanin-advise", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                peer, _ = self._tcp.accept()
            except OSError:  # no files left, say: hosts that come later must still be heard
                self._closing.wait(PAUSE_S)
                continue
            peer.settimeout(TIMEOUT_S)
            with self._lock:
                self._open.add(peer)
            self._run(self._serve, peer)

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            hello = peer.recv(HELLO.size, socket.MSG_WAITALL)
            if len(hello) == HELLO.size:
                kind, host, seconds = HELLO.unpack(hello)
                if kind == PING:
                    while data := peer.recv(1):
                        peer.sendall(data)
                elif kind == STREAM:
                    self._drain(peer, host, seconds)
        with self._lock:
            self._open.discard(peer)
        peer.close()

    def _drain(self, peer: socket.socket, host: int, seconds: float) -> None:
        """Receive a stream, and note its rate over a time in which all streams of a phase are there."""
        buffer = bytearray(CHUNK_BYTES)
        begun, counted_from, counted, last = time.monotonic(), 0.0, 0, 0.0
        with contextlib.suppress(OSError):
            while got := peer.recv_into(buffer):
                now = time.monotonic()
                if now - begun > seconds:
                    continue
                last = now
                if counted_from:
                    counted += got
                elif last - begun >= SKIPPED_S:
                    counted_from = last
        with self._lock:
            self._rates[host] = counted * 8 / (last - counted_from) if counted_from and last > counted_from else 0.0

    def _receive_datagrams(self) -> None:
        while not self._closing.is_set():
            try:
                data, ancillary, _, source = self._udp.recvmsg(1 << 16, 64)
            except TimeoutError:
                continue
            except OSError:
                return
            if len(data) < PROBE.size or not data.startswith(MARK):
                continue
            _, host, size = PROBE.unpack_from(data)
            marks = marks_of(ancillary)
            wide = ":" in source[0] and not source[0].startswith(MAPPED)
            if len(data) + UDP_BYTES + IP_BYTES[socket.AF_INET6 if wide else socket.AF_INET] == size:
                with self._lock:
                    self._sizes[host] = max(size, self._sizes.get(host, 0))
                    self._marks.setdefault(host, set()).update(marks)


@contextlib.contextmanager
def _connected(to: tuple[str, int], kind: bytes, own: int, seconds: float = 0.0) -> Iterator[socket.socket]:
    with socket.create_connection(to, TIMEOUT_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        peer.sendall(HELLO.pack(kind, own, seconds))
        yield peer


def round_trip_s(to: tuple[str, int], own: int) -> float:
    """The median of PINGS round trips of a byte."""
    found = []
    with _connected(to, PING, own) as peer:
        for _ in range(PINGS):
            begun = time.monotonic()
            peer.sendall(b".")
            peer.recv(1)
            found.append(time.monotonic() - begun)
    return statistics.median(found)


def interface_mtu(to: tuple[str, int]) -> int:
    """MTU of this host's interface on the way to another one, or less where a router has said so. Sends nothing."""
    with _datagrams_to(to) as probe:
        return datagram_mtu(probe)


@contextlib.contextmanager
def _datagrams_to(to: tuple[str, int]) -> Iterator[socket.socket]:
    """A datagram socket that is connected to the first address of that host to which there is a route; OSError."""
    found = socket.getaddrinfo(*to, type=socket.SOCK_DGRAM)
    for tries_left, (family, kind, protocol, _, address) in zip(reversed(range(len(found))), found, strict=True):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
            except OSError:
                if not tries_left:
                    raise
                continue
            yield probe
            return


def stream(to: Sequence[tuple[str, int]], own: int, seconds: float) -> None:
    """Send to all of them at the same time for so long, as much as the links take."""

    def send(address: tuple[str, int]) -> None:
        data = bytes(CHUNK_BYTES)
        # A stream that breaks has no rate, which its receiver reports.
        with contextlib.suppress(OSError), _connected(address, STREAM, own, seconds) as peer:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            peer.recv(1)  # the listener closes when it has all, and has noted the rate

    senders = [threading.Thread(target=send, args=(each,), name="fanin-advise-send") for each in to]
    for each in senders:
        each.start()
    for each in senders:
        each.join()


def send_datagrams(to: Sequence[tuple[str, int]], own: int) -> None:
    """Send to each host datagrams of all lengths in PACKETS, which may not be fragmented, with both marks of ECN."""
    with contextlib.ExitStack() as opened:
        probes = [opened.enter_context(_datagrams_to(each)) for each in to]
        for mark, size in itertools.product((ECT_0, CE), PACKETS):
            for probe in probes * DATAGRAM_ATTEMPTS:
                level, discovery, field = MARKED[probe.family]
                probe.setsockopt(level, discovery, PMTUDISC_PROBE)
                probe.setsockopt(level, field, mark)
                data = PROBE.pack(MARK, own, size).ljust(size - UDP_BYTES - IP_BYTES[probe.family], b"\0")
                with contextlib.suppress(OSError):  # longer than this host's own link carries
                    probe.send(data)
