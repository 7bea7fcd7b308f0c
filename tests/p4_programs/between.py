"""A switch whose packets stay between their passes, and workers that keep the host rules."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from fanin.protocol.wire import Flag, Kind, Packet
from fanin.switch.p4 import V1Switch
from tests.p4_programs.subjects import Emulated


class Recirculating(V1Switch):
    """A switch whose packets stay between their passes until they are let in again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.between: list[Any] = []

    def _egress(self, packet, now_us, entering, leaving, sent):  # type: ignore[no-untyped-def]
        again: deque[Any] = deque()
        super()._egress(packet, now_us, again, leaving, sent)
        self.between += again

    def let_in(self, index: int) -> list[tuple[int, bytes]]:
        """The second pass of one of them: what leaves."""
        return self._run(self.between.pop(index), 0)


class Between(Emulated):
    """fanin's emulator, with that switch."""

    switch: Recirculating

    def __init__(self, configuration: str) -> None:
        super().__init__(configuration, native=False, machine=Recirculating)


@dataclass
class Worker:
    """One that keeps the host rules, in one slot: it goes on to the next base with its result, and once it is in."""

    number: int
    base: int = 0
    has_result: bool = False
    accepted: bool = False

    def takes(self, packet: Packet) -> bool:
        """Whether it has a use for the words of a result or an answer."""
        if packet.base != self.base or packet.kind not in (Kind.RESULT, Kind.ANSWER):
            return False
        wanted = not self.has_result and not packet.flags & Flag.BARE
        self.has_result |= not packet.flags & Flag.BARE
        self.accepted |= packet.kind is Kind.ANSWER or bool(packet.bitmap >> self.number & 1)
        if self.has_result and self.accepted:
            self.base, self.has_result, self.accepted = self.base + 1, False, False
        return wanted
