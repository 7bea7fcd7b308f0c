"""Transfer of a running job's state, from one of its workers (the giver) to a newcomer, over a TCP connection.

    newcomer                              giver
                                   <-     its challenge
    HEAD: challenge, base, tag     ->
                                   <-     empty frames, one per ALIVE_INTERVAL_S, until it has reached that base
                                   <-     standing: its position, small, so that the newcomer can begin
                                   <-     state: weights and whatever else belongs to that position

Rules of this file
------------------
* A frame is its length (LENGTH), then as many bytes, then, unless it is empty, its tag. The callers decide on its
  contents.
* A tag is a keyed hash (fanin/protocol/seal.py) with a key that the job's secret gives, over both challenges and what
  is tagged: a peer that does not know the secret gets no answer, its answers are not believed, and a recorded tag holds
  for no other connection.
* Silence of a whole timeout, and a connection that ends early, are an OSError or an EOFError at the newcomer, which
  then asks another giver. The giver gives up in the same cases, without an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from fanin.host.session.threads import WORK, started
from fanin.protocol import strict
from fanin.protocol.seal import TAG_BYTES, tag, tag_holds

CHALLENGE_BYTES = 16
HEAD = struct.Struct(f"!{CHALLENGE_BYTES}sI{TAG_BYTES}s")
PURPOSE = b"fanin handover"
"""Purpose for which a key is derived from the job's secret."""
LENGTH = struct.Struct("!Q")
ALIVE_INTERVAL_S = 1.0
"""Interval of empty frames from a giver that has not reached the base yet; shorter than any newcomer's timeout."""
GIVER_TIMEOUT_S = 10.0
"""Longest that a giver waits for a newcomer to take in what was sent."""
HEAD_TIMEOUT_S = 2.0
"""Longest that a connection may take to show that it knows the key."""
MAX_AT_ONCE = 8
"""Newcomers that are served at the same time; further connections are closed, and those newcomers ask another giver."""
PAUSE_S = 0.1
"""Pause after an error of accept(): if the system has no files left, say, the next call would fail as well."""
READ_BYTES = 1 << 20

Snapshot = Callable[[int, float], tuple[bytes, bytes] | None]
"""Takes a base and a number of seconds; returns standing and state once the base is reached, None after the seconds."""


@dataclass(frozen=True, slots=True)
class GiverAddress:
    """Address at which a giver listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, data: bytes) -> GiverAddress:
        """Read what `str` wrote; ConnectionError for anything else."""
        try:
            body = strict.load_json(data)
            if not isinstance(body, dict):
                raise strict.RecordError("no object")
            return strict.read_message(body, cls, "giver")
        except strict.RecordError as error:
            raise ConnectionError(f"its address is none: {error}") from None

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class Giver:
    """Gives this worker's state to newcomers that know the key, until it is closed."""

    def __init__(self, host: str, snapshot: Snapshot, key: bytes) -> None:
        """`host`: name or address of this machine, as the newcomers reach it. Raises OSError when it cannot listen."""
        family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(where, family=family)
        self.address = GiverAddress(host, self._listener.getsockname()[1])
        self._key = key
        self._snapshot = snapshot
        self._places = threading.Semaphore(MAX_AT_ONCE)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="fanin-giver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._closing.set()
        with contextlib.suppress(OSError):  # not connected: shutting down wakes the thread that accepts all the same
            self._listener.shutdown(socket.SHUT_RDWR)
        # accept() may already have read the descriptor: closed earlier, its number could be another socket's by then.
        self._thread.join()
        self._listener.close()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # accept(2) also reports errors of a single connection
                self._closing.wait(PAUSE_S)
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
            elif started(self._give, connection, name="fanin-giving") is None:
                self._places.release()
                connection.close()

    def _give(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, EOFError):
                connection.settimeout(HEAD_TIMEOUT_S)
                own = secrets.token_bytes(CHALLENGE_BYTES)
                connection.sendall(own)
                head = _read(connection, HEAD.size)
                challenge, base, claimed = HEAD.unpack(head)
                if not tag_holds(self._key, own + head[:-TAG_BYTES], claimed, reply=False):
                    return
                connection.settimeout(GIVER_TIMEOUT_S)
                while (given := self._taken(base)) is None:
                    if self._closing.is_set():
                        return
                    connection.sendall(LENGTH.pack(0))
                for number, frame in enumerate(given):
                    connection.sendall(LENGTH.pack(len(frame)))
                    connection.sendall(frame)
                    connection.sendall(tag(self._key, _tagged(own, challenge, number, frame), reply=True))
        finally:
            self._places.release()

    def _taken(self, base: int) -> tuple[bytes, bytes] | None:
        with WORK:
            return self._snapshot(base, ALIVE_INTERVAL_S)


class Source:
    """A newcomer's connection to one giver."""

    def __init__(self, address: GiverAddress, base: int, silence_s: float, key: bytes) -> None:
        """Ask for the state of `base` or later; OSError, EOFError. `silence_s`: longest wait for anything at all."""
        self._connection = socket.create_connection((address.host, address.port), silence_s)
        self._key, self._frames = key, 0
        self._own = secrets.token_bytes(CHALLENGE_BYTES)
        try:
            self._theirs = _read(self._connection, CHALLENGE_BYTES)
            head = HEAD.pack(self._own, base, bytes(TAG_BYTES))[:-TAG_BYTES]
            self._connection.sendall(head + tag(key, self._theirs + head, reply=False))
        except BaseException:
            self.close()
            raise

    def read(self, within_s: float) -> bytes:
        """Return the next frame. EOFError when the connection ends early, TimeoutError for silence or after `within_s`.

        ConnectionError for a frame whose tag does not hold, OSError for any other trouble.
        """
        deadline = time.monotonic() + within_s
        while not (length := LENGTH.unpack(_read(self._connection, LENGTH.size))[0]):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"it is there, and not as far after {within_s:g} s")
        frame = _read(self._connection, length)
        claimed = _read(self._connection, TAG_BYTES)
        if not tag_holds(self._key, _tagged(self._theirs, self._own, self._frames, frame), claimed, reply=True):
            raise ConnectionError("what it gives is not the job's: it does not know the job's secret")
        self._frames += 1
        return frame

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._connection.close()


def _tagged(giver: bytes, newcomer: bytes, number: int, frame: bytes) -> bytes:
    """The bytes that a frame's tag covers."""
    return giver + newcomer + LENGTH.pack(number) + hashlib.blake2b(frame).digest()


def _read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    whole = bytearray()
    while len(whole) < count:
        piece = connection.recv(min(count - len(whole), READ_BYTES))
        if not piece:
            raise EOFError(f"the connection ended after {len(whole):,} of {count:,} bytes")
        whole += piece
    return bytes(whole)
