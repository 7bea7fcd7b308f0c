"""Who of several controllers may write: arbitration by election id (specification, section 5).

Rules
-----
* A stream takes part with its first MasterArbitrationUpdate. Who advertises an election id that is at least the highest
  one ever seen becomes primary; everybody else is a backup. An id of 0, or none, never becomes primary.
* Two streams cannot have the same id. A stream cannot change its device or its role.
* When the primary's stream ends there is no primary, until somebody advertises an id that is high enough.
* Whoever takes part is told when the primary changes; a backup also when it has advertised.
Pure: streams are any hashable handles, and what is to be sent comes back as a list.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from fanin.switch.p4runtime.status import Code, StatusError

MAX_STREAMS = 16
"""Controllers at one time: each holds a thread of the server."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What one stream is told: the highest id, and whether it is its own."""

    stream: Hashable
    election_id: int
    """Of the primary, or the highest ever seen when there is none."""
    code: Code
    """OK: you are primary; ALREADY_EXISTS: somebody else is; NOT_FOUND: nobody is."""


@dataclass(slots=True)
class Arbitration:
    """The election of one device's default role."""

    highest: int = 0
    primary: Hashable | None = None
    streams: dict[Hashable, int] = field(default_factory=dict)

    def advertise(self, stream: Hashable, election_id: int) -> list[Standing]:
        """A stream says which id it has; StatusError ends it."""
        if stream not in self.streams and len(self.streams) >= MAX_STREAMS:
            raise StatusError(Code.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} controllers are connected already")
        taken = [other for other, number in self.streams.items() if number == election_id and other != stream]
        if election_id and taken:
            raise StatusError(Code.INVALID_ARGUMENT, f"election id {election_id} is another controller's")
        self.streams[stream] = election_id
        before = self.primary
        if election_id and election_id >= self.highest:
            self.highest, self.primary = election_id, stream
        elif self.primary == stream:
            self.primary = None
        if self.primary != before or self.primary == stream:
            return [self._standing(each) for each in self.streams]
        return [self._standing(stream)]

    def leave(self, stream: Hashable) -> list[Standing]:
        """A stream has ended."""
        self.streams.pop(stream, None)
        if self.primary != stream or self.primary is None:
            return []
        self.primary = None
        return [self._standing(each) for each in self.streams]

    def check_writer(self, election_id: int) -> None:
        """Whether a Write with that id is the primary's."""
        if self.primary is None or not election_id or self.streams[self.primary] != election_id:
            raise StatusError(Code.PERMISSION_DENIED, "only the primary controller may write: advertise a higher id")

    def _standing(self, stream: Hashable) -> Standing:
        code = Code.NOT_FOUND if self.primary is None else Code.OK if self.primary == stream else Code.ALREADY_EXISTS
        return Standing(stream, self.highest, code)
