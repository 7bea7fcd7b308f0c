"""The switch's end of a ZeroMQ connection: ZMTP 3.0 with the NULL mechanism, within bounds. No socket, no clock.

libzmq bounds a frame and not a message: the parts of a message that never ends pile up before any program sees them.
So where nothing is encrypted the switch reads the wire itself; its clients are libzmq's DEALER sockets all the same.

Source: ZeroMQ RFC 23/ZMTP. A connection opens with a greeting of 64 bytes each way, then a READY command each way, then
come messages, each of one frame or more: flags, length in 1 or 8 bytes, body.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MORE, LONG, COMMAND = 1, 2, 4
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = _SIGNATURE + bytes((3, 0)) + b"NULL".ljust(20, b"\0") + bytes(32)
"""Signature, version, mechanism, not a server of that mechanism, filler."""
GREETING_BYTES = 64
_MAJOR_AT, _MECHANISM_AT = 10, slice(12, 32)
_LENGTH = struct.Struct("!Q")
MAX_COMMAND_BYTES = 1024
"""Longest command: READY with its properties, and commands that follow."""
_READY_BODY = b"\x05READY\x0bSocket-Type" + struct.pack("!I", 6) + b"ROUTER\x08Identity" + struct.pack("!I", 0)
READY = bytes((COMMAND, len(_READY_BODY))) + _READY_BODY
_PING, _PONG, _TTL_BYTES = b"\x04PING", b"\x04PONG", 2
SHORT_FRAME_BYTES = 255
MAX_COMPLETE = 256
"""Most messages that are parsed before they are taken; bounded, since an empty frame costs its sender two bytes."""


class ZmtpError(ValueError):
    """The other side does not keep to the protocol, or to the bounds: hang up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmtpLimits:
    """Limits of one message."""

    frame_bytes: int
    frames: int
    message_bytes: int
    """Most bytes over all frames."""


class ZmtpConnection:
    """One connection: bytes in, messages out, and the reverse. Holds at most one incomplete message."""

    def __init__(self, limits: ZmtpLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._greeted = self.ready = False
        """`ready`: both greetings and both READY are exchanged."""
        self._frames: list[bytes] = []
        self._message_bytes = 0
        self.messages: deque[list[bytes]] = deque()
        """Complete messages, for `take`."""
        self.to_send = bytearray(GREETING)

    @property
    def held_bytes(self) -> int:
        """Bytes received that are not a complete message yet."""
        return len(self._buffer) + self._message_bytes

    def feed(self, data: bytes) -> None:
        """Take in received bytes; ZmtpError for bytes that are no ZMTP, or exceed the limits."""
        self._buffer += data
        if self._greeted or self._greet():
            self._parse()

    def take(self) -> list[bytes]:
        """Return the next message, of which there must be one. ZmtpError if the bytes behind it are illegal."""
        message = self.messages.popleft()
        if not self.messages:
            self._parse()
        return message

    def _parse(self) -> None:
        at, end = 0, len(self._buffer)
        view = memoryview(self._buffer)
        try:
            while at + 2 <= end and len(self.messages) < MAX_COMPLETE:
                flags = view[at]
                if flags > MORE | LONG | COMMAND:
                    raise ZmtpError(f"flags {flags:#x}")
                if flags & LONG:
                    if at + 1 + _LENGTH.size > end:
                        break
                    size, body = _LENGTH.unpack_from(view, at + 1)[0], at + 1 + _LENGTH.size
                else:
                    size, body = view[at + 1], at + 2
                self._check(flags, size)
                if body + size > end:
                    break
                self._take(flags, bytes(view[body : body + size]))
                at = body + size
        finally:
            view.release()
            del self._buffer[:at]

    def send(self, frames: Sequence[bytes]) -> None:
        """Put one message into `to_send`."""
        out, last = self.to_send, len(frames) - 1
        for number, frame in enumerate(frames):
            more = MORE if number < last else 0
            if len(frame) <= SHORT_FRAME_BYTES:
                out += bytes((more, len(frame)))
            else:
                out.append(more | LONG)
                out += _LENGTH.pack(len(frame))
            out += frame

    def ping(self) -> None:
        """Ask for a sign of life: the other side's libzmq answers by itself (RFC 37, PING without time to live)."""
        body = _PING + bytes(_TTL_BYTES)
        self.to_send += bytes((COMMAND, len(body))) + body

    def _greet(self) -> bool:
        """Whether the other side's greeting is complete; its bytes are checked as soon as they are there."""
        begin = bytes(self._buffer[: len(_SIGNATURE)])
        if begin[:1] != _SIGNATURE[:1] or (len(begin) == len(_SIGNATURE) and begin[-1] & 1 != 1):
            raise ZmtpError("no ZMTP signature")
        if len(self._buffer) > _MAJOR_AT and self._buffer[_MAJOR_AT] < 3:
            raise ZmtpError(f"ZMTP version {self._buffer[_MAJOR_AT]}")
        if len(self._buffer) < GREETING_BYTES:
            return False
        mechanism = bytes(self._buffer[_MECHANISM_AT]).rstrip(b"\0")
        if mechanism != b"NULL":
            raise ZmtpError(f"mechanism {mechanism!r}")
        del self._buffer[:GREETING_BYTES]
        self._greeted = True
        self.to_send += READY
        return True

    def _check(self, flags: int, size: int) -> None:
        """Raise ZmtpError if a frame of that size may not follow; by its head, before any of its body is kept."""
        if flags & COMMAND:
            if size > MAX_COMMAND_BYTES or flags & MORE:
                raise ZmtpError(f"a command of {size} bytes")
            return
        if not self.ready:
            raise ZmtpError("a message before READY")
        limits = self._limits
        frames, message_bytes = len(self._frames) + 1, self._message_bytes + size
        if size > limits.frame_bytes or message_bytes > limits.message_bytes or frames > limits.frames:
            raise ZmtpError(f"a message of {frames} frames and {message_bytes} bytes or more")
        if flags & MORE and frames == limits.frames:
            raise ZmtpError(f"a message of more than {frames} frames")

    def _take(self, flags: int, body: bytes) -> None:
        if flags & COMMAND:
            self._command(body)
            return
        self._frames.append(body)
        self._message_bytes += len(body)
        if not flags & MORE:
            self.messages.append(self._frames)
            self._frames, self._message_bytes = [], 0

    def _command(self, body: bytes) -> None:
        if body.startswith(_PING):
            echo = _PONG + body[len(_PING) + _TTL_BYTES :]
            self.to_send += bytes((COMMAND, len(echo))) + echo if len(echo) <= SHORT_FRAME_BYTES else b""
        elif body.startswith(b"\x05READY"):
            if self.ready:
                raise ZmtpError("READY twice")
            self.ready = True
        elif body.startswith(b"\x05ERROR") or not self.ready:
            raise ZmtpError("the other side refuses")
