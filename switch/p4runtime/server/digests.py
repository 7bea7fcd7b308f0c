"""Digests on their way to the controller (P4Runtime specification, section 9.6): gathered, sent, acknowledged.

Rules
-----
* Messages of a digest without a configuration are dropped.
* A list is sent when it has max_list_size messages, or max_timeout_ns after its first message; at once if that is 0.
* A message equal to one that was sent is dropped until that one is acknowledged or ack_timeout_ns has passed. A message
  equal to one that waits to be sent is dropped as well.
Pure: time comes in, lists go out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LIST = 1024
"""Longest list, also if the configuration sets no bound."""
MAX_UNACKNOWLEDGED = 1 << 16
"""Most messages that wait for an acknowledgement; beyond that the oldest are forgotten, and may be sent again."""
NS_PER_S = 1e9

Values = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DigestConfig:
    """Limits on the lists in which a digest's messages are sent."""

    max_timeout_ns: int = 0
    max_list_size: int = 0
    ack_timeout_ns: int = 0


@dataclass(frozen=True, slots=True)
class DigestList:
    """One list of a digest's messages, to be sent."""

    digest_id: int
    list_id: int
    messages: tuple[Values, ...]


@dataclass(slots=True)
class _Stream:
    config: DigestConfig
    waiting: dict[Values, None] = field(default_factory=dict)
    since: float = 0.0
    """When the first waiting message came."""
    sent: dict[Values, tuple[int, float]] = field(default_factory=dict)
    """By unacknowledged message: its list, and when the acknowledgement times out, in the order of sending."""
    lists: int = 0

    @property
    def due(self) -> float:
        """Time at which the waiting messages must be sent."""
        bound = min(self.config.max_list_size or MAX_LIST, MAX_LIST)
        return self.since + (0.0 if len(self.waiting) >= bound else self.config.max_timeout_ns / NS_PER_S)


class DigestStreams:
    """All digests of a device, by id."""

    def __init__(self) -> None:
        self._streams: dict[int, _Stream] = {}

    @property
    def configs(self) -> dict[int, DigestConfig]:
        """The configuration of each digest."""
        return {number: stream.config for number, stream in self._streams.items()}

    def configure(self, digest_id: int, config: DigestConfig | None) -> None:
        """Set a digest's configuration; None: remove it, with all waiting messages."""
        if config is None:
            del self._streams[digest_id]
        elif digest_id in self._streams:
            self._streams[digest_id].config = config
        else:
            self._streams[digest_id] = _Stream(config)

    def learn(self, digest_id: int, values: Values, now: float) -> list[DigestList]:
        """Add a message of the program; return the lists to send because of it."""
        stream = self._streams.get(digest_id)
        if stream is None or values in stream.waiting:
            return []
        known = stream.sent.get(values)
        if known is not None and now < known[1]:
            return []
        if not stream.waiting:
            stream.since = now
        stream.waiting[values] = None
        return self._leaving(digest_id, stream, now) if stream.due <= now else []

    def due(self, now: float) -> list[DigestList]:
        """The lists that are due by now."""
        return [
            each
            for digest_id, stream in self._streams.items()
            if stream.waiting and stream.due <= now
            for each in self._leaving(digest_id, stream, now)
        ]

    def next_due(self) -> float | None:
        """Time at which the next list is due; None if nothing waits."""
        return min((stream.due for stream in self._streams.values() if stream.waiting), default=None)

    def acknowledge(self, digest_id: int, list_id: int) -> None:
        """Note that the controller has acknowledged a list."""
        stream = self._streams.get(digest_id)
        if stream is not None:
            for values in [values for values, (number, _) in stream.sent.items() if number == list_id]:
                del stream.sent[values]

    def _leaving(self, digest_id: int, stream: _Stream, now: float) -> list[DigestList]:
        stream.lists += 1
        messages = tuple(stream.waiting)
        stream.waiting.clear()
        if stream.config.ack_timeout_ns:
            until = now + stream.config.ack_timeout_ns / NS_PER_S
            for values in messages:
                stream.sent.pop(values, None)
                stream.sent[values] = stream.lists, until
            while len(stream.sent) > MAX_UNACKNOWLEDGED:
                del stream.sent[next(iter(stream.sent))]
        return [DigestList(digest_id, stream.lists, messages)]
