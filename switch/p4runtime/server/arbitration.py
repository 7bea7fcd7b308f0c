"""Arbitration between controllers by election id: the right to write (specification, section 5).

Rules
-----
* A stream takes part with its first MasterArbitrationUpdate. The connected stream with the highest election id is
  primary; the others are backups. A stream without an id, or with 0, never becomes primary.
* Two streams cannot have the same id. A stream cannot change its device or its role.
* When the primary's stream ends, or lowers its id, the next highest id takes over at once, as in the reference server
  (PI). The specification also allows to wait for a backup to advertise again; nobody could write meanwhile.
* All streams are told when the primary changes; a backup also when it has advertised.
Pure: streams are any hashable handles, and the notices to send are returned as a list.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from fanin.switch.p4runtime.server.status import Code, StatusError

MAX_STREAMS = 16
"""Most controllers at one time: each occupies a thread of the server."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The notice to one stream: the primary's id, and whether the stream is the primary."""

    stream: Hashable
    election_id: int
    """Election id of the primary; 0 when there is none."""
    code: Code
    """OK: you are primary; ALREADY_EXISTS: somebody else is; NOT_FOUND: nobody is."""


@dataclass(slots=True)
class Arbitration:
    """The election of one device's default role."""

    primary: Hashable | None = None
    streams: dict[Hashable, int] = field(default_factory=dict)

    def advertise(self, stream: Hashable, election_id: int) -> list[Standing]:
        """Set a stream's election id; return the notices to send. A StatusError ends the stream."""
        if stream not in self.streams and len(self.streams) >= MAX_STREAMS:
            raise StatusError(Code.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} controllers are connected already")
        taken = [other for other, number in self.streams.items() if number == election_id and other != stream]
        if election_id and taken:
            raise StatusError(Code.INVALID_ARGUMENT, f"election id {election_id} is another controller's")
        self.streams[stream] = election_id
        if self._elect() or self.primary == stream:
            return [self._standing(each) for each in self.streams]
        return [self._standing(stream)]

    def leave(self, stream: Hashable) -> list[Standing]:
        """Remove a stream that has ended; return the notices to send."""
        self.streams.pop(stream, None)
        return [self._standing(each) for each in self.streams] if self._elect() else []

    def check_writer(self, election_id: int) -> None:
        """Raise StatusError unless `election_id` is the primary's."""
        if self.primary is None or not election_id or self.streams[self.primary] != election_id:
            raise StatusError(Code.PERMISSION_DENIED, "only the primary controller may write: advertise a higher id")

    def _elect(self) -> bool:
        """Make the stream with the highest id primary; return whether the primary has changed."""
        before = self.primary
        candidates = {number: each for each, number in self.streams.items() if number}
        self.primary = candidates[max(candidates)] if candidates else None
        return self.primary != before

    def _standing(self, stream: Hashable) -> Standing:
        code = Code.NOT_FOUND if self.primary is None else Code.OK if self.primary == stream else Code.ALREADY_EXISTS
        return Standing(stream, 0 if self.primary is None else self.streams[self.primary], code)
