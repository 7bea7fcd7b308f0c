"""A running job's state, from one of its workers to a newcomer: a TCP connection from the one to the other.

    newcomer                              giver
    token, base (HEAD)             ->
                                   <-     empty frames, one per ALIVE_INTERVAL_S, until it is as far as that base
                                   <-     standing: where it is, small, so that the newcomer can begin
                                   <-     state: what belongs to that place

Rules of this file
------------------
* A frame is its length in LENGTH bytes, then as many bytes. What is in it is its users' business.
* Silence of a whole timeout, and a connection that ends early, are an OSError or an EOFError at the newcomer, which
  then asks somebody else. The giver gives up on the same, and nobody hears of it.
* A stranger who does not know the token is not answered. The token is told with the address, through the job's store.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

TOKEN_BYTES = 16
HEAD = struct.Struct(f"!{TOKEN_BYTES}sI")
LENGTH = struct.Struct("!Q")
ALIVE_INTERVAL_S = 1.0
"""A giver that is not as far yet says so this often; less than any silence that a newcomer bears."""
GIVER_TIMEOUT_S = 10.0
"""Longest that a giver waits for a newcomer to take in what was sent."""
MAX_AT_ONCE = 8
"""Newcomers that are given to at one time; whoever comes beyond it is closed to, and asks another."""
READ_BYTES = 1 << 20

Look = Callable[[int, float], tuple[bytes, bytes] | None]
"""Standing and state once a base is reached; None after so many seconds."""


@dataclass(frozen=True, slots=True)
class GiverAddress:
    """Where a giver listens, and what it wants to hear."""

    host: str
    port: int
    token: str

    @classmethod
    def parse(cls, text: str | bytes) -> GiverAddress:
        """Read what `str` wrote."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class Giver:
    """Hands out this worker's state to whoever knows the token, until it is closed."""

    def __init__(self, host: str, look: Look) -> None:
        """`host`: name or address of this machine, as the newcomers reach it. Raises OSError when it cannot listen."""
        family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(where, family=family)
        token = secrets.token_bytes(TOKEN_BYTES)
        self.address = GiverAddress(host, self._listener.getsockname()[1], token.hex())
        self._token = token
        self._look = look
        self._places = threading.Semaphore(MAX_AT_ONCE)
        self._closing = threading.Event()
        threading.Thread(target=self._listen, name="fanin-giver", daemon=True).start()

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._closing.set()
        with contextlib.suppress(OSError):  # not connected: shutting down wakes the thread that accepts all the same
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._give, args=(connection,), name="fanin-giving", daemon=True).start()
            else:
                connection.close()

    def _give(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, EOFError):
                connection.settimeout(GIVER_TIMEOUT_S)
                token, base = HEAD.unpack(_read(connection, HEAD.size))
                if not hmac.compare_digest(token, self._token):
                    return
                while (given := self._look(base, ALIVE_INTERVAL_S)) is None:
                    if self._closing.is_set():
                        return
                    connection.sendall(LENGTH.pack(0))
                for frame in given:
                    connection.sendall(LENGTH.pack(len(frame)))
                    connection.sendall(frame)
        finally:
            self._places.release()


class Source:
    """A newcomer's connection to one giver."""

    def __init__(self, address: GiverAddress, base: int, silence_s: float) -> None:
        """Ask for the state of `base` or later. `silence_s`: longest wait for anything at all. Raises OSError."""
        self._connection = socket.create_connection((address.host, address.port), silence_s)
        try:
            self._connection.sendall(HEAD.pack(bytes.fromhex(address.token), base))
        except BaseException:
            self.close()
            raise

    def read(self, within_s: float) -> bytes:
        """The next frame. Raises EOFError when it ends early, OSError (TimeoutError: silence, or all of `within_s`)."""
        deadline = time.monotonic() + within_s
        while not (length := LENGTH.unpack(_read(self._connection, LENGTH.size))[0]):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"it is there, and not as far after {within_s:g} s")
        return _read(self._connection, length)

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._connection.close()


def _read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    whole = bytearray()
    while len(whole) < count:
        piece = connection.recv(min(count - len(whole), READ_BYTES))
        if not piece:
            raise EOFError(f"the connection ended after {len(whole):,} of {count:,} bytes")
        whole += piece
    return bytes(whole)
