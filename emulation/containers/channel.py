"""Messages between the job and its members: JSON objects, one to a line, over a TCP connection per member.

    member -> job   {"type": "join", "command": "...", "settings": {}}   once connected
    job -> member   {"type": "start", "rank": 2, "workers": 4, "master": "172.18.0.5"}   when the roster closed
                    {"type": "refused", "text": "..."}                   instead
    member -> job   {"type": "beat"}                                     every BEAT_S while its program runs
                    {"type": "report", "record": {...}}                  what its program printed
                    {"type": "timeline", "lines": [{...}, ...]}          what FANIN_TIMELINE has, once the program ended
                    {"type": "ended", "status": 0, "cause": ""}          last
    job -> member   {"type": "verdict", "status": 0}                     last

A connection that breaks before `ended` is a member that is lost. Both ends are containers of one job and trust each
other; the limits below only keep a mistake from filling the memory.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from fanin.errors import FaninError

DEFAULT_PORT = 4918
"""Default TCP port of the job; the number below the switch's port."""
MAX_LINE_BYTES = 1 << 20
SEND_TIMEOUT_S = 5.0
FIELDS: dict[str, dict[str, type]] = {
    "report": {"record": dict},
    "timeline": {"lines": list},
    "ended": {"status": int, "cause": str},
    "start": {"rank": int, "workers": int, "master": str},
    "refused": {"text": str},
    "verdict": {"status": int},
}
"""Fields that the other end cannot do without, by the type of the message."""


class ChannelError(FaninError):
    """The peer sent something other than these messages."""


class Channel:
    """One end of a connection. Blocking sends; `receive` after the socket became readable does not block."""

    def __init__(self, connection: socket.socket, peer_address: str = "") -> None:
        """`peer_address`: the other end's numeric address, which a socket that was reset no longer knows."""
        self.peer_address = peer_address
        connection.settimeout(SEND_TIMEOUT_S)
        self._connection = connection
        self._partial = b""

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self._connection.fileno()

    def send(self, kind: str, **fields: object) -> None:
        """Send one message; raises OSError when the other end is gone or takes nothing for SEND_TIMEOUT_S."""
        self._connection.sendall(json.dumps({"type": kind, **fields}).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come, None at the end of the connection. ChannelError if they are malformed."""
        try:
            data = self._connection.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:  # a reset counts as the end
            return None
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:
            raise ChannelError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [_message(line) for line in lines]

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._connection.close()


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"no JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ChannelError("no object with a type")
    for field, kind in FIELDS.get(message["type"], {}).items():
        if not isinstance(message.get(field), kind):
            raise ChannelError(f"{message['type']!r} without {field!r}, of type {kind.__name__}")
    if not isinstance(message.get("settings", {}), dict):
        raise ChannelError("'settings' is no object")
    return message
