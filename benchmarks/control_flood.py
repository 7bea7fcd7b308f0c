"""Attacks on the control port of a switch, as fast as possible, for the fairness benchmark.

The attackers know nothing but the address. They read answers and drop them, since a switch stops reading from a peer
that leaves its answers unread.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator

import fanin
from fanin.formats.zmtp import GREETING, READY, ZmtpConnection, ZmtpLimits
from fanin.options import SwitchAddress
from fanin.protocol import control, wire
from fanin.protocol.control import Challenge, Join, Seal
from fanin.protocol.seal import TAG_BYTES, Credentials, tag

CONNECT_TIMEOUT_S = 5.0
BATCH = 32
"""Number of messages sent at once."""
HALF_OPEN = 600
"""Number of connections that one stranger tries to hold: more than a switch allows one address."""
PATH_MTU, RECEIVE_BUFFER_BYTES = 1500, 1 << 20
READ_BYTES = 1 << 16
SEND_BUFFER_BYTES = 1 << 16
"""Send buffer of a flood's socket; small, because bytes in it count as sent although they have not arrived."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s, so that closing resets the connection and leaves no state on this side."""
_REPLIES = ZmtpLimits(frame_bytes=control.MAX_REPLY_BYTES, frames=1, message_bytes=control.MAX_REPLY_BYTES)


class _Connection:
    """A ZMTP connection after the greeting, which drops the answers that it reads."""

    def __init__(self, address: SwitchAddress) -> None:
        self._socket = _connected(address)
        self._socket.sendall(GREETING + READY)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def challenge(self, credentials: Credentials) -> str:
        """Get the switch's challenge for this connection, by a request without one. OSError if none comes."""
        zmtp = ZmtpConnection(_REPLIES)
        zmtp.to_send.clear()
        self._socket.sendall(_framed(b"".join(_sealed_joins(credentials, "", 1))))
        while True:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the switch hung up")
            zmtp.feed(data)
            while zmtp.messages:
                reply = control.read(zmtp.take()[0], control.MAX_REPLY_BYTES).message
                if isinstance(reply, Challenge):
                    return reply.challenge

    def send(self, data: bytes) -> None:
        """Send bytes as fast as the switch reads, and drop its answers. OSError if it hangs up, or stops reading."""
        self._socket.setblocking(False)
        view, deadline = memoryview(data), time.monotonic() + CONNECT_TIMEOUT_S
        while view:
            if time.monotonic() > deadline:
                raise TimeoutError("the switch reads no more")
            with contextlib.suppress(BlockingIOError):
                while self._socket.recv(READ_BYTES):
                    continue
                raise ConnectionError("the switch hung up")
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                time.sleep(0.001)  # the switch may take its time


def joins(address: SwitchAddress, more: Callable[[], bool]) -> Iterator[int]:
    """Send Join after Join, each for a job of another name, all sealed and with the right challenge."""
    credentials = Credentials.of_job(os.urandom(16).hex())
    while more():
        with contextlib.suppress(OSError), _Connection(address) as connection:
            challenge = connection.challenge(credentials)
            frames = (_framed(each) for each in _sealed_joins(credentials, challenge, 1 << 30, first=2))
            while more():
                connection.send(b"".join(next(frames) for _ in range(BATCH)))
                yield BATCH


def garbage(address: SwitchAddress, more: Callable[[], bool]) -> Iterator[int]:
    """Send noise instead of a greeting, then noise as messages over a valid connection, until it is closed."""
    dice = random.Random(os.getpid())
    noise = b"".join(_framed(dice.randbytes(dice.randrange(1, 200))) for _ in range(BATCH))
    while more():
        with contextlib.suppress(OSError), _connected(address) as connection:
            connection.sendall(dice.randbytes(200))
            yield 1
        with contextlib.suppress(OSError), _Connection(address) as greeted:
            while more():
                greeted.send(noise)
                yield BATCH


def half_open(address: SwitchAddress, more: Callable[[], bool]) -> Iterator[int]:
    """Keep opening connections that fall silent in the middle of the greeting, or after it."""
    held: deque[socket.socket] = deque()
    dice = random.Random(os.getpid())
    opening = GREETING + READY
    try:
        while more():
            if len(held) >= HALF_OPEN:
                held.popleft().close()
            with contextlib.suppress(OSError):
                held.append(_connected(address))
                held[-1].sendall(opening[: dice.randrange(len(opening))])
                yield 1
    finally:
        for each in held:
            each.close()


def connections(address: SwitchAddress, more: Callable[[], bool]) -> Iterator[int]:
    """Open one connection after another, greet and close it at once."""
    while more():
        with contextlib.suppress(OSError), _connected(address) as connection:
            connection.sendall(GREETING + READY)
            yield 1


FLOODS: dict[str, Callable[[SwitchAddress, Callable[[], bool]], Iterator[int]]] = {
    "joins": joins,
    "garbage": garbage,
    "half-open": half_open,
    "connections": connections,
}
"""Floods by their name in the benchmark's table. Each yields how many messages or connections it has just made."""


def _connected(address: SwitchAddress) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return connection


def _framed(body: bytes) -> bytes:
    """Frame a body as a ZMTP message of a single frame."""
    if len(body) <= 255:
        return bytes((0, len(body))) + body
    return b"\x02" + struct.pack("!Q", len(body)) + body


def _sealed_joins(credentials: Credentials, challenge: str, count: int, first: int = 1) -> Iterator[bytes]:
    """Yield joins with growing numbers, encoded once, so that a stranger's message costs it less than the switch."""
    mark = 1234567890123456789
    join = Join(
        job=f"stranger {mark}",
        rank=0,
        size=2,
        nonce="stranger",
        wire_version=wire.VERSION,
        software=fanin.__version__,
        process="stranger",
        scheme="udp",
        path_mtu=PATH_MTU,
        receive_buffer_bytes=RECEIVE_BUFFER_BYTES,
    )
    seal = Seal(key=credentials.name, challenge=challenge, number=mark, disclosed=credentials.key.hex())
    whole = control.to_bytes(join, seal=seal, key=credentials.key)
    ending = len(b',"tag":""}') + 2 * TAG_BYTES
    parts = whole[:-ending].split(str(mark).encode())
    for number in range(first, first + count):
        covered = str(number).encode().join(parts)
        yield covered + b',"tag":"' + tag(credentials.key, covered, reply=False).hex().encode() + b'"}'
